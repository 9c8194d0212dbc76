package server

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/schedule"
)

const laterShards = 4

func (w *world) schedules() *schedule.Service {
	return schedule.New(schedule.Config{
		Schedules: w.later.Schedules(), Timers: w.later.Timers(), Cold: w.later.ColdTimers(), Shards: engine.FixedShards(laterShards),
		Park: func(ctx context.Context, ts []engine.Timer) error {
			return w.later.Timers().Put(ctx, notify.SpreadOver(laterShards), ts)
		},
		Ended: func(_ context.Context, ts []engine.Timer) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended += len(ts)
			return nil
		},
	})
}

// schedule makes a request of a caller wait for a year: a single of user u1, or
// a fan-out of u0, u1 and u3 in two partitions; index 2 was refused.
func (w *world) schedule(t testing.TB, base notify.Base, caller string, fan bool) int64 {
	t.Helper()
	at := time.Now().Add(365*24*time.Hour).UnixMilli() / 60_000 * 60_000
	s := engine.Schedule{Base: base, Caller: caller, Channel: notify.Push, Category: notify.Marketing, FireAt: at, Created: t0, Receivers: 1, Accepted: 1}
	s.User = "u1"
	if fan {
		s.User = ""
		s.FanOut, s.Partitions, s.BlockSize, s.Receivers, s.Accepted = true, 2, 8, 4, 3
	}
	var ts []engine.Timer
	put := func(part uint16, indexes ...uint32) {
		var col notify.ReceiverWriter
		for _, i := range indexes {
			user := "u1"
			if fan {
				user = "u" + string(rune('0'+i))
			}
			col.Append(notify.Receiver{Index: i, User: []byte(user)})
		}
		c := notify.Chunk{Base: base, Partition: part}
		e := notify.Envelope{Chunk: c, FanOut: fan, Channel: s.Channel, Category: s.Category, Caller: caller, Accepted: t0, NotBefore: at, Count: uint32(len(indexes)), Receivers: col.Bytes()}
		ts = append(ts, engine.Timer{FireAt: at, ID: c.TimerID(0), Kind: 1, Target: e.Lane().Topic(), Payload: notify.AppendEnvelope(nil, &e), Head: base, Weight: e.Count})
	}
	put(0, 0)
	if fan {
		put(1, 1, 3)
	}
	if err := w.schedules().Put(t.Context(), []engine.Schedule{s}, ts); err != nil {
		t.Fatal(err)
	}
	return at
}

