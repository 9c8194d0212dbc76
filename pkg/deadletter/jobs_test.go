package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func wantCode(t *testing.T, err error, kind notify.Kind, code string) {
	t.Helper()
	e, ok := errors.AsType[*notify.Error](err)
	if !ok || e.Kind != kind || e.Code != code {
		t.Errorf("error %v, want %v %s", err, kind, code)
	}
}

func TestReplay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(1234, nil)
		p := r.plan(api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{Channel: "sms"}, Rate: 500})
		if p.Entries != 1234 || p.Send != 1234 || p.Counts["class"]["permanent"] != 1234 || p.Counts["caller"]["shop"] != 1234 {
			t.Fatalf("%+v", p)
		}
		r.run()
		began := time.Now()
		j := r.until(r.apply(p, "").ID, JobDone)
		took := time.Since(began)
		r.sums(j)
		r.once(1234)
		if j.Done != 1234 || j.Outcomes.Reached != 1234 || j.Outcomes.Open != 0 {
			t.Errorf("%+v", j)
		}
		// The rate that was asked for is the rate that is reached.
		if took < 2*time.Second || took > 4*time.Second || j.Reached > 550 || j.Reached < 350 {
			t.Errorf("%s, %.0f a second", took, j.Reached)
		}
		if s := r.states(); s["replayed/0"] != 1234 {
			t.Errorf("%v", s)
		}
		var e notify.Envelope
		if err := notify.DecodeEnvelope(r.recs[0].Value, &e); err != nil {
			t.Fatal(err)
		}
		rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
		if e.Epoch != 1 || e.Count != 1 || !rd.Next(&rec) || string(rec.Variables) != `{"a":"b"}` || r.recs[0].Topic != "notifications-sms-dlq" {
			t.Errorf("%+v %s", e, rec.Variables)
		}
		heads := map[string]string{}
		for _, h := range r.recs[0].Headers {
			heads[h.Key] = string(h.Value)
		}
		if heads["notify-origin"] != "notifications-sms/1/0" || heads["notify-replay-id"] != j.ID || heads["notify-replay-actor"] != "ann" || heads["notify-replay-count"] != "1" {
			t.Errorf("%v", heads)
		}

		// A second replay is a no-op, by this name and by another.
		if again := r.apply(p, ""); again.ID != j.ID {
			t.Errorf("the same plan again is job %s", again.ID)
		}
		if p2 := r.plan(p.Spec); p2.Entries != 0 || p2.Digest == p.Digest {
			t.Errorf("a second plan has %d entries", p2.Entries)
		}
		_, _, err := r.m.Apply(t.Context(), api.JobRequest{Spec: p.Spec, Digest: p.Digest, Entries: p.Entries, Name: "again"}, By{Caller: "bob"})
		wantCode(t, err, notify.KindConflict, "stale_plan")
		r.once(1234)
	})
}

func TestRefusedSpecs(t *testing.T) {
	t.Parallel() // in real time: an expression that never ends is cut short
	r := newRig(t, nil)
	r.fail(3, nil)
	f := func(code, field string, s api.JobSpec) {
		t.Helper()
		_, err := r.m.Plan(t.Context(), s)
		wantCode(t, err, notify.KindInvalid, code)
		if e, _ := errors.AsType[*notify.Error](err); e != nil && e.Field != field {
			t.Errorf("field %q, want %q", e.Field, field)
		}
	}
	f("no_filter", "filter", api.JobSpec{Kind: KindReplay})
	f("no_filter", "filter", api.JobSpec{Kind: KindDiscard})
	f("bad_kind", "kind", api.JobSpec{Kind: "purge", Filter: all})
	f("out_of_range", "rate", api.JobSpec{Kind: KindReplay, Filter: all, Rate: -1})
	f("out_of_range", "rate", api.JobSpec{Kind: KindReplay, Filter: all, Rate: 1e9})
	f("out_of_range", "abort_if", api.JobSpec{Kind: KindReplay, Filter: all, AbortIf: 2})
	f("out_of_range", "max_replays", api.JobSpec{Kind: KindReplay, Filter: all, MaxReplays: -1})
	f("bad_expired", "expired", api.JobSpec{Kind: KindReplay, Filter: all, Expired: "x"})
	f("bad_collapse", "collapse", api.JobSpec{Kind: KindReplay, Filter: all, Collapse: "x"})
	f("bad_order", "order", api.JobSpec{Kind: KindReplay, Filter: all, Order: "x"})
	f("bad_where", "where", api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{Where: ".a ="}})
	f("bad_where", "where", api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{Where: ".user_id * .code"}})
	f("bad_where", "where", api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{Where: "def f: f; f"}})
	f("bad_attempts", "attempts", api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{Attempts: "many"}})
	f("bad_id", "id", api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{IDs: []string{"x"}}})
	f("unknown_channel", "channel", api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{Channel: "fax"}})
	f("bad_time", "until", api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{Since: 5, Until: 5}})
	if jobs, err := r.m.List(t.Context(), 10); err != nil || len(jobs) != 0 {
		t.Error(jobs, err)
	}
}

