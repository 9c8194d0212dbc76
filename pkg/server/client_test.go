package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// serving runs w's server and returns a client of it.
func (w *world) serving(t *testing.T, change func(*Deps), scopes ...string) *api.Client {
	t.Helper()
	s := w.start(t, Config{}, change)
	stop := run(t, s)
	tr := api.NewTransport(0)
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return &api.Client{
		BaseURL: "http://" + s.Addr(), HTTPClient: &http.Client{Transport: tr},
		Token: fixed(token(t, "shop", scopes...)), Backoff: time.Millisecond,
	}
}

// Every method of the client against the server.
func TestClientEndToEnd(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.intake = func(_ context.Context, route string, m request.Meta, body []byte) (request.Answer, error) {
		answers := map[string]string{
			"single": `{"notification_id":"ntf_1","status":"ACCEPTED"}`,
			"batch":  `{"results":[{"notification_id":"ntf_1","status":"ACCEPTED"},{"error":{"code":"required","field":"channel"}}],"accepted":1,"rejected":1}`,
			"fanout": `{"first_id":"ntf_2-0","accepted":2,"rejected_count":1,"rejected":[{"index":1,"code":"duplicate_user"}]}`,
		}
		if !json.Valid(body) {
			return request.Answer{}, notify.Invalid("bad_json", "", string(body))
		}
		return request.Answer{Status: 201, Body: []byte(answers[route]), Replayed: m.Key == "again"}, nil
	}
	c := w.serving(t, func(d *Deps) {
		d.Doctor = func(context.Context) (any, error) { return []api.Finding{{Check: "store", Level: "ok"}}, nil }
		d.Lag = func(context.Context) (any, error) { return []api.GroupLag{{Group: "g", Lag: 3}}, nil }
		d.Debug = func(context.Context) (any, error) {
			return api.Debug{Texts: map[string]string{"a.txt": "x"}, Binaries: map[string][]byte{"b": {1}}}, nil
		}
	}, api.Scopes[:]...)
	ctx := t.Context()
	single := w.single(1, "shop", "u 1/x", done(notify.Sent))
	open := w.single(2, "shop", "u2")
	w.fanout(baseOf(3), "shop", campaign, 6, 3, nil)
	w.camps[campaign] = engine.Campaign{ID: campaign, Caller: "shop", Bases: []notify.Base{baseOf(3)}}
	w.dead = []engine.DeadLetter{{ID: single, Caller: "shop", Seq: 4, Code: "http_400", LastFailed: 1}}

	check := func(name string, got, want any, err error) {
		t.Helper()
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v %v, want %v", name, got, err, want)
		}
	}
	a, err := c.Send(ctx, api.Notification{Channel: "sms", Category: "otp", To: api.Receiver{UserID: "u"}, Content: api.Content{Body: "x"}}, "k")
	check("Send", a.NotificationID, "ntf_1", err)
	b, err := c.SendBatch(ctx, []api.Notification{{}, {}}, "")
	check("SendBatch", b.Results[1].Error.Code, "required", err)
	f, err := c.Fanout(ctx, api.Fanout{Receivers: api.Receivers{{UserID: "u"}, {UserID: "u"}, {UserID: "v", Address: "+1"}}}, "")
	check("Fanout", []any{f.FirstID, f.RejectedCount, f.Rejected[0].Index}, []any{"ntf_2-0", 1, 1}, err)
	r, err := c.Post(ctx, "/v1/notifications", api.TypeJSON, []byte("{}"), "again")
	check("Post", []any{r.Status, r.Replayed, r.RequestID != ""}, []any{201, true, true}, err)
	n, err := c.Notification(ctx, single.String())
	check("Notification", []any{n.Status, n.UserID}, []any{"SENT", "u 1/x"}, err)
	sum, err := c.Summary(ctx, "ntf_"+baseOf(3).String(), api.Page{Limit: 4})
	check("Summary", []any{sum.Counts, sum.Complete, sum.Next}, []any{map[string]int{"ACCEPTED": 4}, false, "0.4"}, err)
	sum, err = c.Campaign(ctx, campaign, api.Page{After: sum.Next})
	check("Campaign", []any{sum.Counts, sum.Complete}, []any{map[string]int{"ACCEPTED": 2}, true}, err)
	tl, err := c.Timeline(ctx, single.String())
	check("Timeline", []any{len(tl.Events), tl.Status.Status}, []any{4, "SENT"}, err)
	x, err := c.Cancel(ctx, open.String())
	check("Cancel", x.Scope, open, err)
	x, err = c.CancelCampaign(ctx, campaign)
	check("CancelCampaign", x.Scope, campaign, err)
	h, err := c.UserNotifications(ctx, "u 1/x", "", 10)
	check("UserNotifications", h.Items[0].NotificationID, single, err)
	v, err := c.PutUser(ctx, api.User{UserID: "u 1/x", OptOut: []string{"sms"}, QuietHours: &api.QuietHours{From: "22:00", To: "07:00"}})
	check("PutUser", v.Version, 1, err)
	u, err := c.User(ctx, "u 1/x")
	check("User", []any{u.UserID, u.OptOut, u.QuietHours.To}, []any{"u 1/x", []string{"sms"}, "07:00"}, err)
	p, err := c.Failed(ctx, 3, time.Second, 5)
	check("Failed", []any{p.Items[0].Code, p.After}, []any{"http_400", 4}, err)
	d, err := c.DeadLetters(ctx, api.LetterFilter{Caller: "shop", Since: 1, Until: time.Now().UnixMilli()}, "", 5)
	check("DeadLetters", len(d.Items), 1, err)
	one, err := c.DeadLetter(ctx, single.String())
	check("DeadLetter", one.Seq, 4, err)
	findings, err := c.Doctor(ctx)
	check("Doctor", findings, []api.Finding{{Check: "store", Level: "ok"}}, err)
	lags, err := c.Lag(ctx)
	check("Lag", lags, []api.GroupLag{{Group: "g", Lag: 3}}, err)
	bug, err := c.Debug(ctx)
	check("Debug", []any{bug.Texts["a.txt"], bug.Binaries["b"]}, []any{"x", []byte{1}}, err)
	check("Ready", "", "", c.Ready(ctx))

	_, err = c.Notification(ctx, notify.ID{Base: baseOf(9)}.String())
	if e, ok := errors.AsType[*notify.Error](err); !ok || e.Kind != notify.KindNotFound || e.Code != "notification_not_found" || e.Msg != "no such notification" {
		t.Errorf("%#v", err)
	}
	_, err = c.PutUser(ctx, api.User{UserID: "u 1/x", Version: 77})
	if notify.KindOf(err) != notify.KindConflict {
		t.Errorf("%v", err)
	}
	c.BaseURL = "http://127.0.0.1:1"
	if _, err := c.User(ctx, "u"); notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("%v", err)
	}
}

