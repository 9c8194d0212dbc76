package trigger

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

const hook = `"callback_url":"https://shop.example/hooks/x"`

func (p *plant) register(body string) (request.Answer, error) {
	return p.svc.Register(context.Background(), request.Meta{Caller: "shop", Route: "POST /v1/triggers"}, []byte(body))
}

// Each rule has a code, and nothing is stored if a rule is broken.
func TestRegisterRefuses(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		f := func(body, code, field string) {
			t.Helper()
			_, err := p.register(body)
			kind := notify.KindInvalid
			if code == "payload_too_large" {
				kind = notify.KindTooLarge
			}
			refused(t, err, kind, code, field)
		}
		f(``, "bad_json", "")
		f(`{`, "bad_json", "")
		f(`[]`, "wrong_type", "")
		f(`{} {}`, "bad_json", "")
		f(`{`+hook+`,"delay_seconds":1,"x":1}`, "unknown_field", "x")
		f(`{`+hook+`,"delay_seconds":1,"delay_seconds":2}`, "duplicate_key", "delay_seconds")
		f(`{`+hook+`,"Delay_Seconds":1}`, "unknown_field", "Delay_Seconds")
		f(`{"delay_seconds":1}`, "required", "callback_url")
		f(`{`+hook+`}`, "required", "delay_seconds")
		f(`{`+hook+`,"delay_seconds":1,"fire_at":"2026-01-01T00:00:00Z"}`, "time_twice", "fire_at")
		f(`{`+hook+`,"delay_seconds":-1}`, "out_of_range", "delay_seconds")
		f(`{`+hook+`,"delay_seconds":"1"}`, "wrong_type", "delay_seconds")
		f(`{`+hook+`,"delay_seconds":1e300}`, "out_of_range", "delay_seconds")
		f(`{`+hook+`,"delay_seconds":31622401}`, "too_far", "delay_seconds")
		f(`{`+hook+`,"fire_at":"9999-01-01T00:00:00Z"}`, "too_far", "fire_at")
		f(`{`+hook+`,"fire_at":"tomorrow"}`, "wrong_type", "fire_at")
		f(`{`+hook+`,"delay_seconds":1,"payload":5}`, "wrong_type", "payload")
		f(`{`+hook+`,"delay_seconds":1,"payload":true}`, "wrong_type", "payload")
		f(`{`+hook+`,"delay_seconds":1,"payload":"a","payload_base64":"YQ=="}`, "payload_twice", "payload_base64")
		f(`{`+hook+`,"delay_seconds":1,"payload_base64":"YQ"}`, "bad_base64", "payload_base64")
		f(`{`+hook+`,"delay_seconds":1,"payload_base64":"YR=="}`, "bad_base64", "payload_base64")
		f(`{`+hook+`,"delay_seconds":1,"payload_base64":"YQ==\n"}`, "bad_base64", "payload_base64")
		f(`{`+hook+`,"delay_seconds":1,"payload":"`+strings.Repeat("x", 4097)+`"}`, "payload_too_large", "payload")
		f(`{`+hook+`,"delay_seconds":1,"payload":["`+strings.Repeat("x", 4093)+`"]}`, "payload_too_large", "payload")
		f(`{`+hook+`,"delay_seconds":1,"payload_base64":"`+base64.StdEncoding.EncodeToString(make([]byte, 4097))+`"}`, "payload_too_large", "payload_base64")
		f(`{`+hook+`,"delay_seconds":1,"payload":`+strings.Repeat("[", 32)+strings.Repeat("]", 32)+`}`, "too_deep", "payload")
		f(`{`+hook+`,"delay_seconds":1,"payload":"`+"\xff"+`"}`, "bad_utf8", "payload")
		f(`{`+hook+`,"delay_seconds":1,"retry_schedule_seconds":[]}`, "out_of_range", "retry_schedule_seconds")
		f(`{`+hook+`,"delay_seconds":1,"retry_schedule_seconds":[`+strings.Repeat("1,", 20)+`1]}`, "out_of_range", "retry_schedule_seconds")
		f(`{`+hook+`,"delay_seconds":1,"retry_schedule_seconds":[5,0.5]}`, "out_of_range", "retry_schedule_seconds[1]")
		f(`{`+hook+`,"delay_seconds":1,"retry_schedule_seconds":[86401]}`, "out_of_range", "retry_schedule_seconds[0]")
		f(`{`+hook+`,"delay_seconds":1,"retry_schedule_seconds":["5"]}`, "wrong_type", "retry_schedule_seconds[0]")
		f(`{`+hook+`,"delay_seconds":1,"max_lateness_seconds":-1}`, "out_of_range", "max_lateness_seconds")
		f(`{`+hook+`,"delay_seconds":1,"max_lateness_seconds":5,"late_policy":"maybe"}`, "unknown_policy", "late_policy")
		f(`{`+hook+`,"delay_seconds":1,"late_policy":"drop"}`, "required", "max_lateness_seconds")
		f(`{`+hook+`,"delay_seconds":1,"jitter_seconds":3601}`, "out_of_range", "jitter_seconds")
		f(`{`+hook+`,"delay_seconds":1,"jitter_seconds":1,"exact":true}`, "exact_with_jitter", "jitter_seconds")
		f(`{"delay_seconds":1,"callback_url":"https://shop.example/other"}`, "url_not_registered", "callback_url")
		f(`{"delay_seconds":1,"callback_url":"https://bank.example/hooks/x"}`, "url_not_registered", "callback_url")
		f(`{"delay_seconds":1,"callback_url":"http://shop.example/hooks/x"}`, "url_scheme", "callback_url")
		f(`{"delay_seconds":1,"callback_url":"https://shop.example/hooks/../x"}`, "url_path", "callback_url")

		p.putCaller(engine.Caller{ID: "shop", CallbackURLs: []string{"https://10.0.0.1/", "https://shop.example:8443/"}})
		f(`{"delay_seconds":1,"callback_url":"https://10.0.0.1/x"}`, "address_denied", "callback_url")
		f(`{"delay_seconds":1,"callback_url":"https://shop.example:8443/x"}`, "port_denied", "callback_url")
		if rows, err := p.store.Triggers().List(context.Background(), "", 0, engine.TriggerCursor{}, 10); err != nil || len(rows) != 0 || p.wheel.rows != 0 {
			t.Errorf("%d rows, %d index rows, %v", len(rows), p.wheel.rows, err)
		}

		for _, c := range []struct {
			caller engine.Caller
			kind   notify.Kind
			code   string
		}{
			{engine.Caller{ID: "off", Disabled: true}, notify.KindForbidden, "caller_disabled"},
			{engine.Caller{ID: "mute", CallbackURLs: []string{base("mute")}, Secrets: []engine.CallerSecret{{Secret: testSecret, Expires: 1}}}, notify.KindConflict, "no_secret"},
			{engine.Caller{ID: "sealed", CallbackURLs: []string{base("sealed")}, Secrets: []engine.CallerSecret{{Secret: engine.SealedPrefix + "v1:0123456789abcdef:AAAA"}}}, notify.KindConflict, "secret_sealed"},
		} {
			p.putCaller(c.caller)
			_, err := p.svc.Register(context.Background(), request.Meta{Caller: c.caller.ID}, []byte(`{}`))
			refused(t, err, c.kind, c.code, "")
		}
		_, err := p.svc.Register(context.Background(), request.Meta{Caller: ""}, nil)
		refused(t, err, notify.KindInvalid, "bad_caller", "")
		_, err = p.svc.Register(context.Background(), request.Meta{Caller: "shop", Key: "a\x01"}, nil)
		refused(t, err, notify.KindInvalid, "bad_idempotency_key", "Idempotency-Key")
		_, err = p.svc.Register(context.Background(), request.Meta{Caller: "shop", ContentType: "text/plain"}, nil)
		refused(t, err, notify.KindInvalid, "unsupported_media_type", "Content-Type")
	})
}

