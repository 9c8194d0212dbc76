package intake

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// single wraps members into an otherwise good single notification.
func single(members string) string {
	const good = `"channel":"push","category":"otp","to":{"user_id":"u1"},"content":{"title":"t"}`
	var keep []string
	for part := range strings.SplitSeq(good, `,"`) {
		name, _, _ := strings.Cut(strings.Trim(part, `"`), `"`)
		if !strings.Contains(members, `"`+name+`":`) {
			keep = append(keep, `"`+strings.TrimPrefix(part, `"`))
		}
	}
	return "{" + strings.Join(append(keep, members), ",") + "}"
}

// refused checks that an error names this kind, code and field.
func refused(t *testing.T, err error, kind notify.Kind, code, field string) {
	t.Helper()
	e, ok := errors.AsType[*notify.Error](err)
	if !ok {
		t.Fatalf("error %v, want %s", err, code)
	}
	if e.Kind != kind || e.Code != code || e.Field != field {
		t.Errorf("refused as kind %s, code %s, field %q (%s); want %s %s %q", e.Kind, e.Code, e.Field, e.Msg, kind, code, field)
	}
	if e.Msg == "" || strings.Contains(e.Msg, "secret") {
		t.Errorf("the refusal names no rule, or repeats what was sent: %s", e.Msg)
	}
}