func TestFilters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		ds := r.fail(8, func(i int, d *engine.DeadLetter) {
			d.Provider, d.User = []string{"twilio", "twilio:b"}[i%2], "user"+fmt.Sprint(i)
		})
		f := func(want int, fl api.LetterFilter) {
			t.Helper()
			if p := r.plan(api.JobSpec{Kind: KindReplay, Filter: fl}); p.Entries != want {
				t.Errorf("%+v selects %d, want %d", fl, p.Entries, want)
			}
		}
		f(8, api.LetterFilter{Caller: "shop"})
		f(0, api.LetterFilter{Caller: "sho"})
		f(8, api.LetterFilter{Provider: "twilio"}) // its accounts too
		f(4, api.LetterFilter{Provider: "twilio:b"})
		f(0, api.LetterFilter{Provider: "twil"})
		f(0, api.LetterFilter{Provider: "twilio:"})
		f(2, api.LetterFilter{Attempts: "2"})
		f(4, api.LetterFilter{Attempts: ">=3"})
		f(2, api.LetterFilter{Attempts: "> 3"})
		f(4, api.LetterFilter{Attempts: "<=2"})
		f(2, api.LetterFilter{Attempts: "<2"})
		f(2, api.LetterFilter{IDs: []string{ds[1].ID.String(), ds[5].ID.String()}})
		f(4, api.LetterFilter{Where: `.provider | startswith("twilio:")`})
		f(1, api.LetterFilter{Where: `.user_id == "user3" and .attempts > 1`})
		f(0, api.LetterFilter{Where: `.user_id`}) // not true
		f(1, api.LetterFilter{Where: fmt.Sprintf(".id == %q", ds[2].ID.String())})
		f(0, api.LetterFilter{State: engine.LetterReplayed}) // a replay is about dead ones
		f(0, api.LetterFilter{Until: ds[0].LastFailed})
		f(8, api.LetterFilter{Since: ds[0].LastFailed})
	})
}

// TestMatcherNames: every text and time of a filter selects by its own field.
func TestMatcherNames(t *testing.T) {
	a := engine.DeadLetter{Caller: "a", Channel: "sms", Category: "otp", Class: "a", Code: "a", Provider: "twilio:AC1", Template: "a", State: "dead", LastFailed: 2001}
	b := engine.DeadLetter{Caller: "b", Channel: "push", Category: "digest", Class: "b", Code: "b", Provider: "apns", Template: "b", State: "replayed", LastFailed: 2002}
	for _, f := range []api.LetterFilter{
		{Caller: "b"}, {Channel: "push"}, {Category: "digest"}, {Class: "b"}, {Code: "b"}, {Provider: "apns"}, {Template: "b"}, {State: "replayed"},
		{Since: 2002}, {Since: 2002, Until: 2003},
	} {
		m, err := NewMatcher(&f)
		if err != nil || m.Named(&a) || !m.Named(&b) {
			t.Errorf("%+v: %v, or it does not select the second letter alone", f, err)
		}
	}
	for _, f := range []api.LetterFilter{{Until: 2001}, {Since: 2003}, {Caller: "b", Channel: "sms"}} {
		m, err := NewMatcher(&f)
		if err != nil || m.Named(&a) || m.Named(&b) {
			t.Errorf("%+v: %v, or it selects a letter", f, err)
		}
	}
}

// TestPolicies: what is not sent, and why; every entry is accounted for.
func TestPolicies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		run := func(change func(*api.JobSpec), want map[string]int) {
			t.Helper()
			r := newRig(t, nil)
			now := time.Now()
			ds := r.fail(12, func(i int, d *engine.DeadLetter) {
				switch i {
				case 0, 1:
					d.Expires = now.Add(-time.Hour).UnixMilli()
				case 2:
					d.Epoch = 3
				case 3, 4:
					d.User = "same"
				case 10:
					d.Channel = ChannelTrigger
				}
			})
			r.gone[ds[5].ID] = true
			delete(r.kept, ds[6].ID)
			// Since the letter was written a receipt came.
			if err := r.store.Status().Put(t.Context(), []notify.Row{
				{Key: notify.ReceiptKey(notify.RowKey{Chunk: ds[7].Chunk}, 0, 0, notify.Delivered), Count: 1, Done: true,
					Default: notify.Exception{State: notify.Delivered}, Exceptions: []notify.Exception{{State: notify.Delivered}}},
				{Key: notify.RowKey{Chunk: ds[8].Chunk}, Count: 1, Done: true, DoneUpTo: 1, StartedUpTo: 1, Default: notify.Exception{State: notify.Unknown}},
			}); err != nil {
				t.Fatal(err)
			}
			s := api.JobSpec{Kind: KindReplay, Filter: all, Rate: 1000, Canary: -1}
			change(&s)
			r.run()
			j := r.until(r.apply(r.plan(s), "").ID, JobDone)
			r.sums(j)
			got := map[string]int{"done": j.Done, SkipExhausted: j.Exhausted}
			for k, n := range j.Skipped {
				got[k] = n
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%+v:\n got %v\nwant %v", s, got, want)
			}
			r.halt()
		}
		run(func(*api.JobSpec) {}, map[string]int{"done": 4, "expired": 2, "exhausted": 1, "content_gone": 2, "reached": 1, "unknown": 1, "no_triggers": 1})
		run(func(s *api.JobSpec) { s.Expired = ExpiredSend }, map[string]int{"done": 6, "exhausted": 1, "content_gone": 2, "reached": 1, "unknown": 1, "no_triggers": 1})
		run(func(s *api.JobSpec) { s.MaxReplays = 4 }, map[string]int{"done": 5, "expired": 2, "exhausted": 0, "content_gone": 2, "reached": 1, "unknown": 1, "no_triggers": 1})
		run(func(s *api.JobSpec) { s.ForceResend = true }, map[string]int{"done": 5, "expired": 2, "exhausted": 1, "content_gone": 2, "reached": 1, "no_triggers": 1})
		run(func(s *api.JobSpec) { s.Collapse = CollapseLatest }, map[string]int{"done": 3, "collapsed": 1, "expired": 2, "exhausted": 1, "content_gone": 2, "reached": 1, "unknown": 1, "no_triggers": 1})
	})
}