// The bytes accepted are the bytes delivered, in the form they were given.
func TestPayloadForms(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.run()
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		b64 := base64.StdEncoding.EncodeToString
		f := func(field, want string) {
			t.Helper()
			a, err := p.register(`{` + hook + `,"delay_seconds":1` + field + `}`)
			if err != nil {
				t.Fatalf("%s: %v", field, err)
			}
			var out struct {
				ID string `json:"trigger_id"`
			}
			if err := json.Unmarshal(a.Body, &out); err != nil {
				t.Fatal(err)
			}
			pass(3 * time.Second)
			calls := p.sink.of(out.ID)
			if len(calls) != 1 || string(calls[0].body) != `{"trigger_id":"`+out.ID+`"`+want+`}` {
				t.Fatalf("%s: %d calls, %s", field, len(calls), calls[0].body)
			}
			if !json.Valid(calls[0].body) {
				t.Errorf("%s is not JSON", calls[0].body)
			}
		}
		f(``, `,"payload":""`)
		f(`,"payload":null`, `,"payload":""`)
		f(`,"payload":"plain"`, `,"payload":"plain"`)
		f(`,"payload":"\u00e9 \"q\" \\ \n"`, `,"payload":"é \"q\" \\ \n"`)
		f(`,"payload":"{\"a\":1}"`, `,"payload":"{\"a\":1}"`) // text stays text
		f(`,"payload":{"b": 1,  "a":[1,2.50 ,"\u00e9"]}`, `,"payload":{"b": 1,  "a":[1,2.50 ,"\u00e9"]}`)
		f(`,"payload":[ ]`, `,"payload":[ ]`)
		f(`,"payload_base64":"`+b64(all)+`"`, `,"payload_base64":"`+b64(all)+`"`)
		f(`,"payload_base64":"`+b64([]byte("text"))+`"`, `,"payload_base64":"`+b64([]byte("text"))+`"`)
		f(`,"payload":"`+strings.Repeat("x", 4096)+`"`, `,"payload":"`+strings.Repeat("x", 4096)+`"`)
		f(`,"payload":["`+strings.Repeat("x", 4092)+`"]`, `,"payload":["`+strings.Repeat("x", 4092)+`"]`)
		f(`,"payload_base64":"`+b64(make([]byte, 4096))+`"`, `,"payload_base64":"`+b64(make([]byte, 4096))+`"`)
	})
}

