package intake

import (
	"fmt"
	"strings"
	"testing"

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
		{"json", mediaJSON, " [" + strings.Join(items, " , ") + "\n] ", "wrong_type"},
		{"ndjson", mediaNDJSON, strings.Join(items, "\n\n") + "\n", "wrong_type"},
		{"protobuf", mediaProto, string(proto), "unknown_channel"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			a, err := r.Batch(t.Context(), Meta{Caller: "c", ContentType: c.media}, []byte(c.body))
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
		{"empty body", mediaJSON, "", "bad_json"},
		{"object", mediaJSON, good, "wrong_type"},
		{"no items", mediaJSON, "[]", "empty"},
		{"no lines", mediaNDJSON, "\n \n", "empty"},
		{"no messages", mediaProto, "", "empty"},
		{"not closed", mediaJSON, "[" + good, "bad_json"},
		{"trailing comma", mediaJSON, "[" + good + ",]", "bad_json"},
		{"trailing data", mediaJSON, "[" + good + "] x", "bad_json"},
		{"no comma", mediaJSON, "[" + good + good + "]", "bad_json"},
		{"item not closed", mediaJSON, `[{"channel":"push"]`, "bad_json"},
		{"damaged", mediaProto, "\x0a\x7f", "bad_protobuf"},
		{"unknown field", mediaProto, "\x12\x00", "unknown_field"},
		{"media type", "text/plain", good, "unsupported_media_type"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			_, err := r.Batch(t.Context(), Meta{Caller: "c", Key: "k", ContentType: c.media}, []byte(c.body))
			if notify.KindOf(err) != notify.KindInvalid || codeOf(err) != c.code {
				t.Errorf("%v, want %s", err, c.code)
			}
			if r.stored() {
				t.Error("something is stored")
			}
		})
	}
	r := newRig(t, Config{MaxBatch: 3})
	_, err := r.Batch(t.Context(), Meta{Caller: "c", ContentType: mediaNDJSON}, []byte(strings.Repeat(good+"\n", 4)))
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
	m := Meta{Caller: "c", Key: "k"}
	r.Fanout(t.Context(), m, fanout(`["a","b","a",""]`))
	r.Fanout(t.Context(), m, fanout(`["a","b","a",""]`))
	r.Single(t.Context(), Meta{Caller: "c"}, []byte(`{}`))
	r.log.set(logDown())
	r.Single(t.Context(), Meta{Caller: "c"}, []byte(singleBody))
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