// TestExpired: sent without its deadline, or with it.
func TestExpired(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for policy, want := range map[string]bool{ExpiredSend: false, ExpiredFail: true} {
			r := newRig(t, nil)
			r.fail(1, func(_ int, d *engine.DeadLetter) { d.Expires = 5 })
			r.run()
			r.until(r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Expired: policy}), "").ID, JobDone)
			var e notify.Envelope
			if err := notify.DecodeEnvelope(r.recs[0].Value, &e); err != nil || e.Expired(time.Now()) != want {
				t.Errorf("%s: expired %v, %v", policy, e.Expired(time.Now()), err)
			}
			r.halt()
		}
	})
}

func TestOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for order, want := range map[string]string{OrderOffset: "[2 1 0]", OrderDue: "[0 1 2]"} {
			r := newRig(t, nil)
			var ids []notify.ID
			r.fail(3, func(i int, d *engine.DeadLetter) {
				d.ID.Base[5] = byte(20 - i) // the later it was accepted, the earlier it failed
				d.Chunk.Base = d.ID.Base
				ids = append(ids, d.ID)
			})
			slices.Reverse(ids)
			r.run()
			r.until(r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Order: order}), "").ID, JobDone)
			var got []int
			for _, id := range r.order {
				got = append(got, slices.Index(ids, id))
			}
			if fmt.Sprint(got) != want {
				t.Errorf("%s: %v, want %s", order, got, want)
			}
			r.halt()
		}
	})
}

// TestStalePlan: between plan and apply somebody else acted on one of the set.
// What fails meanwhile is not of the set, and does not matter.
func TestStalePlan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		ds := r.fail(10, nil)
		r.run()
		p := r.plan(api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{Channel: "sms"}})
		late := r.letter(500)
		if err := r.store.DeadLetters().Put(t.Context(), []engine.DeadLetter{late}); err != nil {
			t.Fatal(err)
		}
		req := api.JobRequest{Spec: p.Spec, Digest: p.Digest, Entries: p.Entries, Name: "n"}
		if _, err := r.store.DeadLetters().Move(t.Context(), []engine.LetterMove{{ID: ds[3].ID, From: "dead", To: "discarded", Job: "x"}}); err != nil {
			t.Fatal(err)
		}
		_, _, err := r.m.Apply(t.Context(), req, By{Caller: "ann"})
		wantCode(t, err, notify.KindConflict, "stale_plan")
		if !strings.Contains(err.Error(), "had 10 entries, now 9") {
			t.Error(err)
		}
		changed := req
		changed.Spec.UpTo = 0
		_, _, err = r.m.Apply(t.Context(), changed, By{Caller: "ann"})
		wantCode(t, err, notify.KindInvalid, "not_frozen")
		if r.calls() != 0 {
			t.Error("something was sent")
		}
		if _, err := r.store.DeadLetters().Move(t.Context(), []engine.LetterMove{{ID: ds[3].ID, From: "discarded", FromJob: "x", To: "dead"}}); err != nil {
			t.Fatal(err)
		}
		j, created, err := r.m.Apply(t.Context(), req, By{Caller: "ann"})
		if err != nil || !created {
			t.Fatal(err)
		}
		r.sums(r.until(j.ID, JobDone))
		r.once(10) // not the late one
		if _, ok := r.sent[late.ID]; ok {
			t.Error("what failed behind the plan was sent")
		}
	})
}

// TestDigest: a plan is of its spec and of its set, letter by letter and state by
// state, not of how many there are.
func TestDigest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		ds := r.fail(10, nil)
		move := func(i int, from, to string) {
			t.Helper()
			job := map[string]string{engine.LetterDiscarded: "x"}
			moved, err := r.store.DeadLetters().Move(t.Context(), []engine.LetterMove{{ID: ds[i].ID, From: from, FromJob: job[from], To: to, Job: job[to]}})
			if err != nil || !moved[0] {
				t.Fatal(moved, err)
			}
		}
		stale := func(what string, p api.Plan, change func(*api.JobSpec)) {
			t.Helper()
			now := r.plan(p.Spec)
			spec := p.Spec
			change(&spec)
			_, _, err := r.m.Apply(t.Context(), api.JobRequest{Spec: spec, Digest: p.Digest, Entries: p.Entries, Name: what}, By{Caller: "ann"})
			if e, ok := errors.AsType[*notify.Error](err); !ok || e.Code != "stale_plan" {
				t.Errorf("%s: %v", what, err)
			}
			if now.Entries != p.Entries {
				t.Errorf("%s: %d entries, and now %d", what, p.Entries, now.Entries)
			}
		}
		same := func(*api.JobSpec) {}

		p := r.plan(api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{Channel: "sms"}})
		stale("another rate", p, func(s *api.JobSpec) { s.Rate = 5000 })
		stale("no canary", p, func(s *api.JobSpec) { s.Canary = -1 })
		stale("what is expired is sent", p, func(s *api.JobSpec) { s.Expired = ExpiredSend })

		move(5, engine.LetterDead, engine.LetterDiscarded)
		p = r.plan(p.Spec)
		move(3, engine.LetterDead, engine.LetterDiscarded)
		move(5, engine.LetterDiscarded, engine.LetterDead)
		stale("another letter", p, same)

		p = r.plan(api.JobSpec{Kind: KindExport, Filter: all}) // of all states
		move(3, engine.LetterDiscarded, engine.LetterDead)
		stale("another state", p, same)
	})
}

