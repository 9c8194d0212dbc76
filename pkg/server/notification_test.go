package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

const t0 = 1_800_000_000_000 // ms: when the tests' notifications were accepted

func done(state notify.State, ex ...notify.Exception) notify.Row {
	return notify.Row{DoneUpTo: 1, StartedUpTo: 1, Done: true, Default: notify.Exception{State: state}, Exceptions: ex, Updated: t0 + 1000}
}

func get[T any](t *testing.T, s *Server, path, token string) (v T) {
	t.Helper()
	got := ask(s, "GET", path, token, "")
	if got.status != 200 {
		t.Fatalf("GET %s: %d %s", path, got.status, got.body)
	}
	got.into(t, &v)
	return v
}

func TestNotificationStatus(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, func(d *Deps) { d.Now = func() time.Time { return time.UnixMilli(t0 + 500) } })
	tok := token(t, "shop", api.ScopeRead)
	n := byte(0)
	f := func(name string, rows []notify.Row, want notify.State, attempts int, code, next string) {
		t.Helper()
		n++
		id := w.single(n, "shop", "u1", rows...)
		got := get[api.Timeline](t, s, "/v1/notifications/"+id.String()+"/timeline", tok)
		if got.Status.Status != want.String() || got.Attempts != attempts || got.Code != code || !strings.Contains(got.Next, next) {
			t.Errorf("%s: %s attempts=%d code=%q next=%q", name, got.Status.Status, got.Attempts, got.Code, got.Next)
		}
		plain := get[api.Status](t, s, "/v1/notifications/"+id.String(), tok)
		if plain.Status != want.String() || plain.UserID != "u1" || plain.Caller != "shop" || plain.Channel != "sms" || plain.Category != "otp" || plain.AcceptedAt.UnixMilli() != t0 {
			t.Errorf("%s: %+v", name, plain)
		}
	}
	retry := notify.Exception{State: notify.Deferred, Retry: true, Wake: t0 + 5000, Code: "http_503", Provider: "twilio:A"}
	quiet := notify.Exception{State: notify.Deferred, Wake: t0 + 3_600_000, Code: "quiet_hours"}
	second := func(r notify.Row) notify.Row { r.Key.Attempt, r.Index = 1, []uint32{0}; return r }
	f("nothing yet", nil, notify.Accepted, 0, "", "waits in notifications-sms for a worker. It expires at 2027-01-15T08:05:00.000Z")
	f("claimed", []notify.Row{{StartedUpTo: 1, Starts: 1}}, notify.Accepted, 0, "", "has claimed it")
	f("sent", []notify.Row{done(notify.Sent)}, notify.Sent, 1, "", "receipt")
	f("delivered by receipt", []notify.Row{done(notify.Sent), {Key: notify.RowKey{Kind: notify.RowReceipt}, DoneUpTo: 1, Done: true, Default: notify.Exception{State: notify.Delivered}}}, notify.Delivered, 1, "", "delivered")
	f("retry", []notify.Row{done(notify.Sent, retry)}, notify.Deferred, 1, "http_503", "retried at 2027-01-15T08:00:05.000Z (http_503)")
	f("quiet hours", []notify.Row{done(notify.Sent, quiet)}, notify.Deferred, 0, "quiet_hours", "waits until 2027-01-15T09:00:00.000Z (quiet_hours)")
	f("second attempt claimed", []notify.Row{done(notify.Sent, retry), second(notify.Row{StartedUpTo: 1})}, notify.Deferred, 1, "http_503", "claimed attempt 2")
	f("second attempt sent", []notify.Row{done(notify.Sent, retry), second(done(notify.Sent))}, notify.Sent, 2, "", "receipt")
	f("failed", []notify.Row{done(notify.Failed, notify.Exception{State: notify.Failed, Code: "twilio_30003"})}, notify.Failed, 1, "twilio_30003", "failed feed of shop")
	f("no address", []notify.Row{done(notify.Failed, notify.Exception{State: notify.Failed, Code: notify.CodeNoAddress})}, notify.Failed, 0, "no_address", "no_address")
	f("suppressed", []notify.Row{done(notify.Suppressed, notify.Exception{State: notify.Suppressed, Code: "opted_out"})}, notify.Suppressed, 0, "opted_out", "not sent (opted_out)")
	f("unknown", []notify.Row{done(notify.Unknown)}, notify.Unknown, 1, "", "may or may not")

	receipt := func(attempt uint16, s notify.State, code string) notify.Row {
		x := notify.Exception{State: s, Code: code, Provider: "twilio:A", Receipt: "SM1"}
		return notify.Row{Key: notify.ReceiptKey(notify.RowKey{Attempt: attempt}, 0, 0, s), Done: true, Default: x, Exceptions: []notify.Exception{x}}
	}
	cut := retry
	cut.Class, cut.Code = notify.ClassAmbiguous, "connection_lost"
	f("a receipt before the retry", []notify.Row{done(notify.Sent, cut), receipt(0, notify.Delivered, "")}, notify.Delivered, 1, "",
		"A receipt says that it was delivered. Its retry at 2027-01-15T08:00:05.000Z will find the receipt and end without a call.")
	f("a receipt of a failure before the retry", []notify.Row{done(notify.Sent, cut), receipt(0, notify.Failed, "twilio_30005")}, notify.Failed, 1, "twilio_30005",
		"A receipt says that it failed (twilio_30005); it is in the failed feed of shop. Its retry at 2027")
	f("a receipt before the claimed retry", []notify.Row{done(notify.Sent, cut), second(notify.Row{StartedUpTo: 1}), receipt(0, notify.Delivered, "")},
		notify.Delivered, 1, "", "Attempt 2 is already claimed by a worker; it ends without a call, unless")
	f("a receipt before the outcome", []notify.Row{{StartedUpTo: 1}, receipt(0, notify.Delivered, "")}, notify.Delivered, 1, "", "has not stored its outcome yet")
	f("the retry found the receipt", []notify.Row{done(notify.Sent, cut), receipt(0, notify.Delivered, ""),
		second(done(notify.Sent, notify.Exception{State: notify.Delivered, Class: notify.ClassReceipt}))}, notify.Delivered, 1, "", "It was delivered; nothing more happens.")

	held := func(at int64, class notify.Class) notify.Row {
		return notify.Row{StartedUpTo: 1, Starts: 1, Exceptions: []notify.Exception{{
			State: notify.Deferred, Wake: at, Class: class, Code: "http_403", Provider: "sendgrid"}}}
	}
	f("held", []notify.Row{held(t0+900_000, notify.ClassConfig)}, notify.Deferred, 0, "http_403",
		"It waits until 2027-01-15T08:15:00.000Z: the circuit of sendgrid is open (http_403). It expires")
	f("held by a limit", []notify.Row{held(t0+900_000, notify.ClassThrottled)}, notify.Deferred, 0, "http_403", "sendgrid is blocked (http_403)")
	f("held no more", []notify.Row{held(t0+100, notify.ClassConfig)}, notify.Deferred, 0, "http_403", "A worker has claimed attempt 1")
	f("a retry that is held", []notify.Row{done(notify.Sent, retry), second(held(t0+900_000, notify.ClassConfig))}, notify.Deferred, 1, "http_403", "the circuit of sendgrid is open")
	past := retry
	past.Wake = t0 + 200
	f("a retry that is due", []notify.Row{done(notify.Sent, past)}, notify.Deferred, 1, "http_503",
		"It has been due since 2027-01-15T08:00:00.200Z (http_503) and waits in notifications-sms-dlq for a worker.")
	past.Retry = false
	f("a deferral that is due", []notify.Row{done(notify.Sent, past)}, notify.Deferred, 0, "http_503", "and waits in notifications-sms for a worker.")

	stands := LaneStop{Account: "twilio:A", Code: "twilio_20003", Until: time.UnixMilli(t0 + 300_000)}
	s.deps.LaneStop = func(l notify.Lane) (LaneStop, bool) { return stands, l.Channel == notify.SMS }
	f("not met by a worker", nil, notify.Accepted, 0, "", "It waits in notifications-sms until 2027-01-15T08:05:00.000Z: the circuit of twilio:A is open (twilio_20003).")
	past.Retry = true
	f("a retry that is due in a lane that stands", []notify.Row{done(notify.Sent, past)}, notify.Deferred, 1, "http_503", "waits in notifications-sms-dlq until 2027-01-15T08:05:00.000Z: the circuit")
}