// release does what the timer engine does with a schedule that is due.
func (w *world) release(t testing.TB, base notify.Base) {
	t.Helper()
	v, err := w.schedules().Get(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	_, ts, err := w.schedules().Timers(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range ts {
		var e notify.Envelope
		if err := notify.DecodeEnvelope(x.Payload, &e); err != nil {
			t.Fatal(err)
		}
		rd := notify.ReadReceivers(e.Receivers)
		var rec notify.Receiver
		for pos := uint32(0); rd.Next(&rec); pos++ {
			w.add(engine.Found{ID: e.ID(rec.Index), Pos: pos, Envelope: e, User: rec.User}, nil)
		}
	}
}

func TestScheduledSingle(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	base := baseOf(1)
	at := w.schedule(t, base, "shop", false)
	id := "/v1/notifications/ntf_" + base.String()
	read, send := token(t, "shop", api.ScopeRead), token(t, "shop", api.ScopeSend)

	got := get[api.Status](t, s, id, read)
	if got.Status != "SCHEDULED" || got.UserID != "u1" || got.ScheduledAt.UnixMilli() != at || got.Channel != "push" || got.AcceptedAt.UnixMilli() != t0 {
		t.Errorf("%+v", got)
	}
	tl := get[api.Timeline](t, s, id+"/timeline", read)
	if len(tl.Events) != 1 || tl.Events[0].Type != "scheduled" || !strings.Contains(tl.Next, "It goes to notifications-push-bulk at "+formatTime(at)) {
		t.Errorf("%+v", tl)
	}
	if p := ask(s, "GET", id+"-0", read, "").problem(t); p.Status != 404 {
		t.Errorf("a receiver of a single: %+v", p)
	}

	for _, c := range []struct {
		body, code string
		status     int
	}{
		{`{}`, "required", 422},
		{`{"scheduled_at":"soon"}`, "wrong_type", 422},
		{`{"scheduled_at":"2027-01-01T00:00:00Z","to":1}`, "unknown_field", 422},
		{`{"scheduled_at":"2127-01-01T00:00:00Z"}`, "scheduled_too_far", 422},
	} {
		if got := ask(s, "PATCH", id, send, c.body); got.status != c.status || got.problem(t).Code != c.code {
			t.Errorf("%s: %d %s", c.body, got.status, got.body)
		}
	}
	var moved api.Scheduled
	to := time.UnixMilli(at).Add(-100 * 24 * time.Hour).UTC()
	reply := ask(s, "PATCH", id, send, `{"scheduled_at":"`+to.Add(-999*time.Microsecond).Format(time.RFC3339Nano)+`"}`) // due with the next millisecond
	if reply.into(t, &moved); reply.status != 200 || !moved.ScheduledAt.Equal(to) || moved.Generation != 1 || moved.MovedBy != "shop" || moved.MovedAt == nil || moved.UserID != "u1" {
		t.Fatalf("%d %s", reply.status, reply.body)
	}
	if got = get[api.Status](t, s, id, read); !got.ScheduledAt.Equal(to) || got.UserID != "u1" {
		t.Errorf("moved: %+v", got)
	}

	var first, second api.Cancelled
	reply = ask(s, "DELETE", id, send, "")
	if reply.into(t, &first); reply.status != 200 || !first.Final || !first.BindsAt.Equal(first.CancelledAt) || w.ended != 1 {
		t.Fatalf("%d %s, %d ended", reply.status, reply.body, w.ended)
	}
	reply = ask(s, "DELETE", id, send, "")
	if reply.into(t, &second); reply.status != 200 || second != first {
		t.Errorf("again: %d %s", reply.status, reply.body)
	}
	if p := ask(s, "PATCH", id, send, `{"scheduled_at":"2027-01-16T10:00:00Z"}`).problem(t); p.Status != 409 || p.Code != "cancelled" {
		t.Errorf("a move behind it: %+v", p)
	}
	tl = get[api.Timeline](t, s, id+"/timeline", read)
	var kinds []string
	for _, e := range tl.Events {
		kinds = append(kinds, e.Type)
		if e.Type == "rescheduled" && (e.At == nil || !e.At.Equal(*moved.MovedAt) || e.Detail != "by shop") {
			t.Errorf("%+v, moved at %v", e, moved.MovedAt) // also behind the cancel
		}
	}
	if k := strings.Join(kinds, " "); tl.Status.Status != "CANCELLED" || k != "scheduled rescheduled cancel" || tl.Next != "It was cancelled; nothing more happens." {
		t.Errorf("%s, %s, %s", tl.Status.Status, k, tl.Next)
	}
	// What the worker wrote about it changes nothing, a third cancel neither.
	w.release(t, base)
	reply = ask(s, "DELETE", id, send, "")
	if reply.into(t, &second); reply.status != 200 || second != first {
		t.Errorf("behind the outcome: %d %s", reply.status, reply.body)
	}
}

func TestScheduledFanout(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	base := baseOf(1)
	at := w.schedule(t, base, "shop", true)
	id := "/v1/notifications/ntf_" + base.String()
	read, send := token(t, "shop", api.ScopeRead), token(t, "shop", api.ScopeSend)
	sum := get[api.Summary](t, s, id, read)
	if sum.Counts["SCHEDULED"] != 3 || sum.Accepted != 3 || sum.Rejected != 1 || !sum.Complete || sum.ScheduledAt.UnixMilli() != at {
		t.Errorf("%+v", sum)
	}
	if got := get[api.Status](t, s, id+"-3", read); got.Status != "SCHEDULED" || got.UserID != "u3" {
		t.Errorf("%+v", got)
	}
	for _, index := range []string{"-2", "-4"} {
		if got := ask(s, "GET", id+index, read, ""); got.status != 404 {
			t.Errorf("%s: %d %s", index, got.status, got.body)
		}
	}
	if p := ask(s, "PATCH", id+"-3", send, `{"scheduled_at":"2027-01-16T10:00:00Z"}`).problem(t); p.Status != 409 || p.Code != "not_single" {
		t.Errorf("one of it moved: %+v", p)
	}
	var c api.Cancelled
	reply := ask(s, "DELETE", id+"-3", send, "")
	if reply.into(t, &c); reply.status != 202 || c.Final || c.Scope != "ntf_"+base.String()+"-3" {
		t.Errorf("one of it cancelled: %d %s", reply.status, reply.body)
	}
	if reply = ask(s, "DELETE", id, send, ""); reply.status != 200 || w.ended != 2 {
		t.Errorf("%d %s, %d ended", reply.status, reply.body, w.ended)
	}
	if sum = get[api.Summary](t, s, id, read); sum.Counts["CANCELLED"] != 3 || sum.CancelledAt == nil {
		t.Errorf("%+v", sum)
	}
}

// TestScheduledReleased: from its release on it is as anything sent at once.
func TestScheduledReleased(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	send := token(t, "shop", api.ScopeSend)
	base := baseOf(1)
	at := w.schedule(t, base, "shop", false)
	w.release(t, base)
	if _, won, err := w.later.Schedules().Swap(t.Context(), 0, engine.ScheduleHead{Base: base, State: engine.ScheduleReleased, FireAt: at}); !won || err != nil {
		t.Fatal(won, err)
	}
	id := "/v1/notifications/ntf_" + base.String()
	if p := ask(s, "PATCH", id, send, `{"scheduled_at":"2027-01-16T10:00:00Z"}`).problem(t); p.Status != 409 || p.Code != "too_late" {
		t.Errorf("a move: %+v", p)
	}
	var c api.Cancelled
	reply := ask(s, "DELETE", id, send, "")
	if reply.into(t, &c); reply.status != 202 || c.Final {
		t.Errorf("a cancel: %d %s", reply.status, reply.body)
	}
	sent := w.single(9, "shop", "u1")
	if p := ask(s, "PATCH", "/v1/notifications/"+sent.String(), send, `{"scheduled_at":"2027-01-16T10:00:00Z"}`).problem(t); p.Status != 409 || p.Code != "not_scheduled" {
		t.Errorf("what was sent at once: %+v", p)
	}
}

func TestScheduledTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := w.start(t, Config{}, nil)
		base := baseOf(1)
		at := w.schedule(t, base, "shop", false)
		time.Sleep(time.Until(time.UnixMilli(at)) - 4*time.Second)
		send := tokenAt(t, time.Now(), "shop", api.ScopeSend)
		if p := ask(s, "DELETE", "/v1/notifications/ntf_"+base.String(), send, "").problem(t); p.Status != 409 || p.Code != "too_late" {
			t.Errorf("%+v", p)
		}
	})
}

