package provider

import (
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

// A text that uses a long variable many times is cut off while it is rendered. Otherwise a
// request of 64 KB would take half a gigabyte of memory for each receiver.
func TestRenderedTextIsBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("'", 8000)
	v, err := SharedVariables([]byte(`{"v":"` + long + `"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, enc := range []Encoding{Plain, HTML, JSON} {
		tpl := ParseTemplate("a"+strings.Repeat("{{v}}", 10_000), enc)
		got, err := tpl.Append([]byte("here before"), &v, 4096)
		wantTooLarge(t, err)
		if cap(got) > 256<<10 {
			t.Errorf("encoding %d: %d bytes were made", enc, cap(got))
		}
	}
	tpl := ParseTemplate("x{{v}}", Plain)
	if got, err := tpl.Append([]byte("before"), &v, 1+len(long)); err != nil || string(got) != "beforex"+long {
		t.Errorf("%v, %d bytes", err, len(got))
	}
	_, err = tpl.Append(nil, &v, len(long))
	wantTooLarge(t, err)
}

func wantTooLarge(t *testing.T, err error) {
	t.Helper()
	if e, _ := err.(*notify.Error); e == nil || e.Kind != notify.KindTooLarge || e.Code != "payload_too_large" {
		t.Errorf("got %v, want payload_too_large", err)
	}
}

// Of mails that need a request each, one at a time is in memory.
func TestMailsAloneAreMadeOneByOne(t *testing.T) {
	t.Parallel()
	sg, s := testSendGrid(t, nil)
	content := notify.Content{Title: "t", Body: "{{v}}", HTML: strings.Repeat("{{v}}", 100)}
	call := testCall(notify.Email, content, 100, mailbox)
	for i := range call.Items {
		call.Items[i].Variables = fmt.Appendf(nil, `{"v":"%d %s"}`, i, strings.Repeat("x", 7000))
	}
	m, err := sg.newMailing(call)
	if err != nil {
		t.Fatal(err)
	}
	for i := range call.Items {
		if p, err := m.personalize(i); err != nil || !p.alone {
			t.Fatal(p, err)
		}
	}
	if n := cap(m.buf) + cap(m.scratch) + cap(m.tail); n > 4<<20 {
		t.Errorf("%d bytes are held for mails of 0.7 MB each", n)
	}
	call.Items = call.Items[:3]
	call.Items[1].Variables = []byte(`{"v":"` + strings.Repeat("x", 8000) + strings.Repeat("<", 1000) + `"}`) // 1.2 MB
	for i, r := range collect(t, t.Context(), sg, call) {
		if i == 1 && (r.Class != notify.ClassPermanent || r.Code != "payload_too_large") || i != 1 && r.Class != notify.ClassAccepted {
			t.Errorf("%d: %+v", i, r)
		}
	}
	for _, mail := range s.mails {
		i := 0
		for mailbox(i) != mail.Personalizations[0].To[0].Email {
			i++
		}
		if want := fmt.Sprintf("%d %s", i, strings.Repeat("x", 7000)); mail.Content[0].Value != want || mail.Content[1].Value != strings.Repeat(want, 100) {
			t.Errorf("%d has the mail of another", i)
		}
	}
}

// More variables than are looked through one by one.
func TestManyVariables(t *testing.T) {
	t.Parallel()
	object := func(n int, prefix string) []byte {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"v%d":"%s%d"`, i, prefix, i)
		}
		return []byte("{" + strings.TrimPrefix(b.String(), ",") + "}")
	}
	for _, n := range []int{linearSearchMax - 1, linearSearchMax, linearSearchMax + 1, 300} {
		v, err := SharedVariables(object(n, "shared"))
		if err != nil {
			t.Fatal(err)
		}
		fork := v.Fork()
		tpl := ParseTemplate(fmt.Sprintf("{{v0}} {{v%d}} {{v0}} {{own}}", n-1), Plain)
		f := func(own []byte, want string) {
			t.Helper()
			if err := fork.SetOwn(own); err != nil {
				t.Fatal(err)
			}
			got, err := tpl.Append(nil, &fork, 1000)
			if err != nil {
				got = []byte(err.(*notify.Error).Code)
			}
			if string(got) != want {
				t.Errorf("of %d: %s, want %s", n, got, want)
			}
		}
		own := append(object(n, "own"), `,"own":1}`...)
		own[len(own)-len(`,"own":1}`)-1] = ' '
		f(own, fmt.Sprintf("own0 own%d own0 1", n-1))
		f([]byte(`{"own":"x"}`), fmt.Sprintf("shared0 shared%d shared0 x", n-1)) // nothing is left of the one before
		f(nil, "missing_variable")
		f([]byte(strings.ReplaceAll(string(object(linearSearchMax+1, "x")), `"v`, `"w`)), "missing_variable") // as many, of other names
	}
}
