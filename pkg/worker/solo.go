package worker

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Solo lets a worker call the provider for a few receivers while no other call is under way in
// the process. All workers of a process share one Solo, because a receiver that kills the
// process ends every call of it, in any lane.
//
// Normal calls enter and leave; solo runs lock and unlock. Runs form groups. A group waits for
// the calls under way and holds back later calls. The calls that it held back go before the next
// group, so that many groups in a row do not stop the other lanes. The first group has one
// receiver, and each next group twice as many, up to maxSoloRun. After a crash the process
// begins with one receiver again. Receivers of finished groups are done, so in the end the
// receiver that kills is alone.
//
// There is no deadlock: a goroutine that has entered, or holds the lock, waits only for the
// store and for the provider's answer. It must get its turn, budget, capacity and permit before.
// Solo is safe for concurrent use.
type Solo struct {
	mu           sync.Mutex      // guards the fields below
	calls        int             // calls that entered and have not left
	running      int             // runs of the group under way
	nextSize     int             // most receivers of the next group
	waitingRuns  []*soloRun      // runs that wait, in order
	waitingCalls []chan struct{} // calls that wait; each channel is closed when its call has entered
}

// soloRun is a run that waits, or is part of the group under way.
type soloRun struct {
	want  int           // receivers that it wants to call
	again bool          // its first receiver was called alone before, and the process died: it goes first, in a group of its own
	ready chan struct{} // closed when got and alone are set
	got   int           // receivers that it may call, 1 to want
	alone bool          // the whole group is one receiver
}

// NewSolo returns a Solo that is not locked.
func NewSolo() *Solo { return &Solo{nextSize: 1} }

// enter waits until no run is under way or waits. If ctx ends first, it returns ctx's error, and
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

// await waits until c is closed. If ctx ends first, it returns ctx's error. Then it calls
// takeOut to stop waiting. If takeOut reports that c was served at the same moment, await calls
// undo. takeOut runs with mu held.
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

// leave ends a call that entered.
func (s *Solo) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
	s.nextGroupLocked()
}

// lock waits until no call and no other group is under way. If ctx ends first, it returns ctx's
// error, and the caller must not call unlock. want and again are those of soloRun.
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

// unlock ends a run. The last run of a group lets the calls go that the group held back.
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

// admitLocked lets all waiting calls enter. The caller holds mu.
func (s *Solo) admitLocked() {
	s.calls += len(s.waitingCalls)
	for _, c := range s.waitingCalls {
		close(c)
	}
	s.waitingCalls = nil
}

// nextGroupLocked starts the next group if nothing is under way. The caller holds mu.
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

// passKind says what a round holds of the worker's Solo.
type passKind uint8

const (
	noPass   passKind = iota
	callPass          // the round has entered
	soloPass          // the round's goroutine holds the lock
)

// maxSoloRun bounds the receivers of one group of solo runs. A group takes as long as its
// slowest call. With few receivers a group, the ranges that many kills leave behind would take
// minutes. With this many, a receiver that kills the process costs about eight more restarts.
const maxSoloRun = 256

// firstSolo returns the value of Row.Starts from which an envelope's receivers run solo. Each
// run of the receiver at DoneUpTo alone adds one until its outcome is durable. Groups of more
// receivers add nothing, because they do not show which receiver kills the process.
func (c *Config) firstSolo() uint16 { return uint16(c.MaxStarts) + 1 }

// runSolo calls the receivers in [from, to) in solo runs. It returns false if the partition is
// being drained.
func (j *job) runSolo(from, to uint32) bool {
	if !j.waitTurn() { // wait before taking the lock: an earlier envelope may need the lock
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

// callSolo calls the receivers in [from, to), or as many of them as the group and the permit
// allow, and returns where it ended. It keeps the lock until their outcomes are durable.
// Otherwise, if the next group killed the process, one of these receivers would be taken for the
// one that kills.
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

// lockSolo waits until the provider may be called for up to n receivers, and then takes the
// lock. If it would have to wait again while it holds the lock, it gives the lock back first.
// again says that the first of the receivers was called alone before and the process died. It
// returns false, and holds nothing, if the partition is being drained.
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

// failKiller ends the receiver that killed the process each time it was called alone. It becomes
// UNKNOWN instead of FAILED if the provider may have processed an earlier attempt.
func (j *job) failKiller(pos uint32) {
	x := notify.Exception{State: notify.Failed, Code: "killed_worker"}
	if strings.HasPrefix(j.env.Cause, causeMaybe) {
		x.State = notify.Unknown
	}
	j.settleLocked(pos, x)
}
