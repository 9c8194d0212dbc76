package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
)

// wire is a Broadcast that counts, and that may be away.
type wire struct {
	engine.Broadcast
	away           atomic.Bool
	sends, listens atomic.Int64
}

var errAway = errors.New("the server is away")

func (w *wire) Send(ctx context.Context, channel string, m []byte) error {
	w.sends.Add(1)
	if w.away.Load() {
		return errAway
	}
	return w.Broadcast.Send(ctx, channel, m)
}

func (w *wire) Listen(ctx context.Context, channel string, ready func(), fn func([]byte)) error {
	w.listens.Add(1)
	if w.away.Load() {
		return errAway
	}
	return w.Broadcast.Listen(ctx, channel, ready, func(m []byte) {
		if !w.away.Load() {
			fn(m)
		}
	})
}

// tailed is a process that shows tails and answers those of others.
type tailed struct {
	*Tails
	own   *deadletter.Tail
	beats *killable
	stop  func()
}

// tails starts a process of a role.
func tails(t *testing.T, beats engine.Heartbeats, w engine.Broadcast, name, role string) *tailed {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p, started := &tailed{own: &deadletter.Tail{}, beats: &killable{Heartbeats: beats}}, time.Now()
	cards := &Cards{Beats: p.beats, Owner: name + "-1", Own: func(context.Context) Card {
		return Card{Process: api.Process{Name: name, State: api.ProcessReady, Roles: []string{role}, StartedAt: started}}
	}}
	s := NewStandings(p.beats, name+"-1")
	p.Tails = NewTails(p.own, name, w, s, cards)
	done := make(chan error, 3)
	go func() { done <- cards.Run(ctx) }()
	go func() {
		done <- s.Share(ctx, nil, func(notify.Lane) (server.LaneStop, bool) { return server.LaneStop{}, false })
	}()
	var lanes []notify.Lane
	if strings.HasPrefix(role, RoleWorker) {
		lanes = notify.Lanes()
	}
	go func() { done <- p.Run(ctx, lanes) }()
	p.stop = func() {
		cancel()
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	return p
}

// outcome is an outcome of a caller, with a number.
func (p *tailed) outcome(caller string, n int) {
	p.own.Publish(&api.Event{Type: api.EventOutcome, Caller: caller, Channel: "push", Status: "SENT", NotificationID: fmt.Sprint("ntf_", n)})
}

// watcher reads a tail.
type watcher struct {
	t      *testing.T
	events <-chan api.Event
	missed func() int64
	stop   context.CancelFunc
}

func (p *tailed) watch(t *testing.T, f api.TailFilter) *watcher {
	ctx, stop := context.WithCancel(t.Context())
	w := &watcher{t: t, stop: stop}
	w.events, w.missed = p.Subscribe(ctx, f)
	return w
}

// sees returns the outcomes and the other events that came, each as a text.
func (w *watcher) sees() (outcomes, others []string) {
	for {
		synctest.Wait()
		select {
		case e, ok := <-w.events:
			switch {
			case !ok:
				return outcomes, others
			case e.Type == api.EventOutcome:
				outcomes = append(outcomes, e.Process+" "+e.Caller+" "+e.NotificationID)
			case e.Type == api.EventGap:
				others = append(others, fmt.Sprintf("gap %s %d", e.Process, e.Dropped))
			default:
				text := e.Type + " " + strings.Join(e.Processes, ",")
				for i := range e.Missing {
					text += " -" + e.Missing[i].Name
				}
				others = append(others, text)
			}
		default:
			return outcomes, others
		}
	}
}

// wants fails the test unless exactly these events have come, in any order of outcomes.
func (w *watcher) wants(outcomes, others []string) {
	w.t.Helper()
	got, rest := w.sees()
	slices.Sort(got)
	if !slices.Equal(got, outcomes) || !slices.Equal(rest, others) {
		w.t.Fatalf("it sees %q and %q, want %q and %q", got, rest, outcomes, others)
	}
}

// TestTailShowsAllProcesses: a tail shows the outcomes of all processes that its filter
// takes, whichever process is asked, and names a process that does not answer. When it is
// over, no process works for it.
func TestTailShowsAllProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		beats, w := memory.NewHeartbeats(), &wire{Broadcast: memory.NewBroadcast()}
		front, pushes, mails := tails(t, beats, w, "front", RoleAPI), tails(t, beats, w, "pushes", "worker:push"), tails(t, beats, w, "mails", "worker:email")
		time.Sleep(time.Minute)
		if w.sends.Load() != 0 || w.listens.Load() != 0 || mails.own.Watching() {
			t.Errorf("without a tail %d messages, %d listeners", w.sends.Load(), w.listens.Load())
		}
		at, of := front.watch(t, api.TailFilter{Caller: "shop"}), mails.watch(t, api.TailFilter{})
		time.Sleep(standingBeat + time.Second)
		at.wants(nil, []string{"processes mails,pushes"})
		of.wants(nil, []string{"processes mails,pushes"})
		for i, p := range []*tailed{pushes, mails} {
			p.outcome("shop", i)
			p.outcome("bank", i)
		}
		time.Sleep(time.Second)
		at.wants([]string{"mails shop ntf_1", "pushes shop ntf_0"}, nil)
		of.wants([]string{"mails bank ntf_1", "mails shop ntf_1", "pushes bank ntf_0", "pushes shop ntf_0"}, nil)

		// A message cannot widen what the filter takes.
		for _, e := range []string{`{"type":"outcome","caller":"bank"}`, `{"type":"processes","processes":["x"]}`, `{`} {
			b, _ := json.Marshal(tailMessage{Tail: "tail:1", Owner: "mails-1", Name: "mails", Events: []json.RawMessage{json.RawMessage(e)}})
			_ = w.Broadcast.Send(t.Context(), tailChannel("front-1"), b)
		}
		time.Sleep(time.Second)
		at.wants(nil, nil)

		// One that hangs is named although its card is fresh.
		last := func(want string) {
			t.Helper()
			if _, others := at.sees(); len(others) == 0 || others[len(others)-1] != want {
				t.Fatalf("%q, want %q", others, want)
			}
		}
		pushes.stop()
		time.Sleep(tailSilent + cardBeat)
		last("processes mails")
		hung := &Cards{Beats: beats, Owner: "hung-1", Own: func(context.Context) Card {
			return Card{Process: api.Process{Name: "hung", State: api.ProcessReady, Roles: []string{RoleWorker}}}
		}}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = hung.Run(ctx) }()
		time.Sleep(cardBeat + tailSilent + 2*time.Second)
		last("processes mails -hung")
		cancel()
		time.Sleep(2 * cardBeat)
		last("processes mails")

		at.stop()
		of.stop()
		time.Sleep(2*standingBeat + time.Second)
		all, _, err := beats.Alive(t.Context(), standingGroup, 0)
		if err != nil || len(all) != 0 || mails.own.Watching() || front.own.Watching() {
			t.Errorf("after the tails %d wishes are there: %v", len(all), err)
		}
		before := w.sends.Load()
		time.Sleep(time.Minute)
		if now := w.sends.Load(); now != before {
			t.Errorf("after the tails %d messages were sent", now-before)
		}
		front.stop()
		mails.stop()
	})
}