// TestTwoOperators apply plans over the same letters at once: each is sent once,
// and both jobs account for all of theirs.
func TestTwoOperators(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(2000, nil)
		p := r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Rate: 1000, Canary: -1})
		q := r.plan(api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{Channel: "sms"}, Rate: 900, Canary: -1, Order: OrderDue})
		a, b := r.apply(p, "a"), r.apply(q, "b")
		r.run()
		a, b = r.until(a.ID, JobDone), r.until(b.ID, JobDone)
		r.sums(a)
		r.sums(b)
		if a.Done+b.Done != 2000 || a.Done == 0 || b.Done == 0 {
			t.Errorf("%d and %d of 2,000", a.Done, b.Done)
		}
		r.once(2000)
		if r.copied() != 0 {
			t.Errorf("%d envelopes were published twice", r.copied())
		}
		// The same name with another plan is refused.
		_, _, err := r.m.Apply(t.Context(), api.JobRequest{Spec: q.Spec, Digest: q.Digest, Name: "a"}, By{Caller: "bob"})
		wantCode(t, err, notify.KindConflict, "name_taken")
	})
}

// TestTwoProcesses share the stores: a job runs in one of them.
func TestTwoProcesses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(1000, nil)
		j := r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Rate: 500, Canary: -1}), "")
		r.run()
		r.cfg.Owner = "other"
		r.manager()
		r.run()
		r.sums(r.until(j.ID, JobDone))
		r.once(1000)
		if r.copied() != 0 {
			t.Errorf("%d were published twice: two ran at a time", r.copied())
		}
	})
}

// TestCrash: the process dies at each of the points where something is half done,
// and a new one goes on.
func TestCrash(t *testing.T) {
	for _, at := range []string{"job-marked-before-publish", "job-published-before-cursor"} {
		t.Run(at, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				r.fail(1000, nil)
				j := r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Rate: 250}), "")
				for kill := range 4 {
					dead := r.dies(at, 2+kill)
					r.run()
					<-dead
					<-r.ended
					r.cfg.Owner = fmt.Sprint("process ", kill)
					r.manager()
				}
				r.run()
				j = r.until(j.ID, JobDone)
				r.sums(j)
				r.once(1000)
				if s := r.states(); s["replayed/0"] != 1000 {
					t.Errorf("%v", s)
				}
				if at == "job-published-before-cursor" && r.copied() == 0 {
					t.Error("nothing was published a second time: the test does not meet its point")
				}
			})
		})
	}
}

// TestCancelAfterACrash: what was marked and never published is dead again.
func TestCancelAfterACrash(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(300, nil)
		j := r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Rate: 250, Canary: -1}), "")
		dead := r.dies("job-marked-before-publish", 2)
		r.run()
		<-dead
		r.halt()
		r.cfg.Owner = "next"
		r.manager()
		if s := r.states(); s["replayed/0"] != 100 {
			t.Fatalf("%v", s)
		}
		got, err := r.m.ChangeState(t.Context(), j.ID, Cancel, By{Caller: "bob"})
		if err != nil || got.State != JobCancelled {
			t.Fatal(got, err)
		}
		if s := r.states(); s["replayed/0"] != 50 || s["dead/0"] != 250 {
			t.Errorf("%v: 50 were published", s)
		}
		_, err = r.m.ChangeState(t.Context(), j.ID, Resume, By{Caller: "bob"})
		wantCode(t, err, notify.KindConflict, "job_state")
	})
}

// TestCanary: the provider still refuses. The job stops within its canary and says
// why; after the repair it is resumed, and ends.
func TestCanary(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(1000, nil)
		bad := true
		r.state = func(*notify.Envelope) notify.State {
			if bad {
				return notify.Failed
			}
			return notify.Delivered
		}
		r.run()
		j := r.until(r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{Caller: "shop"}, Rate: 500, Canary: 25}), "").ID, JobStopped)
		if r.calls() > 25 || !strings.Contains(j.Why, "canary") || !strings.Contains(j.Why, "failed again (limit 20%)") {
			t.Errorf("%d were sent; %q", r.calls(), j.Why)
		}
		r.mu.Lock()
		bad = false
		was := len(r.sent)
		r.mu.Unlock()
		if _, err := r.m.ChangeState(t.Context(), j.ID, Resume, By{Caller: "bob"}); err != nil {
			t.Fatal(err)
		}
		j = r.until(j.ID, JobDone)
		r.sums(j)
		r.once(1000)
		if j.Outcomes.Refailed != was || j.Outcomes.Reached != 1000-was || j.Done != 1000 {
			t.Errorf("%+v after %d had failed", j, was)
		}
		// Those that failed again are dead letters of the next epoch.
		if s := r.states(); s["replayed/0"] != 1000 || s["dead/1"] != was {
			t.Errorf("%v", s)
		}
		j = r.until(r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{Caller: "shop"}}), "second").ID, JobDone)
		if j.Done != was {
			t.Errorf("%+v", j)
		}
	})
}