func TestBadSingles(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 300<<10)
	deep := strings.Repeat(`{"a":`, 31) + "1" + strings.Repeat("}", 31)
	for _, c := range []struct{ name, body, code, field string }{
		{"empty", ``, "bad_json", ""},
		{"space only", `  `, "bad_json", ""},
		{"not JSON", `hello`, "bad_json", ""},
		{"cut off", `{"channel":"push"`, "bad_json", ""},
		{"array", `[]`, "wrong_type", ""},
		{"null", `null`, "required", "channel"},
		{"trailing data", single(`"to":{"user_id":"u"}`) + `{}`, "bad_json", ""},
		{"unknown field", single(`"priority":1`), "unknown_field", "priority"},
		{"unknown inner field", single(`"to":{"user":"u1"}`), "unknown_field", "to.user"},
		{"case matters", single(`"Channel":"push","channel":"push"`), "unknown_field", "Channel"},
		{"duplicate key", single(`"content":{"title":"a","title":"b"}`), "duplicate_key", "content.title"},
		{"duplicate key in variables", single(`"to":{"user_id":"u","variables":{"a":1,"a":2}}`), "duplicate_key", "to.variables.a"},
		{"bad UTF-8", single("\"to\":{\"user_id\":\"a\xff\"}"), "bad_utf8", "to.user_id"},
		{"lone surrogate", single(`"to":{"user_id":"\ud800"}`), "bad_json", "to.user_id"},
		{"lone surrogate before more", single(`"to":{"user_id":"\ud800\"}, secret"}`), "bad_json", "to.user_id"},
		{"wrong type", single(`"to":{"user_id":7}`), "wrong_type", "to.user_id"},
		{"wrong type of to", single(`"to":"u1"`), "wrong_type", "to"},
		{"bad time", single(`"expires_at":"tomorrow"`), "wrong_type", "expires_at"},
		{"number for time", single(`"expires_at":17`), "wrong_type", "expires_at"},
		{"variables are a list", single(`"to":{"user_id":"u","variables":[]}`), "wrong_type", "to.variables"},
		{"data is a string", single(`"content":{"title":"t","data":"x"}`), "wrong_type", "content.data"},
		{"too deep", single(`"content":{"title":"t","data":` + deep + `}`), "too_deep", "content.data"},
		{"no channel", single(`"channel":""`), "required", "channel"},
		{"unknown channel", single(`"channel":"fax"`), "unknown_channel", "channel"},
		{"no category", single(`"category":null`), "required", "category"},
		{"unknown category", single(`"category":"OTP"`), "unknown_category", "category"},
		{"no user", single(`"to":{}`), "user_id_required", "to.user_id"},
		{"control character", single(`"to":{"user_id":"a\nb"}`), "bad_user_id", "to.user_id"},
		{"DEL", single("\"to\":{\"user_id\":\"a\x7f\"}"), "bad_user_id", "to.user_id"},
		{"push address", single(`"to":{"user_id":"u","address":"token"}`), "bad_address", "to.address"},
		{"push address without token", single(`"to":{"user_id":"u","address":"apns:"}`), "bad_address", "to.address"},
		{"phone", single(`"channel":"sms","content":{"body":"b"},"to":{"user_id":"u","address":"0170 123"}`), "bad_address", "to.address"},
		{"mail", single(`"channel":"email","content":{"title":"t","body":"b"},"to":{"user_id":"u","address":"a@b@c"}`), "bad_address", "to.address"},
		{"sms takes no marketing", single(`"channel":"sms","category":"marketing","content":{"body":"b"}`), "category_not_for_channel", "category"},
		{"switched off", single(`"channel":"email","category":"digest","content":{"title":"t","body":"b"}`), "category_refused", "category"},
		{"past expiry", single(`"expires_at":"2020-01-01T00:00:00Z"`), "expires_in_past", "expires_at"},
		{"expiry at the epoch", single(`"expires_at":"1970-01-01T00:00:00Z"`), "expires_in_past", "expires_at"},
		{"expires before it is sent", single(`"scheduled_at":"2999-01-02T00:00:00Z","expires_at":"2999-01-01T00:00:00Z"`), "scheduled_too_far", "scheduled_at"},
		{"push without content", single(`"content":{}`), "content_required", "content"},
		{"email without subject", single(`"channel":"email","content":{"body":"b"}`), "content_required", "content.title"},
		{"email without text", single(`"channel":"email","content":{"title":"b"}`), "content_required", "content.body"},
		{"sms without text", single(`"channel":"sms","content":{}`), "content_required", "content.body"},
		{"sms with title", single(`"channel":"sms","content":{"body":"b","title":"t"}`), "not_for_channel", "content.title"},
		{"push with html", single(`"content":{"title":"t","html":"<b>"}`), "not_for_channel", "content.html"},
		{"push with from", single(`"content":{"title":"t","from":"x"}`), "not_for_channel", "content.from"},
		{"email with data", single(`"channel":"email","content":{"title":"t","body":"b","data":{"a":1}}`), "not_for_channel", "content.data"},
		{"sms with collapse key", single(`"channel":"sms","content":{"body":"b","collapse_key":"c"}`), "not_for_channel", "content.collapse_key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{Refuse: map[notify.Channel][]notify.Category{notify.Email: {notify.Digest}}})
			_, err := r.Single(t.Context(), request.Meta{Caller: "c", Key: "k", Route: "r"}, []byte(c.body))
			refused(t, err, notify.KindInvalid, c.code, c.field)
			if r.stored() {
				t.Error("something is stored")
			}
			// The same as an item of a batch, beside a good one.
			if c.code == "bad_json" || c.name == "array" {
				return
			}
			a, err := r.Batch(t.Context(), request.Meta{Caller: "c"}, []byte("["+c.body+","+single(`"to":{"user_id":"good"}`)+"]"))
			if err != nil {
				t.Fatal(err)
			}
			if got := string(a.Body); !strings.Contains(got, `{"error":{"code":"`+c.code+`"`) || !strings.HasSuffix(got, `"accepted":1,"rejected":1}`) {
				t.Errorf("batch answer %s", got)
			}
			if n := len(r.log.records()); n != 1 {
				t.Errorf("%d records, want the good item's", n)
			}
		})
	}
	for field, n := range map[string]int{
		"content.title": notify.MaxTitle, "content.body": notify.MaxBody, "content.html": notify.MaxHTML, "content.template": notify.MaxTemplate,
		"content.collapse_key": maxCollapseKey, "content.from": maxFrom, "to.user_id": notify.MaxUserID, "to.address": notify.MaxAddress,
	} {
		t.Run("limit of "+field, func(t *testing.T) {
			t.Parallel()
			send := func(n int) error {
				r := newRig(t, Config{})
				value, channel := long[:n], "push"
				content := map[string]string{"title": "t", "body": "b"}
				to := map[string]string{"user_id": "u1"}
				switch outer, inner, _ := strings.Cut(field, "."); {
				case field == "to.address":
					to[inner] = "fcm:" + value[4:]
				case field == "content.from":
					content[inner] = value[17:] + " <shop@example.a>"
				case outer == "to":
					to[inner] = value
				default:
					content[inner] = value
				}
				if field == "content.html" || field == "content.from" || field == "content.template" {
					channel = "email"
				}
				body := fmt.Sprintf(`{"channel":%q,"category":"otp","to":%s,"content":%s}`, channel, object1(to), object1(content))
				_, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(body))
				if err != nil && r.stored() {
					t.Error("refused and stored")
				}
				return err
			}
			if err := send(n); err != nil {
				t.Errorf("%d bytes: %v", n, err)
			}
			e, _ := errors.AsType[*notify.Error](send(n + 1))
			if e == nil || e.Kind != notify.KindTooLarge || e.Field != field {
				t.Errorf("%d bytes: %+v, want too large in %s", n+1, e, field)
			}
		})
	}
}