// The answer has the fire time after jitter. The jitter only moves it later, is bounded, and is
// left out if the request says exact.
func TestFireTime(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.scfg.Jitter = 10 * time.Second
		var err error
		if p.svc, err = New(p.scfg); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		fire := func(extra string) time.Duration {
			t.Helper()
			a, err := p.register(`{` + hook + `,` + extra + `}`)
			if err != nil {
				t.Fatalf("%s: %v", extra, err)
			}
			var out struct {
				ID string    `json:"trigger_id"`
				At time.Time `json:"fire_at"`
			}
			if err := json.Unmarshal(a.Body, &out); err != nil {
				t.Fatal(err)
			}
			if row := p.row(out.ID); row.FireAt != out.At.UnixMilli() || row.NextAt != row.FireAt {
				t.Errorf("%s: answered %v, the row has %d", extra, out.At, row.FireAt)
			}
			return out.At.Sub(now)
		}
		moved := 0
		for range 50 {
			d := fire(`"delay_seconds":60`)
			if d < time.Minute || d > 66*time.Second { // a tenth of the delay is less than the 10 s
				t.Fatalf("fires after %v", d)
			}
			if d != time.Minute {
				moved++
			}
			if d := fire(`"delay_seconds":60,"jitter_seconds":1`); d < time.Minute || d > 61*time.Second {
				t.Fatalf("fires after %v", d)
			}
		}
		if moved < 40 {
			t.Errorf("%d of 50 were moved", moved)
		}
		if d := fire(`"delay_seconds":60,"exact":true`); d != time.Minute {
			t.Errorf("exact fires after %v", d)
		}
		if d := fire(`"delay_seconds":60,"jitter_seconds":0`); d != time.Minute {
			t.Errorf("without jitter fires after %v", d)
		}
		if d := fire(`"delay_seconds":0.0001,"exact":true`); d != time.Millisecond {
			t.Errorf("a tenth of a millisecond is %v", d)
		}
		if d := fire(`"fire_at":"` + now.Add(1500*time.Microsecond).Format(time.RFC3339Nano) + `","exact":true`); d != 2*time.Millisecond {
			t.Errorf("half a millisecond was rounded to %v", d)
		}
		if d := fire(`"fire_at":"1999-01-01T00:00:00Z","exact":true`); d != 0 {
			t.Errorf("the past fires after %v", d)
		}
		if d := fire(`"delay_seconds":31622400,"exact":true`); d != 366*24*time.Hour {
			t.Errorf("the horizon fires after %v", d)
		}
	})
}