// TestOpenAtAStop: the canary stops the job while some of it has no outcome. What
// comes later is counted, but not held against the job that was resumed.
func TestOpenAtAStop(t *testing.T) {
	for name, crash := range map[string]bool{"resumed": false, "after a crash": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				r.fail(100, nil)
				var waiting []*notify.Envelope
				n := 0
				r.state = func(e *notify.Envelope) notify.State {
					switch n++; {
					case n <= 2:
						return notify.Failed
					case n <= 5:
						c := *e
						waiting = append(waiting, &c)
						return notify.None
					}
					return notify.Delivered
				}
				r.run()
				j := r.until(r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Canary: 5}), "").ID, JobStopped)
				if o := j.Outcomes; o.Refailed != 2 || o.Open != 3 {
					t.Fatalf("%+v", o)
				}
				r.mu.Lock()
				var rows []notify.Row
				for _, e := range waiting {
					rows = append(rows, row(e, notify.Failed))
				}
				r.mu.Unlock()
				if err := r.store.Status().Put(t.Context(), rows); err != nil {
					t.Fatal(err)
				}
				if crash {
					r.halt()
					r.manager()
					r.run()
				}
				if _, err := r.m.ChangeState(t.Context(), j.ID, Resume, By{Caller: "bob"}); err != nil {
					t.Fatal(err)
				}
				j = r.until(j.ID, JobDone)
				r.sums(j)
				if o := j.Outcomes; o.Reached != 95 || o.Refailed != 5 || o.Open != 0 {
					t.Errorf("%+v", o)
				}
			})
		})
	}
}

// TestCanaryIsAwaited: nothing else goes while the first have no outcome, over a
// crash too.
func TestCanaryIsAwaited(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(100, nil)
		var waiting []*notify.Envelope
		r.state = func(e *notify.Envelope) notify.State {
			c := *e
			waiting = append(waiting, &c)
			return notify.None
		}
		r.run()
		j := r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Rate: 1000, Canary: 7}), "")
		time.Sleep(time.Minute)
		r.halt()
		r.manager()
		r.run()
		time.Sleep(time.Minute)
		if n := r.calls(); n != 7 {
			t.Errorf("%d were sent before the canary's outcomes were known", n)
		}
		r.mu.Lock()
		var rows []notify.Row
		for _, e := range waiting {
			rows = append(rows, row(e, notify.Sent))
		}
		r.state = nil
		r.mu.Unlock()
		if err := r.store.Status().Put(t.Context(), rows); err != nil {
			t.Fatal(err)
		}
		j = r.until(j.ID, JobDone)
		r.sums(j)
		r.once(100)

		// Without any outcome it stops, and says so.
		r.fail(120, func(i int, d *engine.DeadLetter) { d.ID.Base[6] = 9; d.Chunk.Base = d.ID.Base })
		r.mu.Lock()
		r.state = func(*notify.Envelope) notify.State { return notify.None }
		r.mu.Unlock()
		j = r.until(r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all}), "b").ID, JobStopped)
		if !strings.Contains(j.Why, "have no outcome after 3m") {
			t.Error(j.Why)
		}
	})
}

// TestWaitSavesNoRate: what the wait for the canary did not send is not sent in a
// burst behind it, nor what a log that was away held up.
func TestWaitSavesNoRate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(400, nil)
		var waiting []*notify.Envelope
		r.state = func(e *notify.Envelope) notify.State {
			c := *e
			waiting = append(waiting, &c)
			return notify.None
		}
		r.run()
		const perSecond = 50
		j := r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Rate: perSecond, Canary: 7}), "")
		time.Sleep(time.Minute)
		r.mu.Lock()
		var rows []notify.Row
		for _, e := range waiting {
			rows = append(rows, row(e, notify.Sent))
		}
		r.state = nil
		r.mu.Unlock()
		if err := r.store.Status().Put(t.Context(), rows); err != nil {
			t.Fatal(err)
		}
		atMost := func(seconds int) {
			t.Helper()
			was := r.calls()
			time.Sleep(time.Duration(seconds) * time.Second)
			if n, most := r.calls()-was, seconds*perSecond+batchSizeAt(perSecond); n == 0 || n > most {
				t.Errorf("%d were sent in %d s at %d/s", n, seconds, perSecond)
			}
		}
		atMost(2)
		r.mu.Lock()
		r.refuse = func() error { return notify.Unavailable("log", time.Second, nil) }
		r.mu.Unlock()
		time.Sleep(time.Minute)
		r.mu.Lock()
		r.refuse = nil
		r.mu.Unlock()
		atMost(2)
		j = r.until(j.ID, JobDone)
		r.sums(j)
		r.once(400)
	})
}

// TestCanaryReachesNobody: letters that end in another way than FAILED have not
// reached anybody either, and the canary stops the job. Each is counted as what it is.
func TestCanaryReachesNobody(t *testing.T) {
	for _, state := range []notify.State{notify.Suppressed, notify.Expired, notify.Cancelled, notify.Unknown} {
		t.Run(state.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				r.fail(100, nil)
				r.state = func(*notify.Envelope) notify.State { return state }
				r.run()
				j := r.until(r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all}), "").ID, JobStopped, JobDone)
				word := strings.ToLower(state.String())
				if j.State != JobStopped || r.calls() != 10 || !strings.Contains(j.Why, "reached nobody: ") || !strings.Contains(j.Why, word) {
					t.Fatalf("%s %q after %d were sent", j.State, j.Why, r.calls())
				}
				o := j.Outcomes
				if o.Reached != 0 || o.Refailed != 0 || settledCount(&o) == 0 || settledCount(&o)+o.Open != 10 {
					t.Errorf("%+v", o)
				}
				if n := map[string]int{"suppressed": o.Suppressed, "expired": o.Expired, "cancelled": o.Cancelled, "unknown": o.Unknown}[word]; n != settledCount(&o) {
					t.Errorf("%d are counted as %s: %+v", n, word, o)
				}

				// Over a crash, and resumed without a guard, every one is counted once.
				r.halt()
				r.manager()
				r.run()
				r.mu.Lock()
				r.state = nil
				r.mu.Unlock()
				if _, err := r.m.ChangeState(t.Context(), j.ID, Resume, By{Caller: "bob"}); err != nil {
					t.Fatal(err)
				}
				j = r.until(j.ID, JobDone)
				if o := j.Outcomes; o.Reached != 90 || settledCount(&o) != 100 {
					t.Errorf("%+v", o)
				}
			})
		})
	}
}

