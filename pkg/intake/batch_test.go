package intake

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/request"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/notify"
)

func TestBatchForms(t *testing.T) {
	t.Parallel()
	items := []string{single(`"to":{"user_id":"a"}`), `{"channel":7}`, single(`"category":"digest","to":{"user_id":"b"}`)}
	var proto []byte
	proto = appendProtoNote(proto, "push", "otp", "a", notify.Content{Title: "t"})
	proto = appendProtoNote(proto, "fax", "otp", "x", notify.Content{Title: "t"})
	proto = appendProtoNote(proto, "push", "digest", "b", notify.Content{Title: "t"})
	for _, c := range []struct{ name, media, body, code string }{
		{"json", request.JSON, " [" + strings.Join(items, " , ") + "\n] ", "wrong_type"},
		{"ndjson", request.NDJSON, strings.Join(items, "\n\n") + "\n", "wrong_type"},
		{"protobuf", request.Proto, string(proto), "unknown_channel"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			a, err := r.Batch(t.Context(), request.Meta{Caller: "c", ContentType: c.media}, []byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			es := r.log.envelopes(t)
			if len(es) != 2 {
				t.Fatalf("%d records, answer %s", len(es), a.Body)
			}
			want := fmt.Sprintf(`{"results":[{"notification_id":%q,"status":"ACCEPTED"},{"error":{"code":%q,"field":"channel","detail":`, es[0].ID(0).String(), c.code)
			end := fmt.Sprintf(`}},{"notification_id":%q,"status":"ACCEPTED"}],"accepted":2,"rejected":1}`, es[1].ID(0).String())
			if got := string(a.Body); a.Status != 200 || !strings.HasPrefix(got, want) || !strings.HasSuffix(got, end) {
				t.Errorf("answer %d %s", a.Status, got)
			}
			if r.log.appends != 1 {
				t.Errorf("%d appends, want one for the batch", r.log.appends)
			}
			if recs := r.log.records(); string(recs[0].Key) != "a" || string(recs[1].Key) != "b" {
				t.Errorf("keys %s, %s", recs[0].Key, recs[1].Key)
			}
		})
	}
}

func TestBadBatches(t *testing.T) {
	t.Parallel()
	const good = singleBody
	for _, c := range []struct{ name, media, body, code string }{
		{"empty body", request.JSON, "", "bad_json"},
		{"object", request.JSON, good, "wrong_type"},
		{"no items", request.JSON, "[]", "empty"},
		{"no lines", request.NDJSON, "\n \n", "empty"},
		{"no messages", request.Proto, "", "empty"},
		{"not closed", request.JSON, "[" + good, "bad_json"},
		{"trailing comma", request.JSON, "[" + good + ",]", "bad_json"},
		{"trailing data", request.JSON, "[" + good + "] x", "bad_json"},
		{"no comma", request.JSON, "[" + good + good + "]", "bad_json"},
		{"item not closed", request.JSON, `[{"channel":"push"]`, "bad_json"},
		{"damaged", request.Proto, "\x0a\x7f", "bad_protobuf"},
		{"unknown field", request.Proto, "\x12\x00", "unknown_field"},
		{"media type", "text/plain", good, "unsupported_media_type"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			_, err := r.Batch(t.Context(), request.Meta{Caller: "c", Key: "k", ContentType: c.media}, []byte(c.body))
			if notify.KindOf(err) != notify.KindInvalid || codeOf(err) != c.code {
				t.Errorf("%v, want %s", err, c.code)
			}
			if r.stored() {
				t.Error("something is stored")
			}
		})
	}
	r := newRig(t, Config{MaxBatch: 3})
	_, err := r.Batch(t.Context(), request.Meta{Caller: "c", ContentType: request.NDJSON}, []byte(strings.Repeat(good+"\n", 4)))
	refused(t, err, notify.KindTooLarge, "too_many_items", "")
	if r.stored() {
		t.Error("something is stored")
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	var got []string
	note := func(format string, a ...any) { got = append(got, fmt.Sprintf(format, a...)) }
	r := newRig(t, Config{Events: Events{
		Accepted: func(ch notify.Channel, cat notify.Category, caller string, n int) {
			note("+%d %s %s %s", n, ch, cat, caller)
		},
		Rejected: func(caller, code string, n int) { note("-%d %s %s", n, caller, code) },
		Refused:  func(caller, code string) { note("refused %s %s", caller, code) },
		Body:     func(route string, n int) { note("body %v", n > 0) },
		Replayed: func(caller string) { note("replayed %s", caller) },
		Spilled:  func(n int) { note("spilled %d", n) },
	}})
	m := request.Meta{Caller: "c", Key: "k"}
	r.Fanout(t.Context(), m, fanout(`["a","b","a",""]`))
	r.Fanout(t.Context(), m, fanout(`["a","b","a",""]`))
	r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(`{}`))
	r.log.set(logDown())
	r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(singleBody))
	all := strings.Join(got, ", ")
	for _, want := range []string{
		"body true, +2 push marketing c", "-1 c duplicate_user", "-1 c user_id_required", "body true, replayed c",
		"refused c required", "spilled 1, +1 push otp c",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not among %s", want, all)
		}
	}
}