// object1 is m as JSON.
func object1(m map[string]string) string {
	var parts []string
	for k, v := range m {
		parts = append(parts, fmt.Sprintf("%q:%q", k, v))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func TestSingle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		body := single(`"to":{"user_id":"u1","address":"fcm:abc","variables":{"name":"Ann"}},"expires_at":"2000-01-02T00:00:00Z","scheduled_at":"1999-01-01T00:00:00Z"`)
		a, err := r.Single(t.Context(), request.Meta{Caller: "shop", Trace: "00-trace"}, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		es := r.log.envelopes(t)
		if len(es) != 1 {
			t.Fatalf("%d records", len(es))
		}
		e := es[0]
		want := fmt.Sprintf(`{"notification_id":%q,"status":"ACCEPTED"}`, e.ID(0).String())
		if a.Status != 201 || string(a.Body) != want {
			t.Errorf("answer %d %s, want %s", a.Status, a.Body, want)
		}
		if e.Caller != "shop" || e.Trace != "00-trace" || e.Accepted != time.Now().UnixMilli() || e.NotBefore != 0 || e.Expires == 0 || e.Content.Title != "t" {
			t.Errorf("envelope %+v", e)
		}
		rd, rcv := notify.ReadReceivers(e.Receivers), notify.Receiver{}
		if !rd.Next(&rcv) || string(rcv.User) != "u1" || string(rcv.Address) != "fcm:abc" || string(rcv.Variables) != `{"name":"Ann"}` {
			t.Errorf("receiver %+v", rcv)
		}
		if got := string(r.log.records()[0].Key); got != "u1" {
			t.Errorf("record key %q, want the user", got)
		}
	})
}

// TestNeverBeforeScheduledAt: times are kept by the millisecond. A schedule that is
// finer is due at the next one, and ends no later than it says.
func TestNeverBeforeScheduledAt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // starts at 2000-01-01
		const times = `"scheduled_at":"2000-01-01T01:00:00.000000001Z","expires_at":"2000-01-01T02:00:00.000999Z"`
		r := newRig(t, Config{})
		for _, send := range []func() (request.Answer, error){
			func() (request.Answer, error) {
				return r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(single(times)))
			},
			func() (request.Answer, error) { // what is no plain item takes the strict decoder
				return r.Batch(t.Context(), request.Meta{Caller: "c"}, []byte("["+single(times)+","+single(strings.Replace(times, "expires", `expire\u0073`, 1))+"]"))
			},
			func() (request.Answer, error) {
				return r.Fanout(t.Context(), request.Meta{Caller: "c"}, []byte(strings.TrimSuffix(string(fanout(`["a"]`)), "}")+","+times+"}"))
			},
		} {
			if a, err := send(); err != nil {
				t.Fatal(string(a.Body), err)
			}
		}
		at := time.Now().Add(time.Hour).UnixMilli()
		if len(r.later.ts) != 4 {
			t.Fatalf("%d timers", len(r.later.ts))
		}
		for i, tm := range r.later.ts {
			var e notify.Envelope
			if err := notify.DecodeEnvelope(tm.Payload, &e); err != nil {
				t.Fatal(err)
			}
			if tm.FireAt != at+1 || e.Expires != at+time.Hour.Milliseconds() {
				t.Errorf("timer %d fires %d ms after, and expires %d ms after", i, tm.FireAt-at, e.Expires-at-time.Hour.Milliseconds())
			}
		}
	})
}