// A batch has a result for each item, and a bad item does not make other items fail.
func TestBatch(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.run()
		good, bad := `{`+hook+`,"delay_seconds":2}`, `{`+hook+`,"delay_seconds":-2}`
		twice := `{` + hook + `,"delay_seconds":2,"delay_seconds":2}`
		f := func(contentType, body string) {
			t.Helper()
			a, err := p.svc.RegisterBatch(context.Background(), request.Meta{Caller: "shop", Route: "b", ContentType: contentType}, []byte(body))
			if err != nil {
				t.Fatal(err)
			}
			var out struct {
				Results []struct {
					ID    string `json:"trigger_id"`
					Error struct{ Code, Field, Detail string }
				}
				Accepted, Rejected int
			}
			if err := json.Unmarshal(a.Body, &out); err != nil {
				t.Fatalf("%s: %v", a.Body, err)
			}
			if a.Status != 200 || out.Accepted != 2 || out.Rejected != 2 || len(out.Results) != 4 {
				t.Fatalf("%s", a.Body)
			}
			if r := out.Results[1]; r.ID != "" || r.Error.Code != "out_of_range" || r.Error.Field != "delay_seconds" || r.Error.Detail == "" {
				t.Errorf("bad item: %+v", r)
			}
			if r := out.Results[2]; r.Error.Code != "duplicate_key" {
				t.Errorf("item with a field twice: %+v", r)
			}
			if out.Results[0].ID == out.Results[3].ID {
				t.Error("two items have one id")
			}
			pass(4 * time.Second)
			p.want(out.Results[0].ID, engine.TriggerFired)
			p.want(out.Results[3].ID, engine.TriggerFired)
		}
		f("", "["+strings.Join([]string{good, bad, twice, good}, ",")+"]")
		f("application/json; charset=utf-8", "["+strings.Join([]string{good, bad, twice, good}, ",")+"]")
		f("application/x-ndjson", strings.Join([]string{good, bad, "", twice, good}, "\n"))

		for body, code := range map[string]string{
			"": "bad_json", "[": "bad_json", "{}": "wrong_type", "[]": "empty", `[1`: "bad_json", `[{}]x`: "bad_json",
			"[" + strings.TrimSuffix(strings.Repeat(good+",", 1001), ",") + "]": "too_many_items",
		} {
			_, err := p.svc.RegisterBatch(context.Background(), request.Meta{Caller: "shop"}, []byte(body))
			if e, is := err.(*notify.Error); !is || e.Code != code {
				t.Errorf("%.20q: %v, want %s", body, err, code)
			}
		}
		_, err := p.svc.RegisterBatch(context.Background(), request.Meta{Caller: "shop", ContentType: "text/csv"}, []byte("x"))
		refused(t, err, notify.KindInvalid, "unsupported_media_type", "Content-Type")
	})
}