// One item too many refuses the batch in each of its forms, plain items and
// others, and stores nothing.
func TestBatchHasALimit(t *testing.T) {
	t.Parallel()
	const plain = `{"channel":"push","category":"digest","to":{"user_id":"user-1"},"content":{"body":"b"}}`
	item := string(appendProtoNote(nil, "push", "digest", "user-1", notify.Content{Body: "b"}))
	for _, c := range []struct{ name, media, two, three string }{
		{"plain", request.JSON, `[` + plain + `,` + plain + `]`, `[` + plain + `,` + plain + `,` + plain + `]`},
		{"odd", request.JSON, `[` + plain + `,7]`, `[` + plain + `,7,7]`},
		{"lines", request.NDJSON, plain + "\n" + plain, plain + "\n" + plain + "\n" + plain},
		{"protobuf", request.Proto, item + item, item + item + item},
	} {
		r := newRig(t, Config{MaxBatch: 2})
		_, err := r.Batch(t.Context(), request.Meta{Caller: "c", ContentType: c.media}, []byte(c.three))
		if e := asError(err); e == nil || e.Code != "too_many_items" || len(r.log.records()) > 0 {
			t.Errorf("%s: %v, %d stored", c.name, err, len(r.log.records()))
		}
		if _, err := r.Batch(t.Context(), request.Meta{Caller: "c", ContentType: c.media}, []byte(c.two)); err != nil {
			t.Errorf("%s: two of two: %v", c.name, err)
		}
	}
}

// An array is scanned once and its plain items are read where they lie: each
// becomes what the library makes of it alone.
func TestItemsOfAnArrayAreReadAsAlone(t *testing.T) {
	t.Parallel()
	pool := []string{
		`{"channel":"push","category":"digest","to":{"user_id":"user-%d"},"content":{"body":"b"}}`,
		`{"content" : {"title":"a, ]}","body":"\u00e9\"]"} , "to":{"user_id":"user-%d","variables":{"a":[1,{"b":"]"}]}},"category":"digest","channel":"push"}`,
		`{"channel":"push","category":"digest","to":{"user_id":"user-%d","user_id":"x"},"content":{"body":"b"}}`,
		`{"channel":"push","category":"digest","to":{"user_id":"user-%d"},"content":{"body":"b"},"more":[{}]}`,
		`{"channel":"push","category":"digest","to":{"user_id":"user-%d"},"content":{"body":"\ud800"}}`,
		`{"channel":"push","category":"digest","to":{"user_id":"user-%d"},"content":{"body":"` + "\xff" + `"}}`,
		`{"channel":"push","category":"digest","to":{"user_id":"user-%d"},"content":{"body":"b"},"expires_at":"2999-01-01T00:00:00Z"}`,
		`{"channel":"fax","category":"digest","to":{"user_id":"user-%d"},"content":{"body":"b"}}`,
		`{"channel":"push","category":"digest","to":{"user_id":"user-%d"},"content":{"data":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}}`,
		`"user-%d"`, `%d`, `[%d]`, `{"a":%d}`, `{}`, `null`, `nul`, `{"channel" "push"%d}`,
	}
	rapid.Check(t, func(rt *rapid.T) {
		space := func() string { return rapid.SampledFrom([]string{"", "", " ", "\n\t"}).Draw(rt, "space") }
		var items []string
		body := space() + "[" + space()
		for i := range rapid.IntRange(1, 6).Draw(rt, "n") {
			item := rapid.SampledFrom(pool).Draw(rt, "item")
			if strings.Contains(item, "%d") {
				item = fmt.Sprintf(item, i)
			}
			if items = append(items, item); i > 0 {
				body += space() + "," + space()
			}
			body += item
		}
		body += space() + "]" + space()
		r := newRig(t, Config{})
		a, err := r.Batch(t.Context(), request.Meta{Caller: "c"}, []byte(body))
		if err != nil {
			rt.Fatalf("%q: %v", body, err)
		}
		var got struct {
			Results []struct {
				ID    string `json:"notification_id"`
				Error *struct{ Code, Field, Detail string }
			}
		}
		if err := json.Unmarshal(a.Body, &got); err != nil || len(got.Results) != len(items) {
			rt.Fatalf("%q: %s, %v", body, a.Body, err)
		}
		var users []string
		for i, item := range items {
			var n note
			want := slowNote([]byte(item), &n)
			if want == nil {
				want = r.admitNote(&n, &request.Meta{}, time.Now().UnixMilli(), r.rules.off)
			}
			if want == nil {
				users = append(users, string(n.user))
			}
			have := got.Results[i].Error
			if (want == nil) != (have == nil) || (want != nil && (asError(want).Code != have.Code || asError(want).Field != have.Field)) {
				rt.Fatalf("item %d %q: %+v, alone %v", i, item, have, want)
			}
		}
		var stored []string
		for _, rec := range r.log.records() {
			stored = append(stored, string(rec.Key))
		}
		if fmt.Sprint(stored) != fmt.Sprint(users) {
			rt.Fatalf("%q: stored %v, want %v", body, stored, users)
		}
	})
}