func TestScheduled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // starts at 2000-01-01
		at := time.Now().Add(time.Hour)
		body := func(category string) []byte {
			return []byte(single(`"category":"` + category + `","scheduled_at":"` + at.Format(time.RFC3339) + `"`))
		}
		r := newRig(t, Config{Jitter: time.Minute})
		a, err := r.Single(t.Context(), request.Meta{Caller: "c"}, body("otp"))
		if err != nil || !strings.HasSuffix(string(a.Body), `"status":"SCHEDULED"}`) {
			t.Fatalf("%s, %v", a.Body, err)
		}
		for range 50 {
			if _, err := r.Single(t.Context(), request.Meta{Caller: "c"}, body("marketing")); err != nil {
				t.Fatal(err)
			}
		}
		moved := false
		for i, tm := range r.later.ts {
			var e notify.Envelope
			if err := notify.DecodeEnvelope(tm.Payload, &e); err != nil {
				t.Fatal(err)
			}
			late := tm.FireAt - at.UnixMilli()
			if late < 0 || late > time.Minute.Milliseconds() || (i == 0 && late != 0) || e.NotBefore != tm.FireAt || tm.Target != e.Lane().Topic() || tm.Kind != 1 {
				t.Errorf("timer %d fires %d ms after scheduled_at, to %s, kind %d", i, late, tm.Target, tm.Kind)
			}
			moved = moved || late > 0
		}
		if late, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(single(`"category":"marketing","scheduled_at":"`+time.Now().Add(10*time.Second).Format(time.RFC3339)+`"`))); err != nil {
			t.Fatal(late, err)
		}
		soon := r.later.ts[51].FireAt - time.Now().Add(10*time.Second).UnixMilli()
		if soon < 0 || soon > 1000 {
			t.Errorf("what is due in 10 s is moved by %d ms, a tenth is 1000", soon)
		}
		if !moved || len(r.later.ts) != 52 || len(r.log.records()) != 0 {
			t.Errorf("jitter seen %v, %d timers, %d records", moved, len(r.later.ts), len(r.log.records()))
		}

		r.stores.Later, r.rules.later = nil, false
		_, err = r.Single(t.Context(), request.Meta{Caller: "c"}, body("otp"))
		refused(t, err, notify.KindInvalid, "scheduling_disabled", "scheduled_at")
		_, err = r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(single(`"scheduled_at":"2000-02-01T00:00:00Z","expires_at":"2000-01-20T00:00:00Z"`)))
		refused(t, err, notify.KindInvalid, "scheduling_disabled", "scheduled_at")
	})
}

func TestMeta(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	try := func(m request.Meta, code, field string) {
		t.Helper()
		_, err := r.Single(t.Context(), m, []byte(singleBody))
		refused(t, err, notify.KindInvalid, code, field)
	}
	try(request.Meta{}, "bad_caller", "")
	try(request.Meta{Caller: strings.Repeat("c", notify.MaxCaller+1)}, "bad_caller", "")
	try(request.Meta{Caller: "c", Key: strings.Repeat("k", 256)}, "bad_idempotency_key", "Idempotency-Key")
	try(request.Meta{Caller: "c", Key: "a\x00"}, "bad_idempotency_key", "Idempotency-Key")
	try(request.Meta{Caller: "c", ContentType: "text/plain"}, "unsupported_media_type", "Content-Type")
	if r.stored() {
		t.Error("something is stored")
	}
	if _, err := r.Single(t.Context(), request.Meta{Caller: "c", ContentType: "Application/JSON; charset=utf-8"}, []byte(singleBody)); err != nil {
		t.Error(err)
	}
}

func TestGate(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.gate.err = errDown
	for _, body := range []string{singleBody, single(`"category":"marketing"`)} {
		_, err := r.Single(t.Context(), request.Meta{Caller: "c", Key: "k"}, []byte(body))
		if notify.KindOf(err) != notify.KindUnavailable || notify.RetryAfterOf(err) <= 0 {
			t.Errorf("%v, want unavailable with a Retry-After", err)
		}
	}
	if r.stored() {
		t.Error("something is stored behind a closed gate")
	}
}

