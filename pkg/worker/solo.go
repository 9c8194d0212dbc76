package worker

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Solo lets a worker call the provider for a few receivers while the process makes no other call.
// All workers of a process share one Solo, because a receiver that kills the process breaks off
// every call of the process, in any lane.
//
// A normal call uses the methods enter and leave, and a solo run uses lock and unlock. Runs form
// groups. A group begins when no call is in flight, and delays later calls. The delayed calls are
// made before the next group, so that many groups do not stop the other lanes.
//
// The first group has one receiver, and each next group has twice as many, up to maxSoloRun. If a
// group kills the process, the next process begins with one receiver again. Finished receivers are
// not called again. So in the end the receiver that kills the process is called alone.
//
// There is no deadlock: a goroutine that has entered, or that has the lock, waits only for the
// store and for the provider's answer. Before it enters or locks, it must have its turn, budget,
// capacity and permit. A Solo is safe for concurrent use.
type Solo struct {
	mu           sync.Mutex      // guards the fields below
	calls        int             // calls that entered and have not left
	running      int             // runs of the current group that have not ended
	nextSize     int             // largest number of receivers in the next group
	waitingRuns  []*soloRun      // waiting runs, in order
	waitingCalls []chan struct{} // calls that wait; each channel is closed when its call has entered
}

// soloRun is a solo run that waits or is in the current group.
type soloRun struct {
	want int // number of receivers that the run wants to call
	// again is true if the first receiver of the run was called alone before and the process died.
	// Such a run goes first, as the only run of its group.
	again bool
	ready chan struct{} // closed when the fields got and alone are set
	got   int           // number of receivers that the run may call, from 1 to want
	alone bool          // the whole group has only one receiver
}

// NewSolo returns a Solo that is not locked.
func NewSolo() *Solo { return &Solo{nextSize: 1} }

// enter waits until no solo run is active or waits. If ctx ends first, it returns ctx's error, and
// the caller must not call leave.
func (s *Solo) enter(ctx context.Context) error {
	s.mu.Lock()
	if s.running == 0 && len(s.waitingRuns) == 0 {
		s.calls++
		s.mu.Unlock()
		return nil
	}
	c := make(chan struct{})
	s.waitingCalls = append(s.waitingCalls, c)
	s.mu.Unlock()
	return s.await(ctx, c, func() bool {
		n := len(s.waitingCalls)
		s.waitingCalls = slices.DeleteFunc(s.waitingCalls, func(o chan struct{}) bool { return o == c })
		return len(s.waitingCalls) < n
	}, s.leave)
}

// await waits until c is closed. If ctx ends first, await calls takeOut with mu held, and returns
// ctx's error. takeOut removes the waiting call or run from its queue. If takeOut returns false,
// the call or run has started already, and await calls undo.
func (s *Solo) await(ctx context.Context, c chan struct{}, takeOut func() bool, undo func()) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	waited := takeOut()
	if waited && len(s.waitingRuns) == 0 && s.running == 0 {
		s.admitLocked()
	}
	s.mu.Unlock()
	if !waited {
		undo()
	}
	return ctx.Err()
}

// leave ends a call that has entered.
func (s *Solo) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
	s.nextGroupLocked()
}

// lock waits until no call and no other group is active, and returns the run that it has started.
// The parameters want and again become the fields of that run. If ctx ends first, lock returns
// ctx's error, and the caller must not call unlock.
func (s *Solo) lock(ctx context.Context, want int, again bool) (*soloRun, error) {
	r := &soloRun{want: want, again: again, ready: make(chan struct{})}
	s.mu.Lock()
	s.waitingRuns = append(s.waitingRuns, r)
	s.nextGroupLocked()
	s.mu.Unlock()
	return r, s.await(ctx, r.ready, func() bool {
		n := len(s.waitingRuns)
		s.waitingRuns = slices.DeleteFunc(s.waitingRuns, func(o *soloRun) bool { return o == r })
		return len(s.waitingRuns) < n
	}, s.unlock)
}

// unlock ends a run. When the last run of a group ends, the calls that the group delayed may enter.
func (s *Solo) unlock() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running--; s.running > 0 {
		return
	}
	s.nextSize = min(2*s.nextSize, maxSoloRun)
	s.admitLocked()
	s.nextGroupLocked()
}

// admitLocked lets all waiting calls enter. s.mu must be held.
func (s *Solo) admitLocked() {
	s.calls += len(s.waitingCalls)
	for _, c := range s.waitingCalls {
		close(c)
	}
	s.waitingCalls = nil
}

// nextGroupLocked starts the next group if no call and no run is active. s.mu must be held.
func (s *Solo) nextGroupLocked() {
	if s.running > 0 || s.calls > 0 || len(s.waitingRuns) == 0 {
		return
	}
	group := s.waitingRuns[:0:0]
	if i := slices.IndexFunc(s.waitingRuns, func(r *soloRun) bool { return r.again }); i >= 0 {
		s.waitingRuns[i].got = 1
		group = append(group, s.waitingRuns[i])
		s.waitingRuns = slices.Delete(s.waitingRuns, i, i+1)
	} else {
		for room := s.nextSize; room > 0 && len(s.waitingRuns) > 0; s.waitingRuns = s.waitingRuns[1:] {
			r := s.waitingRuns[0]
			r.got = min(r.want, room)
			room -= r.got
			group = append(group, r)
		}
	}
	s.running = len(group)
	for _, r := range group {
		r.alone = len(group) == 1 && r.got == 1
		close(r.ready)
	}
}