func TestClientRepeatsOnlyWhatIsSafe(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var mu sync.Mutex
	var fail []error // of the next requests
	calls := 0
	w.intake = func(context.Context, string, request.Meta, []byte) (request.Answer, error) {
		mu.Lock()
		defer mu.Unlock()
		if calls++; len(fail) > 0 {
			err := fail[0]
			fail = fail[1:]
			return request.Answer{}, err
		}
		return request.Answer{Status: 201, Body: []byte(`{}`)}, nil
	}
	c := w.serving(t, nil, api.ScopeSend)
	c.Retries = 2
	away := notify.Unavailable("log", time.Nanosecond, nil) // Retry-After: 1
	throttled := &notify.Error{Kind: notify.KindThrottled, Code: "slow", RetryAfter: time.Nanosecond}
	running := &notify.Error{Kind: notify.KindConflict, Code: "idempotency_running", RetryAfter: time.Nanosecond}
	conflict := &notify.Error{Kind: notify.KindConflict, Code: "campaign_cancelled"}
	invalid := notify.Invalid("required", "channel", "")
	f := func(name, key string, errs []error, wantCalls int, want notify.Kind) {
		t.Helper()
		mu.Lock()
		calls, fail = 0, errs
		mu.Unlock()
		start := time.Now()
		_, err := c.Send(t.Context(), api.Notification{}, key)
		mu.Lock()
		defer mu.Unlock()
		if got := notify.KindOf(err); calls != wantCalls || (err == nil) != (want == 0) || (err != nil && got != want) {
			t.Errorf("%s: %d calls, %v", name, calls, err)
		}
		if waits := time.Duration(wantCalls-1) * time.Second; time.Since(start) < waits {
			t.Errorf("%s: Retry-After was not kept: %v", name, time.Since(start))
		}
	}
	f("503 with a key", "k", []error{away}, 2, 0)
	f("503 without", "", []error{away}, 1, notify.KindUnavailable)
	f("429 without a key", "", []error{throttled}, 2, 0)
	f("the key at work elsewhere", "k", []error{running}, 2, 0)
	f("another conflict", "k", []error{conflict}, 1, notify.KindConflict)
	f("a rule", "k", []error{invalid}, 1, notify.KindInvalid)
	f("too often", "k", []error{away, away, away}, 3, notify.KindUnavailable)
}