// TestExpireOnPurpose: a replay that makes letters EXPIRED does what it was asked.
func TestExpireOnPurpose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(50, nil)
		r.state = func(*notify.Envelope) notify.State { return notify.Expired }
		r.run()
		j := r.until(r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Expired: ExpiredFail}), "").ID, JobStopped, JobDone)
		if j.State != JobDone || j.Outcomes.Expired != 50 {
			t.Errorf("%s %q %+v", j.State, j.Why, j.Outcomes)
		}
	})
}

// TestPlanTellsWhoIsUnreachable: of the letters that a replay would send, not of
// those that it skips.
func TestPlanTellsWhoIsUnreachable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *ManagerConfig) {
			c.Unreachable = func(d *engine.DeadLetter) string {
				if d.ID.Base[8]%4 == 0 {
					return "suppressed_address"
				}
				return ""
			}
		})
		r.fail(40, func(i int, d *engine.DeadLetter) {
			d.User, d.Template = fmt.Sprintf("u%d", i%8), "t"
		})
		f := func(want int, s api.JobSpec) {
			t.Helper()
			s.Filter = all
			if got := r.plan(s).Unreachable["suppressed_address"]; got != want {
				t.Errorf("%s %s: %d, want %d", s.Kind, s.Collapse, got, want)
			}
		}
		f(10, api.JobSpec{Kind: KindReplay})
		f(2, api.JobSpec{Kind: KindReplay, Collapse: CollapseLatest})
		f(0, api.JobSpec{Kind: KindDiscard})
	})
}

// TestGuard: behind a good canary too many fail again.
func TestGuard(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(5000, nil)
		n := 0
		r.state = func(*notify.Envelope) notify.State {
			if n++; n > 500 {
				return notify.Failed
			}
			return notify.Delivered
		}
		r.run()
		j := r.until(r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Rate: 500}), "").ID, JobStopped, JobDone)
		if j.State != JobStopped || !strings.Contains(j.Why, "failed again") || j.Done > 1200 {
			t.Errorf("%+v", j)
		}
	})
}

func TestOpenCircuit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var open atomic.Bool
		open.Store(true)
		r := newRig(t, func(c *ManagerConfig) {
			c.Standing = func(l notify.Lane) string {
				if open.Load() && l.Channel == notify.SMS {
					return "twilio"
				}
				return ""
			}
		})
		r.fail(50, nil)
		r.run()
		j := r.until(r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all}), "").ID, JobStopped)
		if !strings.Contains(j.Why, "circuit") || !strings.Contains(j.Why, "twilio") || r.calls() != 0 {
			t.Errorf("%q, %d sent", j.Why, r.calls())
		}
		if _, err := r.m.ChangeState(t.Context(), j.ID, Cancel, By{Caller: "x"}); err != nil {
			t.Fatal(err)
		}
		j = r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, OpenCircuit: CircuitWait}), "")
		time.Sleep(time.Hour)
		if j, _ := r.m.Get(t.Context(), j.ID); j.State != JobRunning || r.calls() != 0 {
			t.Errorf("%s, %d sent", j.State, r.calls())
		}
		open.Store(false)
		r.sums(r.until(j.ID, JobDone))
		r.once(50)
	})
}

// TestPauseResume: nothing moves while a job is paused, and each is sent once.
func TestPauseResume(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(1000, nil)
		r.run()
		j := r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Rate: 100, Canary: -1}), "")
		time.Sleep(2 * time.Second)
		got, err := r.m.ChangeState(t.Context(), j.ID, Pause, By{Caller: "bob", Reason: "lunch"})
		if err != nil || got.State != JobPaused || got.Why != "by bob" {
			t.Fatal(got, err)
		}
		time.Sleep(time.Second)
		was := r.calls()
		time.Sleep(time.Hour)
		if was == 0 || was > 400 || r.calls() != was {
			t.Errorf("%d were sent, %d after an hour", was, r.calls())
		}
		_, err = r.m.ChangeState(t.Context(), j.ID, Pause, By{Caller: "bob"})
		wantCode(t, err, notify.KindConflict, "job_state")
		if _, err := r.m.ChangeState(t.Context(), j.ID, Resume, By{Caller: "bob"}); err != nil {
			t.Fatal(err)
		}
		j = r.until(j.ID, JobDone)
		r.sums(j)
		r.once(1000)
		if j.ActiveMs > 15_000 {
			t.Errorf("%d ms active: the pause is counted", j.ActiveMs)
		}
		_, err = r.m.ChangeState(t.Context(), "job_x", Pause, By{Caller: "bob"})
		wantCode(t, err, notify.KindNotFound, "job_not_found")
	})
}