func TestListSchedules(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	for n := byte(1); n <= 4; n++ {
		w.schedule(t, baseOf(n), "shop", n%2 == 0)
	}
	w.schedule(t, baseOf(5), "bank", false)
	if _, err := w.schedules().Cancel(t.Context(), baseOf(3)); err != nil {
		t.Fatal(err)
	}
	read := token(t, "shop", api.ScopeRead)
	list := func(query, token string) (ids string, page api.ScheduledPage) {
		page = get[api.ScheduledPage](t, s, "/v1/schedules"+query, token)
		for _, i := range page.Items {
			ids += strings.TrimPrefix(i.NotificationID, "ntf_")[:1] + i.NotificationID[len(i.NotificationID)-1:] + i.Status[:1] + " "
		}
		return strings.TrimSpace(ids), page
	}
	all, page := list("", read)
	if len(page.Items) != 4 || page.Cursor != "" || page.Items[0].Receivers != 3 {
		t.Errorf("%s: %+v", all, page)
	}
	if _, page = list("?status=CANCELLED", read); len(page.Items) != 1 || page.Items[0].CancelledAt == nil {
		t.Errorf("%+v", page)
	}
	a, page := list("?limit=3", read)
	b, last := list("?limit=3&cursor="+page.Cursor, read)
	if a+" "+b != all || last.Cursor != "" {
		t.Errorf("%q and %q are not %q", a, b, all)
	}
	for what, got := range map[string]reply{
		"another caller's":  ask(s, "GET", "/v1/schedules?limit=3&cursor="+page.Cursor, token(t, "bank", api.ScopeRead), ""),
		"another listing's": ask(s, "GET", "/v1/schedules?status=SCHEDULED&cursor="+page.Cursor, read, ""),
		"a base":            ask(s, "GET", "/v1/schedules?cursor="+baseOf(2).String(), read, ""),
	} {
		if got.status != 422 || got.problem(t).Code != "bad_cursor" {
			t.Errorf("%s cursor: %d %s", what, got.status, got.body)
		}
	}
	operator := token(t, "sre", api.ScopeRead, api.ScopeOperate)
	if _, page = list("", operator); len(page.Items) != 5 {
		t.Errorf("an operator sees %d", len(page.Items))
	}
	for query, want := range map[string]int{"?user=u1": 2, "?user=u1&status=CANCELLED": 1, "?user=u2": 0} {
		if _, page = list(query, read); len(page.Items) != want {
			t.Errorf("%s: %+v", query, page)
		}
		for _, i := range page.Items {
			if i.UserID != "u1" {
				t.Errorf("%s: %+v", query, i)
			}
		}
	}
	if _, page = list("?caller=bank", operator); len(page.Items) != 1 || page.Items[0].Caller != "bank" {
		t.Errorf("%+v", page)
	}
	for _, q := range []string{"?status=SENT", "?cursor=x", "?limit=0", "?caller=bank"} {
		if got := ask(s, "GET", "/v1/schedules"+q, read, ""); got.status != 422 {
			t.Errorf("%s: %d %s", q, got.status, got.body)
		}
	}
}