func receivers(n int) iter.Seq2[api.Receiver, error] {
	return func(yield func(api.Receiver, error) bool) {
		for i := range n {
			r := api.Receiver{UserID: fmt.Sprintf("user-%07d", i)}
			if i%1000 == 7 {
				r = api.Receiver{UserID: "ü\"" + r.UserID, Variables: json.RawMessage(`{"n":1}`)}
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// campaignIntake stores parts the way intake does: once each.
type campaignIntake struct {
	mu    sync.Mutex
	parts map[uint32][]string
	tries int
	fail  func(part uint32, try int) error
}

func (c *campaignIntake) take(_ context.Context, _ string, m request.Meta, body []byte) (request.Answer, error) {
	var f api.Fanout
	if err := json.Unmarshal(body, &f); err != nil {
		return request.Answer{}, notify.Invalid("bad_json", "", err.Error())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tries++
	if f.Campaign != campaign || f.Channel != "push" {
		return request.Answer{}, notify.Invalid("bad_campaign", "", f.Campaign)
	}
	_, replayed := c.parts[f.Part]
	users := make([]string, len(f.Receivers))
	for i, r := range f.Receivers {
		users[i] = r.UserID
	}
	if replayed && !slices.Equal(users, c.parts[f.Part]) {
		return request.Answer{}, &notify.Error{Kind: notify.KindMismatch, Code: api.CodeMismatch}
	}
	c.parts[f.Part] = users
	if c.fail != nil {
		if err := c.fail(f.Part, c.tries); err != nil {
			return request.Answer{}, err // stored, and answered with an error
		}
	}
	return request.Answer{Status: 201, Replayed: replayed, Body: fmt.Appendf(nil, `{"first_id":"ntf_%d-0","accepted":%d,"rejected_count":1,"rejected":[]}`, f.Part, len(users)-1)}, nil
}

func (c *campaignIntake) all() (users []string) {
	for _, part := range slices.Sorted(maps.Keys(c.parts)) {
		users = append(users, c.parts[part]...)
	}
	return users
}

func TestSendFanoutSplitsRepeatsAndResumes(t *testing.T) {
	t.Parallel()
	const n = 20_500
	w, in := newWorld(), &campaignIntake{parts: map[uint32][]string{}}
	w.intake = in.take
	c := w.serving(t, nil, api.ScopeSend)
	var want []string
	for r := range receivers(n) {
		want = append(want, r.UserID)
	}
	send := api.FanoutSend{
		Fanout:    api.Fanout{Campaign: campaign, Channel: "push", Category: "marketing", Content: api.Content{Title: "x"}},
		Receivers: receivers(n), PartSize: 1000, InFlight: 3,
	}

	// The first run breaks in the middle; some parts are answered with an error
	// although they are stored.
	broken := errors.New("stop here")
	stored := map[uint32]bool{}
	send.Done = func(p api.PartDone) error {
		if p.First != int64(p.Part)*1000 || p.Receivers != min(1000, n-int(p.First)) {
			t.Errorf("%+v", p)
		}
		if len(stored) == 8 {
			return broken
		}
		stored[p.Part] = true
		return nil
	}
	in.fail = func(_ uint32, try int) error {
		if try == 2 {
			return notify.Unavailable("log", time.Nanosecond, nil)
		}
		return nil
	}
	if _, err := c.SendFanout(t.Context(), send); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	// The second goes on with what the first has kept.
	send.Skip = func(part uint32) bool { return stored[part] }
	replayed := 0
	send.Done = func(p api.PartDone) error {
		if p.Replayed {
			replayed++
		}
		return nil
	}
	total, err := c.SendFanout(t.Context(), send)
	if err != nil {
		t.Fatal(err)
	}
	if total.Skipped != 8 || total.Parts != 13 || total.Receivers != n-8000 || total.Rejected != 13 || total.Accepted != n-8000-13 {
		t.Errorf("%+v", total)
	}
	if got := in.all(); !slices.Equal(got, want) {
		t.Errorf("%d receivers arrived, want %d, each once and in order", len(got), len(want))
	}
	if replayed == 0 {
		t.Error("the part that broke the first run was not stored by it")
	}
}

func TestSendFanoutStops(t *testing.T) {
	t.Parallel()
	// f sends with a server of its own: a request that the client gave up may
	// still be under way in the one before.
	f := func(name string, change func(*campaignIntake, *api.FanoutSend), check func(*campaignIntake, api.FanoutTotal, error) bool) {
		t.Helper()
		w, in := newWorld(), &campaignIntake{parts: map[uint32][]string{}}
		w.intake = in.take
		send := api.FanoutSend{Fanout: api.Fanout{Campaign: campaign, Channel: "push"}, Receivers: receivers(1000), PartSize: 100}
		change(in, &send)
		total, err := w.serving(t, nil, api.ScopeSend).SendFanout(t.Context(), send)
		in.mu.Lock()
		defer in.mu.Unlock()
		if !check(in, total, err) {
			t.Errorf("%s: %+v %v, %d parts", name, total, err, len(in.parts))
		}
	}
	bad := errors.New("line 151 is no user")
	f("at an error of the source", func(_ *campaignIntake, s *api.FanoutSend) {
		s.Receivers = func(yield func(api.Receiver, error) bool) {
			for r := range receivers(150) {
				if !yield(r, nil) {
					return
				}
			}
			yield(api.Receiver{}, bad)
		}
	}, func(_ *campaignIntake, total api.FanoutTotal, err error) bool {
		return errors.Is(err, bad) && total.Parts == 1
	})
	enough := errors.New("enough")
	f("when Done says so", func(_ *campaignIntake, s *api.FanoutSend) {
		s.Receivers = receivers(1 << 30) // would not end
		s.Done = func(api.PartDone) error { return enough }
	}, func(_ *campaignIntake, _ api.FanoutTotal, err error) bool { return errors.Is(err, enough) })
	f("at a refusal", func(in *campaignIntake, s *api.FanoutSend) {
		in.fail = func(uint32, int) error { return notify.Invalid("campaign_bad", "campaign", "no") }
	}, func(_ *campaignIntake, _ api.FanoutTotal, err error) bool {
		return notify.KindOf(err) == notify.KindInvalid
	})
	f("without a campaign", func(_ *campaignIntake, s *api.FanoutSend) { s.Fanout.Campaign = "" },
		func(in *campaignIntake, _ api.FanoutTotal, err error) bool {
			return notify.KindOf(err) == notify.KindInvalid && len(in.parts) == 0
		})
	f("never, but splits by bytes", func(_ *campaignIntake, s *api.FanoutSend) { s.PartBytes, s.PartSize = 1400, 1000 },
		func(in *campaignIntake, _ api.FanoutTotal, err error) bool {
			return err == nil && len(in.parts) == 11 && len(in.all()) == 1000
		})
}