func TestApproval(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *ManagerConfig) { c.ApproveAbove = 5 })
		r.fail(6, nil)
		r.run()
		p := r.plan(api.JobSpec{Kind: KindReplay, Filter: all})
		if !p.Approval {
			t.Error("the plan does not say that it needs approval")
		}
		j := r.apply(p, "")
		time.Sleep(time.Hour)
		if j.State != JobWaiting || r.calls() != 0 {
			t.Fatalf("%s, %d sent", j.State, r.calls())
		}
		_, err := r.m.ChangeState(t.Context(), j.ID, Approve, By{Caller: "ann"})
		wantCode(t, err, notify.KindForbidden, "own_job")
		_, err = r.m.ChangeState(t.Context(), j.ID, Resume, By{Caller: "bob"})
		wantCode(t, err, notify.KindConflict, "job_state")
		if j, err = r.m.ChangeState(t.Context(), j.ID, Approve, By{Caller: "bob"}); err != nil || j.Approved != "bob" {
			t.Fatal(j, err)
		}
		if j = r.until(j.ID, JobDone); j.Approved != "bob" {
			t.Errorf("%+v", j)
		}
		r.once(6)
	})
}

// TestLogAway: the job waits, and is cancelled while it does.
func TestLogAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(20, nil)
		away := true
		r.refuse = func() error {
			if away {
				return notify.Unavailable("log", 0, nil)
			}
			return nil
		}
		r.run()
		j := r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all}), "")
		time.Sleep(time.Minute)
		if j, _ := r.m.Get(t.Context(), j.ID); j.State != JobRunning {
			t.Fatalf("%+v", j)
		}
		if _, err := r.m.ChangeState(t.Context(), j.ID, Cancel, By{Caller: "bob"}); err != nil {
			t.Fatal(err)
		}
		if s := r.states(); s["dead/0"] != 20 {
			t.Errorf("%v: what was not published is dead", s)
		}
		r.mu.Lock()
		away = false
		r.mu.Unlock()
		r.sums(r.until(r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all}), "again").ID, JobDone))
		r.once(20)
	})
}

// TestForceResend: a replay left the outcome unknown. Only by force is it sent
// once more, and a crash does not send it a third time.
func TestForceResend(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		ds := r.fail(1, nil)
		r.state = func(*notify.Envelope) notify.State { return notify.Unknown }
		r.run()
		r.until(r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, AbortIf: -1}), "a").ID, JobDone)
		if p := r.plan(api.JobSpec{Kind: KindReplay, Filter: all}); p.Entries != 0 {
			t.Errorf("%+v", p)
		}
		r.halt()
		r.state = nil
		r.manager()
		dead := r.dies("job-published-before-cursor", 1)
		j := r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, ForceResend: true}), "b")
		r.run()
		<-dead
		r.halt()
		r.cfg.Owner = "next"
		r.manager()
		r.run()
		j = r.until(j.ID, JobDone)
		r.sums(j)
		if r.sent[ds[0].ID] != 2 || j.Done != 1 {
			t.Errorf("sent %d times, %+v", r.sent[ds[0].ID], j)
		}
	})
}

// TestReplaysUnknownByForceAlone: a letter of a notification that is UNKNOWN is skipped,
// and the plan says so. By force it is sent again.
func TestReplaysUnknownByForceAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		ds := r.fail(4, func(i int, d *engine.DeadLetter) {
			if i == 1 {
				d.Class, d.Code = notify.ClassAmbiguous.String(), "timeout"
			}
		})
		rows, err := r.store.Status().Chunk(t.Context(), ds[1].Chunk)
		if err != nil || len(rows) != 1 {
			t.Fatal(rows, err)
		}
		rows[0].Default.State = notify.Unknown
		if err := r.store.Status().Put(t.Context(), rows); err != nil {
			t.Fatal(err)
		}
		r.run()
		for _, force := range []bool{false, true} {
			p := r.plan(api.JobSpec{Kind: KindReplay, Filter: all, ForceResend: force})
			want := map[string]int{SkipUnknown: 1}
			if force {
				want = map[string]int{}
			}
			if !maps.Equal(p.Skip, want) || p.Counts["class"]["ambiguous"] != 1 {
				t.Errorf("force %v: skip %v, %v", force, p.Skip, p.Counts["class"])
			}
			r.sums(r.until(r.apply(p, "").ID, JobDone))
			if n := r.sent[ds[1].ID]; n != map[bool]int{true: 1}[force] {
				t.Errorf("force %v: sent %d times", force, n)
			}
		}
		r.once(4)
	})
}

func TestDiscardAndExport(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(30, func(i int, d *engine.DeadLetter) {
			d.Code = fmt.Sprint(i % 3)
			d.User = "\x1b[31m<b>"
		})
		r.run()
		x := r.until(r.apply(r.plan(api.JobSpec{Kind: KindExport, Filter: api.LetterFilter{Code: "1"}}), "").ID, JobDone)
		r.sums(x)
		var lines []json.RawMessage
		for after := uint64(0); ; {
			page, next, err := r.m.Report(t.Context(), x.ID, after, 4)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, page...)
			if after = next; next == 0 {
				break
			}
		}
		if len(lines) != 10 || x.Done != 10 {
			t.Fatalf("%d lines, %+v", len(lines), x)
		}
		var d engine.DeadLetter
		if err := json.Unmarshal(lines[0], &d); err != nil || d.Code != "1" || d.User != "\x1b[31m<b>" {
			t.Errorf("%+v, %v", d, err)
		}
		if strings.ContainsAny(string(lines[0]), "\x1b<") {
			t.Errorf("raw escapes in %q", lines[0])
		}
		j := r.until(r.apply(r.plan(api.JobSpec{Kind: KindDiscard, Filter: api.LetterFilter{Code: "1"}}), "").ID, JobDone)
		r.sums(j)
		if s := r.states(); s["discarded/0"] != 10 || s["dead/0"] != 20 {
			t.Errorf("%v", s)
		}
		if p := r.plan(api.JobSpec{Kind: KindReplay, Filter: all}); p.Entries != 20 {
			t.Errorf("%d: discarded ones are not replayed", p.Entries)
		}
		if r.calls() != 0 {
			t.Error("something was sent")
		}
	})
}