// passKind says whether a round has entered or locked the worker's Solo.
type passKind uint8

const (
	noPass   passKind = iota
	callPass          // the round has entered
	soloPass          // the round's goroutine has the lock
)

// maxSoloRun is the largest number of receivers in one group of solo runs. A crash may leave
// thousands of ambiguous receivers. One group takes as long as its slowest call, so with small
// groups these receivers would take minutes. A larger group has a price: to find the one receiver
// among 256 that kills the process, the process restarts about eight times more.
const maxSoloRun = 256

// firstSolo returns the lowest value of Row.Starts at which an envelope needs solo runs. Each time the
// receiver at DoneUpTo is called alone, Row.Starts grows by one. A group of several receivers does
// not increase Row.Starts, because it does not show which receiver kills the process.
func (c *Config) firstSolo() uint16 { return uint16(c.MaxStarts) + 1 }

// runSolo calls the receivers in [from, to) in solo runs. It returns false if the partition is
// being drained.
func (j *job) runSolo(from, to uint32) bool {
	if !j.waitTurn() { // wait before locking: an earlier envelope may need the lock
		return false
	}
	for from < to {
		end, ok := j.callSolo(from, to)
		if !ok {
			return false
		}
		from = end
	}
	return true
}

// callSolo calls as many receivers in [from, to) as the group and the permit allow. It returns the
// position after the last called receiver. It keeps the lock until the outcomes are durable.
// Otherwise the next group could kill the process before that, and one of these receivers could get
// the blame.
func (j *job) callSolo(from, to uint32) (end uint32, ok bool) {
	p := j.p
	first := p.w.cfg.firstSolo()
	j.mu.Lock()
	again := j.starts > first
	j.mu.Unlock()
	run, permit, ok := j.lockSolo(int(min(to-from, maxSoloRun, uint32(p.w.cfg.Window))), again)
	if !ok {
		return from, false
	}
	defer p.w.cfg.Solo.unlock()
	if permit != nil {
		defer permit.Release()
	}
	to = from + uint32(run.got)
	w := j.newWindow(from, to)
	j.mu.Lock()
	j.windows++
	if run.alone {
		j.starts++
	} else {
		j.starts = first
	}
	j.mu.Unlock()
	if j.claim(w) != nil {
		return from, false
	}
	p.w.runWindow([]*window{w}, permit, soloPass)
	j.mu.Lock()
	done := bytes.IndexByte(j.settled[from:to], 0) < 0
	j.mu.Unlock()
	if !done { // the partition is gone
		return from, false
	}
	return to, j.commit(func() (notify.Row, bool) {
		j.starts = first
		j.resumedRow.starts = first
		return j.snapshotLocked(), true
	}) == nil
}

// lockSolo waits until the provider may be called for up to n receivers, and then locks the Solo.
// If the provider may not be called any more by then, it unlocks and waits again. The parameter
// again has the same meaning as in soloRun. If the partition is being drained, lockSolo returns
// false without the lock.
func (j *job) lockSolo(n int, again bool) (*soloRun, notify.Permit, bool) {
	p, e := j.p, &j.env
	cfg := &p.w.cfg
	for {
		if !cfg.Gate.wait(p.untilDrain, e.Expires) || !p.waitFresh() || !cfg.Health.waitReady(p.untilDrain, &cfg.Routes, e.Expires) {
			return nil, nil, false
		}
		want := n
		if again {
			want = 1
		}
		var permit notify.Permit
		if p.w.rated != nil {
			var retry bool
			if permit, retry = p.requestPermit(e.Category, want, expiryTime(e)); retry {
				continue
			}
			if permit != nil {
				want = min(want, permit.Messages())
			}
		}
		if err := p.untilDrain.Err(); err != nil {
			if permit != nil {
				permit.Release()
			}
			return nil, nil, false
		}
		run, err := cfg.Solo.lock(p.untilDrain, want, again)
		if err == nil && p.mayCall(e) {
			return run, permit, true
		}
		if permit != nil {
			permit.Release()
		}
		if err != nil {
			return nil, nil, false
		}
		cfg.Solo.unlock()
	}
}

// failKiller ends the receiver at pos, which killed the process each time it was called alone. The
// state is FAILED, or UNKNOWN if the provider may have processed an earlier attempt.
func (j *job) failKiller(pos uint32) {
	x := notify.Exception{State: notify.Failed, Code: "killed_worker"}
	if strings.HasPrefix(j.env.Cause, causeMaybe) {
		x.State = notify.Unknown
	}
	j.settleLocked(pos, x)
}