func TestForecastRoute(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	at := w.schedule(t, baseOf(1), "shop", true)
	w.schedule(t, baseOf(2), "bank", false)
	operator := token(t, "sre", api.ScopeOperate)
	from, to := timeOf(at-60_000).UTC().Format(time.RFC3339), timeOf(at+60_000).UTC().Format(time.RFC3339)
	f := get[api.Forecast](t, s, "/v1/schedules/forecast?from="+from+"&to="+to, operator)
	if f.Total != 4 || !f.Complete || len(f.Minutes) != 1 || f.Minutes[0] != (api.ForecastMinute{Minute: timeOf(at), What: "push", Count: 4}) {
		t.Errorf("%+v", f)
	}
	if f = get[api.Forecast](t, s, "/v1/schedules/forecast", operator); f.Total != 0 || f.To.Sub(f.From) < time.Hour {
		t.Errorf("%+v", f)
	}
	for _, q := range []string{"?from=" + to + "&to=" + from, "?from=" + from + "&to=2040-01-01T00:00:00Z", "?from=x",
		// Times that no answer could name.
		"?from=9999-12-31T23:30:00Z", "?from=9999-12-31T23:30:00-23:00", "?from=0000-01-01T00:00:00%2B23:59", "?from=1969-12-31T23:59:00Z"} {
		if got := ask(s, "GET", "/v1/schedules/forecast"+q, operator, ""); got.status != 422 {
			t.Errorf("%s: %d %s", q, got.status, got.body)
		}
	}
}

func TestCampaignCancelEndsItsSchedules(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	w.schedule(t, baseOf(1), "shop", true)
	w.schedule(t, baseOf(2), "shop", true)
	w.camps[campaign] = engine.Campaign{ID: campaign, Caller: "shop", Bases: []notify.Base{baseOf(1), baseOf(9), baseOf(2)}}
	if sum := get[api.Summary](t, s, "/v1/campaigns/"+campaign, token(t, "shop", api.ScopeRead)); sum.Counts["SCHEDULED"] != 6 || !sum.Complete {
		t.Errorf("%+v", sum)
	}
	if got := ask(s, "DELETE", "/v1/campaigns/"+campaign, token(t, "shop", api.ScopeSend), ""); got.status != 202 || w.ended != 4 {
		t.Errorf("%d %s, %d ended", got.status, got.body, w.ended)
	}
}