// The number of a caller's waiting triggers is limited. Triggers that end make room, and the
// triggers of other processes are counted before a request is refused.
func TestPendingLimit(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.putCaller(engine.Caller{ID: "shop", CallbackURLs: []string{base("shop")}, MaxPending: 5})
		p.run()
		var ids []string
		for i := range 5 {
			ids = append(ids, p.create("shop", fmt.Sprintf(`"delay_seconds":%d`, 10+i)))
		}
		full := func() {
			t.Helper()
			_, err := p.tryCreate(p.svc, "shop", `"delay_seconds":5`, "")
			refused(t, err, notify.KindThrottled, "too_many_pending", "")
			if notify.RetryAfterOf(err) == 0 {
				t.Error("no Retry-After")
			}
		}
		full()
		if _, err := p.svc.Cancel(context.Background(), "shop", ids[0]); err != nil {
			t.Fatal(err)
		}
		p.create("shop", `"delay_seconds":100`)
		full()
		pass(12 * time.Second) // one more has fired
		p.create("shop", `"delay_seconds":100`)

		// A second process ends some triggers. The count of this process is wrong until it asks the
		// store.
		other, err := New(Config{
			Triggers: p.store.Triggers(), Callers: p.store.Callers(), Idem: p.store.Idem(), Later: p.wheel, Egress: p.scfg.Egress,
		})
		if err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		for range 3 {
			p.create("shop", `"delay_seconds":100`)
		}
		full()
		rows, err := other.List(context.Background(), "shop", engine.TriggerPending, "", 10)
		if err != nil || len(rows) != 5 {
			t.Fatalf("%d wait, %v", len(rows), err)
		}
		for _, r := range rows {
			if _, err := other.Cancel(context.Background(), "shop", r.ID); err != nil {
				t.Fatal(err)
			}
		}
		full()
		pass(time.Minute)
		p.create("shop", `"delay_seconds":100`)
		if n := p.scfg.Census.Waiting("shop"); n != 1 {
			t.Errorf("%d are counted as waiting, want 1", n)
		}
	})
}

// On a full disk a trigger is neither made nor moved, and nothing is stored. A cancel still works.
func TestFullDisk(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		id := p.create("shop", `"delay_seconds":600`)
		rows := p.wheel.rows
		full := &notify.Error{Kind: notify.KindUnavailable, Code: "disk_full", RetryAfter: 5 * time.Second}
		cfg := p.scfg
		cfg.Gate = func() error { return full }
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"", "k"} {
			if _, err := p.tryCreate(s, "shop", `"delay_seconds":600`, key); !errors.Is(err, full) {
				t.Errorf("register with key %q: %v", key, err)
			}
		}
		before := p.row(id)
		if _, err := s.RescheduleTo(t.Context(), "shop", id, When{Delay: new(time.Minute)}); !errors.Is(err, full) {
			t.Errorf("reschedule: %v", err)
		}
		if after := p.row(id); after.Version != before.Version || p.wheel.rows != rows {
			t.Errorf("%d rows, %+v", p.wheel.rows-rows, after)
		}
		// Once there is room the same key makes a trigger.
		if _, err := p.tryCreate(p.svc, "shop", `"delay_seconds":600`, "k"); err != nil {
			t.Errorf("with room: %v", err)
		}
		if _, err := s.Cancel(t.Context(), "shop", id); err != nil {
			t.Errorf("cancel: %v", err)
		}
	})
}