// What is left of a log that is nearly full is not for bulk lanes.
func TestBulkGate(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.stores.BulkGate = &fakeGate{err: errDown}
	m := request.Meta{Caller: "c"}
	marketing := single(`"category":"marketing"`)
	fan := func(category string) []byte {
		return []byte(`{"channel":"push","category":"` + category + `","content":{"body":"b"},"receivers":["u"]}`)
	}
	for name, err := range map[string]error{
		"single":  second(r.Single(t.Context(), m, []byte(marketing))),
		"batch":   second(r.Batch(t.Context(), m, []byte("["+marketing+"]"))),
		"fan-out": second(r.Fanout(t.Context(), m, fan("digest"))),
	} {
		if notify.KindOf(err) != notify.KindUnavailable || r.stored() {
			t.Errorf("a bulk %s: %v, stored: %v", name, err, r.stored())
		}
	}
	for name, err := range map[string]error{
		"single":      second(r.Single(t.Context(), m, []byte(singleBody))),
		"mixed batch": second(r.Batch(t.Context(), m, []byte("["+marketing+","+singleBody+"]"))),
		"fan-out":     second(r.Fanout(t.Context(), m, fan("alert"))),
	} {
		if err != nil {
			t.Errorf("a %s that is not bulk: %v", name, err)
		}
	}
}

func second(_ request.Answer, err error) error { return err }

// In an overload nothing of a large request is stored, and a single of otp is.
func TestDecodingWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := limit.NewAdmission(limit.AdmissionConfig{})
		r := newRig(t, Config{Admission: a})
		done, err := a.Decode(t.Context(), notify.Alert)
		if err != nil {
			t.Fatal(err)
		}
		m := request.Meta{Caller: "c", Key: "k"}
		began := time.Now()
		for name, err := range map[string]error{
			"batch":   second(r.Batch(t.Context(), m, []byte("["+singleBody+"]"))),
			"fan-out": second(r.Fanout(t.Context(), m, []byte(`{"channel":"push","category":"marketing","content":{"body":"b"},"receivers":["u"]}`))),
		} {
			if e, _ := errors.AsType[*notify.Error](err); e == nil || e.Code != "overloaded" || r.stored() {
				t.Errorf("a %s: %v", name, err)
			}
		}
		if took := time.Since(began); took < 2*time.Second {
			t.Errorf("refused after %s", took)
		}
		if _, err := r.Single(t.Context(), m, []byte(singleBody)); err != nil {
			t.Error("a single:", err)
		}
		done()
		if _, err := r.Batch(t.Context(), request.Meta{Caller: "c"}, []byte("["+singleBody+"]")); err != nil {
			t.Error("after it:", err)
		}
	})
}

// A full disk refuses what is due later, also in a batch beside what is due now.
func TestLaterGate(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.laterGate.err = &notify.Error{Kind: notify.KindUnavailable, Code: "disk_full", RetryAfter: 5 * time.Second}
	at := `"scheduled_at":"` + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + `"`
	_, err := r.Single(t.Context(), request.Meta{Caller: "c", Key: "k"}, []byte(single(at)))
	if e, _ := errors.AsType[*notify.Error](err); e == nil || e.Code != "disk_full" || e.RetryAfter <= 0 {
		t.Errorf("%v, want disk_full with a Retry-After", err)
	}
	_, err = r.Batch(t.Context(), request.Meta{Caller: "c", Key: "b"}, []byte("["+singleBody+","+single(at)+"]"))
	if notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("a batch: %v", err)
	}
	if r.stored() {
		t.Error("something is stored on a full disk")
	}
	if _, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(singleBody)); err != nil {
		t.Error("what is due now is the log's:", err)
	}
}

// What was admitted once is not refused by switches that were moved since.
func TestResumedIsAdmitted(t *testing.T) {
	t.Parallel()
	r := newRules(Config{Refuse: map[notify.Channel][]notify.Category{notify.Push: {notify.Digest}}}.withDefaults())
	for _, terms := range []terms{
		{channel: notify.SMS, category: notify.Marketing, content: notify.Content{Body: "b"}},
		{channel: notify.Push, category: notify.Digest, content: notify.Content{Body: "b"}},
	} {
		if r.admit(&terms, 1, r.off) == nil {
			t.Errorf("%s by %s is admitted", terms.category, terms.channel)
		}
		if err := r.admit(&terms, 1, 0); err != nil {
			t.Errorf("%s by %s, admitted before: %v", terms.category, terms.channel, err)
		}
	}
}