// A mail that may be held for others of its content is not said to wait for a
// worker alone.
func TestMailMayBeHeld(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, func(d *Deps) { d.MailHold = 5 * time.Second })
	for n, cat := range []notify.Category{notify.OTP, notify.Transactional} {
		id := w.single(byte(n), "shop", "u1")
		e := &w.found[n].Envelope
		e.Channel, e.Category = notify.Email, cat
		got := get[api.Timeline](t, s, "/v1/notifications/"+id.String()+"/timeline", token(t, "shop", api.ScopeRead)).Next
		want := "It waits in notifications-email for a worker"
		if !cat.Critical() {
			want += ", which may hold it for up to 5s so that mails of the same content share a call"
		}
		if !strings.HasPrefix(got, want+".") {
			t.Errorf("%v: %q", cat, got)
		}
	}
}

func TestTimelineTellsEveryStep(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	id := w.single(1, "shop", "u1",
		// Handed over in another order than it happened.
		notify.Row{Key: notify.RowKey{Kind: notify.RowReceipt}, DoneUpTo: 1, Done: true, Updated: t0 + 9000, Default: notify.Exception{State: notify.Delivered, Provider: "twilio:B"}},
		notify.Row{Key: notify.RowKey{Attempt: 1}, Index: []uint32{0}, DoneUpTo: 1, Done: true, Updated: t0 + 6000,
			Exceptions: []notify.Exception{{State: notify.Sent, Provider: "twilio:B", Receipt: "SM2"}}},
		notify.Row{DoneUpTo: 1, Done: true, Updated: t0 + 1000,
			Exceptions: []notify.Exception{{State: notify.Deferred, Retry: true, Wake: t0 + 5000, Code: "http_503", Provider: "twilio:A"}}},
	)
	w.cancels[id.String()] = engine.Cancel{Scope: id.String(), Caller: "shop", At: t0 + 7000}
	got := get[api.Timeline](t, s, "/v1/notifications/"+id.String()+"/timeline", token(t, "shop", api.ScopeRead))
	var lines []string
	for _, e := range got.Events {
		line := fmt.Sprintf("%s %s a%d %s %s %s", e.Type, e.State, e.Attempt, e.Provider, e.Code, e.ProviderMessageID)
		if e.Until != nil {
			line += " until " + e.Until.Format(time.TimeOnly)
		}
		lines = append(lines, strings.TrimSpace(e.At.Format("05.000")+" "+line))
	}
	want := `00.000 accepted ACCEPTED a0
01.000 deferred DEFERRED a1 twilio:A http_503  until 08:00:05
06.000 attempt SENT a2 twilio:B  SM2
07.000 cancel  a0
09.000 receipt DELIVERED a0 twilio:B`
	if text := strings.Join(lines, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}

// A receipt stands where it came among the attempts, but never before its own.
func TestTimelinePlacesReceipts(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	row := func(attempt uint16, at int64, x notify.Exception) notify.Row {
		return notify.Row{Key: notify.RowKey{Attempt: attempt}, Index: []uint32{0}, Done: true, Updated: t0 + at, Exceptions: []notify.Exception{x}}
	}
	receipt := func(attempt uint16, at int64) notify.Row {
		x := notify.Exception{State: notify.Delivered, Receipt: "SM1"}
		return notify.Row{Key: notify.ReceiptKey(notify.RowKey{Attempt: attempt}, 0, 0, notify.Delivered), Done: true, Updated: t0 + at, Default: x}
	}
	retry := notify.Exception{State: notify.Deferred, Retry: true, Wake: t0 + 3000, Code: "connection_lost", Provider: "twilio:A"}
	f := func(n byte, want string, rows ...notify.Row) {
		t.Helper()
		got := get[api.Timeline](t, s, "/v1/notifications/"+w.single(n, "shop", "u1", rows...).String()+"/timeline", token(t, "shop", api.ScopeRead))
		var lines []string
		for _, e := range got.Events[1:] {
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s a%d %s", e.Type, e.State, e.Attempt, e.Detail)))
		}
		if text := strings.Join(lines, ", "); text != want {
			t.Errorf("got  %s\nwant %s", text, want)
		}
	}
	f(1, "deferred DEFERRED a1, receipt DELIVERED a0, outcome DELIVERED a0 a receipt had settled it; no further call was made",
		row(0, 1000, retry), receipt(0, 2000), row(1, 3000, notify.Exception{State: notify.Delivered, Class: notify.ClassReceipt, Receipt: "SM1"}))
	f(2, "deferred DEFERRED a1, receipt DELIVERED a0, attempt SENT a2, receipt DELIVERED a0",
		row(0, 1000, retry), receipt(0, 500), receipt(1, 5000), row(1, 4000, notify.Exception{State: notify.Sent, Receipt: "SM2"}))
	f(3, "attempt SENT a1, receipt DELIVERED a0", row(0, 1000, notify.Exception{State: notify.Sent, Receipt: "SM1"}), receipt(0, 500))
	f(4, "deferred DEFERRED a0", notify.Row{StartedUpTo: 1, Starts: 1, Updated: t0, Exceptions: []notify.Exception{{State: notify.Deferred, Wake: t0 + 5000, Code: "http_403", Provider: "sendgrid"}}})
}

func TestNotificationsThatAreNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	id := w.single(1, "shop", "u1")
	tok := token(t, "shop", api.ScopeRead)
	f := func(id string, status int) {
		t.Helper()
		if got := ask(s, "GET", "/v1/notifications/"+id, tok, ""); got.status != status {
			t.Errorf("%s: %d %s", id, got.status, got.body)
		}
	}
	f(id.String(), 200)
	f(id.String()+"-0", 404)
	f("ntf_nonsense", 404)
	f(notify.ID{Base: baseOf(9)}.String(), 404)
	f(notify.ID{Base: baseOf(9), FanOut: true}.String(), 404)
	if got := ask(s, "GET", "/v1/notifications/"+id.String(), token(t, "sre", api.ScopeRead, api.ScopeOperate), ""); got.status != 200 {
		t.Errorf("an operator: %d", got.status)
	}
	w.findErr = &notify.Error{Kind: notify.KindGone, Code: "retention_passed", Msg: "removed"}
	f(id.String(), 410)
	w.findErr = notify.Unavailable("history", 3*time.Second, nil)
	got := ask(s, "GET", "/v1/notifications/"+id.String(), tok, "")
	if got.status != 503 || got.header.Get("Retry-After") != "3" {
		t.Errorf("%d Retry-After %q", got.status, got.header.Get("Retry-After"))
	}
	w.findErr = fmt.Errorf("disk /var/secret is on fire")
	got = ask(s, "GET", "/v1/notifications/"+id.String(), tok, "")
	if p := got.problem(t); p.Status != 500 || strings.Contains(got.body, "secret") {
		t.Errorf("%s", got.body)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	w := newWorld()
	now := time.UnixMilli(t0 + 500)
	s := w.start(t, Config{}, func(d *Deps) {
		d.Now = func() time.Time { return now }
		d.Auth = newVerifier(t, AuthConfig{KeyFile: keyFile(t, signingKey()), Now: func() time.Time { return now }})
	})
	tok := tokenAt(t, now, "shop", api.ScopeSend)
	open := w.single(1, "shop", "u1")
	sent := w.single(2, "shop", "u1", done(notify.Sent))
	w.fanout(baseOf(3), "shop", campaign, 4, 2, nil)
	w.camps[campaign] = engine.Campaign{ID: campaign, Caller: "shop"}
	f := func(path string, status int, scope string) {
		t.Helper()
		got := ask(s, "DELETE", path, tok, "")
		if got.status != status {
			t.Errorf("%s: %d %s", path, got.status, got.body)
			return
		}
		if status != http.StatusAccepted {
			return
		}
		var c api.Cancelled
		got.into(t, &c)
		if c.Scope != scope || c.CancelledAt.UnixMilli() != t0+500 || c.BindsAt.Sub(c.CancelledAt) != time.Second || w.cancels[scope].Caller != "shop" {
			t.Errorf("%s: %+v, stored %+v", path, c, w.cancels[scope])
		}
	}
	fan := notify.ID{Base: baseOf(3), Index: 2, FanOut: true}
	f("/v1/notifications/"+open.String(), 202, open.String())
	f("/v1/notifications/"+sent.String(), 409, "")
	f("/v1/notifications/"+fan.String(), 202, fan.String())
	f("/v1/notifications/"+notify.ID{Base: fan.Base}.String(), 202, notify.ID{Base: fan.Base}.String())
	f("/v1/campaigns/"+campaign, 202, campaign)
	f("/v1/campaigns/cmp_x", 404, "")
	now = now.Add(time.Minute)
	f("/v1/notifications/"+open.String(), 202, open.String()) // the first answer again
}

func TestFanoutSummaryPages(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	base := baseOf(3)
	w.fanout(base, "shop", campaign, 10, 4, func(chunk int) []notify.Row {
		switch chunk {
		case 0: // 0, 1, 3 sent, 2 suppressed
			r := done(notify.Sent, notify.Exception{Pos: 2, State: notify.Suppressed, Code: "opted_out"})
			return []notify.Row{r}
		case 1: // 4 deferred then sent, 5 sent then delivered, 6 and 7 sent
			r := done(notify.Sent, notify.Exception{Pos: 0, State: notify.Deferred, Retry: true})
			again := done(notify.Failed)
			again.Key.Attempt, again.Count, again.Index = 1, 1, []uint32{4}
			receipt := done(notify.Delivered)
			receipt.Key.Kind, receipt.Key.First = notify.RowReceipt, 5
			return []notify.Row{r, again, receipt}
		}
		return nil // 8, 9 wait
	})
	w.camps[campaign] = engine.Campaign{ID: campaign, Caller: "shop", Created: t0, Parts: 2, Accepted: 12, Rejected: 1, Bases: []notify.Base{baseOf(8), base}}
	tok := token(t, "shop", api.ScopeRead)
	want := map[string]int{"SENT": 5, "SUPPRESSED": 1, "FAILED": 1, "DELIVERED": 1, "ACCEPTED": 2}
	for _, path := range []string{"/v1/notifications/" + notify.ID{Base: base}.String(), "/v1/campaigns/" + campaign} {
		whole := get[api.Summary](t, s, path, tok)
		if fmt.Sprint(whole.Counts) != fmt.Sprint(want) || !whole.Complete || whole.Counted != 10 || whole.Next != "" {
			t.Errorf("%s: %+v", path, whole)
		}
		if whole.Accepted != 12 || whole.Pending == nil || *whole.Pending != 2 {
			t.Errorf("%s: accepted %d, pending %v, want 12 and 2", path, whole.Accepted, whole.Pending)
		}
		sum, after, pages := map[string]int{}, "", 0
		for {
			p := get[api.Summary](t, s, path+"?limit=3&after="+after, tok)
			for k, n := range p.Counts {
				sum[k] += n
			}
			pages++
			if p.Complete {
				break
			}
			if p.Counted != 3 || p.Accepted != 12 || (p.Pending != nil) != (after == "") || p.Pending != nil && *p.Pending != 9 {
				t.Errorf("%+v", p)
			}
			after = p.Next
		}
		if fmt.Sprint(sum) != fmt.Sprint(want) || pages != 4 {
			t.Errorf("%s: %d pages with %v", path, pages, sum)
		}
	}
	for _, q := range []string{"after=x", "after=9.0", "after=0.-1", "limit=0", "limit=99999999", "limit=x", "limit=1&limit=2", "lmit=1"} {
		if got := ask(s, "GET", "/v1/campaigns/"+campaign+"?"+q, tok, ""); got.status != 422 {
			t.Errorf("%s: %d %s", q, got.status, got.body)
		}
	}
	one := get[api.Status](t, s, "/v1/notifications/"+notify.ID{Base: base, Index: 5, FanOut: true}.String(), tok)
	if one.Status != "DELIVERED" {
		t.Errorf("%+v", one)
	}
	if got := ask(s, "GET", "/v1/notifications/"+notify.ID{Base: base}.String()+"/timeline", tok, ""); got.status != 422 {
		t.Errorf("timeline of a fan-out: %d", got.status)
	}
}

// The short cut of StateOf says what the fold says, whatever the rows are.
func TestStateOfIsTheFold(t *testing.T) {
	t.Parallel()
	states := []notify.State{notify.Deferred, notify.Sent, notify.Delivered, notify.Failed, notify.Suppressed, notify.Expired, notify.Cancelled, notify.Unknown}
	rapid.Check(t, func(r *rapid.T) {
		size := uint32(rapid.IntRange(1, 6).Draw(r, "size"))
		first := uint32(rapid.IntRange(0, 3).Draw(r, "first")) * 100
		state := func() notify.State { return rapid.SampledFrom(states).Draw(r, "state") }
		row := func(count uint32) notify.Row {
			row := notify.Row{Count: count, DoneUpTo: uint32(rapid.IntRange(0, int(count)).Draw(r, "done")), Default: notify.Exception{State: state()}}
			row.StartedUpTo = uint32(rapid.IntRange(int(row.DoneUpTo), int(count)).Draw(r, "started"))
			if row.Done = rapid.Bool().Draw(r, "whole"); row.Done {
				row.DoneUpTo = count
			}
			waits := rapid.Bool().Draw(r, "waits")
			for p := range count {
				if waits && !row.Done && p == row.DoneUpTo {
					row.Exceptions = append(row.Exceptions, notify.Exception{Pos: p, State: notify.Deferred})
				} else if rapid.IntRange(0, 3).Draw(r, "exception") == 0 {
					row.Exceptions = append(row.Exceptions, notify.Exception{Pos: p, State: state(), Retry: rapid.Bool().Draw(r, "retry")})
				}
			}
			return row
		}
		var rows []notify.Row
		if rapid.Bool().Draw(r, "original") {
			rows = append(rows, row(size))
		}
		for n := range rapid.IntRange(0, 3).Draw(r, "derived") {
			var index []uint32
			for p := range size {
				if rapid.Bool().Draw(r, "in") {
					index = append(index, first+p)
				}
			}
			if len(index) == 0 {
				continue
			}
			d := row(uint32(len(index)))
			d.Index = index
			d.Key = notify.RowKey{Epoch: uint16(n / 2), Attempt: uint16(n), First: index[0]}
			rows = append(rows, d)
		}
		if rapid.Bool().Draw(r, "receipt") {
			rc := row(1)
			rc.Key = notify.RowKey{Kind: notify.RowReceipt, First: first + uint32(rapid.IntRange(0, int(size)-1).Draw(r, "of"))}
			rows = append(rows, rc)
		}
		for p := range size {
			if got, want := notify.StateOf(rows, first+p, p), notify.Fold(rows, first+p, p).State; got != want {
				r.Fatalf("position %d: %v, the fold says %v; rows %+v", p, got, want, rows)
			}
		}
	})
}