// If keys cannot be looked up, a request with a key is refused, unless its caller would rather
// register twice than not at all.
func TestRegisterWithoutKeys(t *testing.T) {
	t.Parallel()
	p := newPlant(t, nil)
	cfg, plan := p.scfg, faulty.NewPlan(1)
	cfg.Idem = faultyIdem{p.store.Idem(), plan}
	svc, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	heal := plan.Add(faulty.Rule{Method: "Idem.*", Err: faulty.ErrDown})
	body := []byte(`{"callback_url":"` + base("shop") + `x","delay_seconds":100}`)
	m := request.Meta{Caller: "shop", Key: "k", Route: "POST /v1/triggers"}
	if _, err := svc.Register(t.Context(), m, body); notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("%v, want unavailable", err)
	}
	m.AtLeastOnce = true
	for range 2 {
		if a, err := svc.Register(t.Context(), m, body); err != nil || a.Status != 201 || !a.Unguarded {
			t.Errorf("%+v, %v", a, err)
		}
	}
	if rows, err := svc.List(t.Context(), "shop", engine.TriggerPending, "", 10); err != nil || len(rows) != 2 {
		t.Errorf("%d triggers, %v; want one a request", len(rows), err)
	}
	heal()
	if a, err := svc.Register(t.Context(), m, body); err != nil || a.Unguarded {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := svc.Register(t.Context(), m, body); err != nil || !a.Replayed {
		t.Errorf("%+v, %v", a, err)
	}
}

// faultyIdem are keys whose calls fail as a plan says.
type faultyIdem struct {
	request.Idem
	plan *faulty.Plan
}

func (w faultyIdem) Reserve(ctx context.Context, r engine.Reservation, now int64) (engine.Reservation, bool, error) {
	return faulty.Get2(ctx, w.plan, "Idem.Reserve", func() (engine.Reservation, bool, error) { return w.Idem.Reserve(ctx, r, now) })
}

func (w faultyIdem) TakeOver(ctx context.Context, old engine.Reservation, owner string, leaseUntil int64) (bool, error) {
	return faulty.Get(ctx, w.plan, "Idem.TakeOver", func() (bool, error) { return w.Idem.TakeOver(ctx, old, owner, leaseUntil) })
}

func (w faultyIdem) Freeze(ctx context.Context, r engine.Reservation) error {
	return w.plan.Do(ctx, "Idem.Freeze", func() error { return w.Idem.Freeze(ctx, r) })
}

func (w faultyIdem) Finish(ctx context.Context, key engine.IdemKey, status int, body []byte, expires int64) error {
	return w.plan.Do(ctx, "Idem.Finish", func() error { return w.Idem.Finish(ctx, key, status, body, expires) })
}

func (w faultyIdem) Release(ctx context.Context, held engine.Reservation) error {
	return w.plan.Do(ctx, "Idem.Release", func() error { return w.Idem.Release(ctx, held) })
}

func (w faultyIdem) Purge(ctx context.Context, now int64) (int, error) {
	return faulty.Get(ctx, w.plan, "Idem.Purge", func() (int, error) { return w.Idem.Purge(ctx, now) })
}

// TestLoadGrantOfTriggers: the triggers of a load run are accepted and counted only if its grant
// names triggers.
func TestLoadGrantOfTriggers(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.run()
		taken := 0
		load := &request.Load{Targets: []string{"trigger"}, UseRate: func(n int) error { taken += n; return nil }}
		one := `{` + hook + `,"delay_seconds":2}`
		send := func() (request.Answer, error) {
			return p.svc.Register(context.Background(), request.Meta{Caller: "shop", Route: "r", Load: load}, []byte(one))
		}
		if _, err := send(); err != nil || taken != 1 {
			t.Errorf("%v, counted %d", err, taken)
		}
		a, err := p.svc.RegisterBatch(context.Background(), request.Meta{Caller: "shop", Route: "b", Load: load}, []byte("["+one+","+one+"]"))
		if err != nil || taken != 3 {
			t.Errorf("%s %v, counted %d", a.Body, err, taken)
		}
		load.Targets = []string{"push"}
		if _, err := send(); notify.KindOf(err) != notify.KindForbidden || taken != 3 {
			t.Errorf("%v, counted %d", err, taken)
		}
	})
}