// TestTailIsBounded: however many outcomes there are, all processes send at most
// tailOutcomes a second, and each outcome is either shown or counted in a gap.
func TestTailIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		beats, w := memory.NewHeartbeats(), &wire{Broadcast: memory.NewBroadcast()}
		front := tails(t, beats, w, "front", RoleAPI)
		var workers []*tailed
		for i := range 4 {
			workers = append(workers, tails(t, beats, w, fmt.Sprint("worker", i), RoleWorker))
		}
		time.Sleep(time.Second) // all have told of themselves
		at := front.watch(t, api.TailFilter{})
		time.Sleep(2 * standingBeat)
		at.sees()
		const seconds, each = 2, 10_000
		shown, left := 0, int64(0)
		take := func() {
			outcomes, others := at.sees()
			shown += len(outcomes)
			for _, text := range others {
				var n int64
				if fields := strings.Fields(text); fields[0] == "gap" {
					_, _ = fmt.Sscan(fields[2], &n)
				}
				left += n
			}
		}
		began := w.sends.Load()
		for i := range seconds * 100 {
			time.Sleep(10 * time.Millisecond)
			for _, p := range workers {
				for k := range each / 100 {
					p.outcome("shop", i*each+k)
				}
			}
			take()
		}
		if shown < seconds*tailOutcomes/2 || shown > (seconds+1)*tailOutcomes {
			t.Errorf("%d outcomes are shown in %d s, at most %d a second", shown, seconds, tailOutcomes)
		}
		if n := w.sends.Load() - began; n > (seconds+1)*tailMessages {
			t.Errorf("%d messages were sent in %d s", n, seconds)
		}
		time.Sleep(2 * tailAnswer)
		take()
		if all := int64(shown) + left + at.missed(); all != seconds*each*int64(len(workers)) {
			t.Errorf("%d shown, %d left out, %d missed, of %d", shown, left, at.missed(), seconds*each*len(workers))
		}
		at.stop()
		for _, p := range append(workers, front) {
			p.stop()
		}
	})
	for n, want := range map[int]time.Duration{0: tailPause, 1: tailPause, 64: 256 * time.Millisecond, 1024: tailAnswer} {
		w := tailWish{Workers: n}
		every, most := w.pace()
		if all := time.Duration(max(n, 1)*most) * time.Second / every; every != want || most < 1 || all > tailOutcomes {
			t.Errorf("%d workers: %d outcomes every %s each", n, most, every)
		}
	}
}