type requeued map[string]int

func (q requeued) Requeue(_ context.Context, id string) (bool, error) {
	q[id]++
	return q[id] == 1, nil
}

func TestTriggerLetters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := requeued{}
		r := newRig(t, func(c *ManagerConfig) { c.Triggers = q })
		ds := r.fail(3, func(_ int, d *engine.DeadLetter) { d.Channel, d.Category = ChannelTrigger, "" })
		r.run()
		p := r.plan(api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{IDs: []string{LetterID(&ds[0]), LetterID(&ds[2])}}})
		j := r.until(r.apply(p, "").ID, JobDone)
		r.sums(j)
		if len(q) != 2 || q["trg_"+ds[0].ID.Base.String()] != 1 || j.Done != 2 || r.calls() != 0 {
			t.Errorf("%v %+v", q, j)
		}
	})
}

// TestManyLetters: a filter that matches a million is planned in a bounded
// number of bytes: the set is 8 bytes to 32 an entry while a job is made, and a
// few when it is stored.
func TestManyLetters(t *testing.T) {
	t.Parallel()
	const n = 1_000_000
	one := (&rig{}).letter(1)
	walk := lettersOf(func(fn func(*engine.DeadLetter) error) error {
		for i := range uint64(n) {
			d := one
			d.Ord = i + 1
			if err := fn(&d); err != nil {
				return err
			}
		}
		return nil
	})
	p := planner{letters: walk, now: time.Now}
	s, err := p.buildSet(t.Context(), api.JobSpec{Kind: KindReplay, Filter: all, UpTo: n})
	if err != nil || s.plan.Entries != n || len(s.entries) != 0 {
		t.Fatal(len(s.entries), err)
	}
	p.keep = true
	kept, err := p.buildSet(t.Context(), api.JobSpec{Kind: KindReplay, Filter: all, UpTo: n})
	if err != nil || kept.plan.Digest != s.plan.Digest {
		t.Fatal(err)
	}
	size, met := 0, uint64(0)
	for _, page := range kept.pages() {
		size += len(page.Doc)
		es, err := readPage(page.Doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range es {
			if e.ord != met+1 {
				t.Fatalf("%d follows %d", e.ord, met)
			}
			met = e.ord
		}
	}
	if met != n || size > 2*n {
		t.Errorf("%d entries in %d bytes", met, size)
	}
	over := lettersOf(func(fn func(*engine.DeadLetter) error) error {
		for {
			d := one
			if err := fn(&d); err != nil {
				return err
			}
		}
	})
	_, err = (&planner{letters: over, now: time.Now, most: 1000}).buildSet(t.Context(), api.JobSpec{Kind: KindReplay, Filter: all, UpTo: 1})
	wantCode(t, err, notify.KindInvalid, "too_many")
}

type lettersOf func(fn func(*engine.DeadLetter) error) error

func (lettersOf) Put(context.Context, []engine.DeadLetter) error { return nil }
func (lettersOf) Get(context.Context, notify.ID, uint16) (engine.DeadLetter, error) {
	return engine.DeadLetter{}, nil
}
func (lettersOf) Feed(context.Context, string, uint64, int) ([]engine.DeadLetter, error) {
	return nil, nil
}
func (lettersOf) List(context.Context, engine.DeadLetterFilter, []byte, int) ([]engine.DeadLetter, []byte, error) {
	return nil, nil, nil
}
func (l lettersOf) Walk(_ context.Context, _, _ uint64, fn func(*engine.DeadLetter) error) error {
	return l(fn)
}
func (lettersOf) Last(context.Context) (uint64, error)                      { return 0, nil }
func (lettersOf) Move(context.Context, []engine.LetterMove) ([]bool, error) { return nil, nil }
func (lettersOf) Purge(context.Context, int64) (int, error)                 { return 0, nil }

func TestAuditOfJobs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(5, nil)
		r.run()
		p := r.plan(api.JobSpec{Kind: KindReplay, Filter: api.LetterFilter{Caller: "shop"}})
		j, _, err := r.m.Apply(t.Context(), api.JobRequest{Spec: p.Spec, Digest: p.Digest}, By{Caller: "ann", Context: "prod", Reason: "incident 7", Request: "req-1"})
		if err != nil {
			t.Fatal(err)
		}
		r.until(j.ID, JobDone)
		synctest.Wait()
		acts, err := r.cfg.Audit.Acts(t.Context(), 0, 10)
		if err != nil || len(acts) != 2 {
			t.Fatal(acts, err)
		}
		a := acts[0]
		if a.Actor != "ann" || a.Context != "prod" || a.Reason != "incident 7" || a.Request != "req-1" || a.Digest != p.Digest ||
			a.Counts["entries"] != 5 || string(a.Filter) != `{"caller":"shop"}` || a.Target != j.ID {
			t.Errorf("%+v", a)
		}
		if b := acts[1]; b.Actor != "notifyd" || b.Result != JobDone || b.Counts["done"] != 5 || b.Counts["planned"] != 5 {
			t.Errorf("%+v", b)
		}
	})
}
