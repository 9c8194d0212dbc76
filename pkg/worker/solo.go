package worker

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Solo lets the workers of a process call the provider for a few receivers while no
// other call is under way in the process. All workers of a process share one Solo:
// a receiver that kills the process ends every call of it, whatever its lane.
//
// Calls enter and leave; solo runs lock and unlock. Runs go in groups. A group waits
// for the calls under way and holds back later calls. The calls that it held back go
// before the next group, so that many groups in a row do not stop the other lanes.
// The first group has one receiver, and each group twice as many as the group before,
// up to maxSoloRun. A process that was killed begins with one receiver again, and the
// receivers of finished groups are done, so the receiver that kills is alone in the end.
//
// No deadlock: a goroutine that has entered, or holds the lock, waits for nothing
// but the store and the provider's answer. It must get its turn, budget, capacity
// and permit before. Safe for concurrent use.
type Solo struct {
	mu      sync.Mutex
	calls   int             // entered and not left
	running int             // runs of the group under way
	size    int             // most receivers of the next group
	runs    []*soloRun      // that wait, in their order
	entries []chan struct{} // calls that wait; closed when they have entered
}

// soloRun is a run that waits, or is part of the group under way.
type soloRun struct {
	want  int           // receivers
	again bool          // its one receiver died alone before: it gets a group of its own, and goes first
	ready chan struct{} // closed when got and alone are set
	got   int           // receivers that it may call, 1 to want
	alone bool          // the group is one receiver
}

// NewSolo returns a Solo that nothing holds.
func NewSolo() *Solo { return &Solo{size: 1} }

// enter waits until no run is under way or waits. It returns ctx's error if ctx
// ends first; then the caller must not leave.
func (s *Solo) enter(ctx context.Context) error {
	s.mu.Lock()
	if s.running == 0 && len(s.runs) == 0 {
		s.calls++
		s.mu.Unlock()
		return nil
	}
	c := make(chan struct{})
	s.entries = append(s.entries, c)
	s.mu.Unlock()
	return s.await(ctx, c, func() bool {
		n := len(s.entries)
		s.entries = slices.DeleteFunc(s.entries, func(o chan struct{}) bool { return o == c })
		return len(s.entries) < n
	}, s.leave)
}

// await waits for c. If ctx ends first it takes out what waits, or calls undo when c
// was served at the same moment, and returns ctx's error. takeOut holds the mutex and
// reports whether it still waited.
func (s *Solo) await(ctx context.Context, c chan struct{}, takeOut func() bool, undo func()) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	waited := takeOut()
	if waited && len(s.runs) == 0 && s.running == 0 {
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

// lock waits until no call and no other group is under way. It returns ctx's error if
// ctx ends first; then the caller must not unlock. want and again are those of soloRun.
func (s *Solo) lock(ctx context.Context, want int, again bool) (*soloRun, error) {
	r := &soloRun{want: want, again: again, ready: make(chan struct{})}
	s.mu.Lock()
	s.runs = append(s.runs, r)
	s.nextGroupLocked()
	s.mu.Unlock()
	return r, s.await(ctx, r.ready, func() bool {
		n := len(s.runs)
		s.runs = slices.DeleteFunc(s.runs, func(o *soloRun) bool { return o == r })
		return len(s.runs) < n
	}, s.unlock)
}

// unlock ends a run. The last one of a group lets the calls go that it held back.
func (s *Solo) unlock() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running--; s.running > 0 {
		return
	}
	s.size = min(2*s.size, maxSoloRun)
	s.admitLocked()
	s.nextGroupLocked()
}

func (s *Solo) admitLocked() {
	s.calls += len(s.entries)
	for _, c := range s.entries {
		close(c)
	}
	s.entries = nil
}

// nextGroupLocked begins the next group where nothing is under way.
func (s *Solo) nextGroupLocked() {
	if s.running > 0 || s.calls > 0 || len(s.runs) == 0 {
		return
	}
	group := s.runs[:0:0]
	if i := slices.IndexFunc(s.runs, func(r *soloRun) bool { return r.again }); i >= 0 {
		s.runs[i].got = 1
		group = append(group, s.runs[i])
		s.runs = slices.Delete(s.runs, i, i+1)
	} else {
		for room := s.size; room > 0 && len(s.runs) > 0; s.runs = s.runs[1:] {
			r := s.runs[0]
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

// passKind is what a round holds of the worker's Solo.
type passKind uint8

const (
	noPass   passKind = iota
	callPass          // it has entered
	soloPass          // the goroutine that runs it holds the lock
)

// maxSoloRun bounds the receivers of one group of solo runs. A group takes as long as
// its slowest call, so few receivers a group make spans that many kills have left take
// minutes. A receiver that kills the process costs some eight restarts more.
const maxSoloRun = 256

// firstSolo is the value of Row.Starts once an envelope's receivers run solo. Each
// run of the receiver at DoneUpTo alone adds one until its outcome is durable. Groups
// of more receivers add nothing: they do not show which receiver kills.
func (c *Config) firstSolo() uint16 { return uint16(c.MaxStarts) + 1 }

// runSolo calls the receivers of [from, to) in solo runs. It returns false if the
// partition is going.
func (j *job) runSolo(from, to uint32) bool {
	if !j.myTurn() { // before the lock: the envelope before may need it
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

// callSolo calls the receivers from one position up to below another, or as many of
// them as the group and the permit have room for, and returns where it ended. It keeps
// the lock until their outcomes are durable: if the next group killed the process
// before, one of these would be taken for the receiver that kills.
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
		j.found.starts = first
		return j.snapshotLocked(), true
	}) == nil
}

// lockSolo waits until the provider may be called for up to n receivers, and then for
// the lock. It gives the lock back rather than wait while it holds it. again: the first
// of them died alone before. False: the partition is going, and nothing is held.
func (j *job) lockSolo(n int, again bool) (*soloRun, notify.Permit, bool) {
	p, e := j.p, &j.env
	cfg := &p.w.cfg
	for {
		if !cfg.Gate.wait(p.soft, e.Expires) || !p.fresh() || !cfg.Health.waitReady(p.soft, &cfg.Routes, e.Expires) {
			return nil, nil, false
		}
		want := n
		if again {
			want = 1
		}
		var permit notify.Permit
		if p.w.rated != nil {
			var retry bool
			if permit, retry = p.permit(e.Category, want, expiry(e)); retry {
				continue
			}
			if permit != nil {
				want = min(want, permit.Messages())
			}
		}
		if err := p.soft.Err(); err != nil {
			if permit != nil {
				permit.Release()
			}
			return nil, nil, false
		}
		run, err := cfg.Solo.lock(p.soft, want, again)
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

// giveUp ends the receiver that killed the process each time it was called alone.
// An earlier attempt of it may have been taken by the provider: then it has not
// failed for certain.
func (j *job) giveUp(pos uint32) {
	x := notify.Exception{State: notify.Failed, Code: "killed_worker"}
	if strings.HasPrefix(j.env.Cause, causeMaybe) {
		x.State = notify.Unknown
	}
	j.settleLocked(pos, x)
}