// TestTailWithoutTheServer: while the server is away a tail shows its own process and says
// so, other processes stop working for it, and it shows all again when the server is back.
func TestTailWithoutTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		beats, w := memory.NewHeartbeats(), &wire{Broadcast: memory.NewBroadcast()}
		a, b := tails(t, beats, w, "a", RoleWorker), tails(t, beats, w, "b", RoleWorker)
		away := func(is bool) {
			w.away.Store(is)
			a.beats.dead.Store(is)
			b.beats.dead.Store(is)
		}
		time.Sleep(cardBeat)
		away(true)
		at := a.watch(t, api.TailFilter{})
		a.outcome("shop", 1)
		b.outcome("shop", 1)
		time.Sleep(2 * time.Second)
		at.wants([]string{"a shop ntf_1"}, []string{"processes a -other processes"})
		away(false)
		time.Sleep(2*cardBeat + standingBeat)
		if _, others := at.sees(); len(others) == 0 || others[len(others)-1] != "processes a,b" {
			t.Fatalf("with the server back: %q", others)
		}
		b.outcome("shop", 2)
		time.Sleep(time.Second)
		at.wants([]string{"b shop ntf_2"}, nil)
		w.away.Store(true) // for a moment: what could not be sent is counted
		b.outcome("shop", 3)
		b.outcome("shop", 4)
		time.Sleep(time.Second)
		w.away.Store(false)
		time.Sleep(tailAnswer + 2*time.Second)
		at.wants(nil, []string{"gap b 2"})
		if !b.own.Watching() {
			t.Error("b does not answer")
		}
		away(true)
		time.Sleep(standingTTL + 2*standingBeat + time.Second)
		if b.own.Watching() {
			t.Error("b still works for a tail that it has not heard of for 10 s")
		}
		a.outcome("shop", 3)
		time.Sleep(2 * cardBeat)
		outcomes, others := at.sees()
		if last := others[len(others)-1]; !slices.Equal(outcomes, []string{"a shop ntf_3"}) || !strings.Contains(last, "processes a -") || !strings.Contains(last, "other processes") {
			t.Errorf("%q %q", outcomes, others)
		}
		away(false)
		time.Sleep(2 * cardBeat)

		// The process that shows the tail dies: its wish is over with its heartbeat.
		a.beats.dead.Store(true)
		time.Sleep(standingTTL + 2*standingBeat)
		if b.own.Watching() {
			t.Error("b works for the tail of a process that died")
		}
		at.stop()
		a.stop()
		b.stop()
	})
}

// TestTailThatCannotListen: where the server refuses to let a process listen, its tail says
// so, although the other processes are well.
func TestTailThatCannotListen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		beats, w := memory.NewHeartbeats(), &wire{Broadcast: memory.NewBroadcast()}
		a, b := tails(t, beats, w, "a", RoleWorker), tails(t, beats, w, "b", RoleWorker)
		time.Sleep(time.Second)
		w.away.Store(true)
		at := a.watch(t, api.TailFilter{})
		time.Sleep(standingBeat)
		at.wants(nil, []string{"processes a -other processes"})
		at.stop()
		a.stop()
		b.stop()
	})
}

// TestTooManyTails: processes answer mostTails tails of the cluster, mostCallerTails of a
// caller, the earliest first. A later one shows its own process and says so, and has its
// turn when another one ends.
func TestTooManyTails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		beats, w := memory.NewHeartbeats(), &wire{Broadcast: memory.NewBroadcast()}
		a, b, worker := tails(t, beats, w, "a", RoleAPI), tails(t, beats, w, "b", RoleAPI), tails(t, beats, w, "worker", RoleWorker)
		time.Sleep(time.Second)
		var at []*watcher
		last := func(i int) string {
			_, others := at[i].sees()
			if others == nil {
				return ""
			}
			return others[len(others)-1]
		}
		for i := range mostTails + 1 {
			at = append(at, []*tailed{a, b}[i%2].watch(t, api.TailFilter{Caller: fmt.Sprint("caller-", i)}))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * standingBeat)
		for i := range mostTails {
			if got := last(i); got != "processes worker" {
				t.Errorf("tail %d: %q", i, got)
			}
		}
		if got := last(mostTails); got != "processes  -other processes" {
			t.Errorf("the tail that is one too many: %q", got)
		}
		at[3].stop()
		time.Sleep(5 * standingBeat)
		if got := last(mostTails); got != "processes worker" {
			t.Errorf("after another one has ended: %q", got)
		}
		for _, one := range at {
			one.stop()
		}
		at = nil
		for range mostCallerTails + 1 {
			at = append(at, a.watch(t, api.TailFilter{Caller: "shop"}))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * standingBeat)
		if got := last(mostCallerTails); got != "processes  -other processes" {
			t.Errorf("the caller's tail that is one too many: %q", got)
		}
		if got := last(mostCallerTails - 1); got != "processes worker" {
			t.Errorf("the caller's tail before: %q", got)
		}
		for _, one := range at {
			one.stop()
		}
		for _, p := range []*tailed{a, b, worker} {
			p.stop()
		}
	})
}
