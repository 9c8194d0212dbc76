package worker

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Solo lets the workers of a process call the provider for a few receivers while no
// other call is under way in the process. All workers of a process share one Solo:
// a receiver that kills the process ends every call of it, whatever its lane.
//
// Calls enter and leave; a solo run locks and unlocks. A run waits for the calls
// under way and holds back later calls. The calls that it held back go
// before the next run, so that many runs in a row do not stop the other lanes.
//
// No deadlock: a goroutine that has entered, or holds the lock, waits for nothing
// but the store and the provider's answer. It must get its turn, budget, capacity
// and permit before. Safe for concurrent use.
type Solo struct {
	mu      sync.Mutex
	calls   int             // entered and not left
	locked  bool            // by a run
	runs    []chan struct{} // runs that wait, in their order; closed when it has the lock
	entries []chan struct{} // calls that wait; closed when they have entered
}

// NewSolo returns a Solo that nothing holds.
func NewSolo() *Solo { return &Solo{} }

// enter waits until no run is under way or waits. It returns ctx's error if ctx
// ends first; then the caller must not leave.
func (s *Solo) enter(ctx context.Context) error {
	s.mu.Lock()
	if !s.locked && len(s.runs) == 0 {
		s.calls++
		s.mu.Unlock()
		return nil
	}
	c := make(chan struct{})
	s.entries = append(s.entries, c)
	s.mu.Unlock()
	return s.await(ctx, &s.entries, c, s.leave)
}

// await waits for c, which waits in the queue q. If ctx ends first it takes c out, or
// calls undo when c was served at the same moment, and returns ctx's error.
func (s *Solo) await(ctx context.Context, q *[]chan struct{}, c chan struct{}, undo func()) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(*q, c)
	if i >= 0 {
		*q = slices.Delete(*q, i, i+1)
		if len(s.runs) == 0 && !s.locked {
			s.admitLocked()
		}
	}
	s.mu.Unlock()
	if i < 0 {
		undo()
	}
	return ctx.Err()
}

// leave ends a call that entered.
func (s *Solo) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
	s.nextRunLocked()
}

// lock waits until no call and no other run is under way. It returns ctx's error if
// ctx ends first; then the caller must not unlock.
func (s *Solo) lock(ctx context.Context) error {
	s.mu.Lock()
	c := make(chan struct{})
	s.runs = append(s.runs, c)
	s.nextRunLocked()
	s.mu.Unlock()
	return s.await(ctx, &s.runs, c, s.unlock)
}

// unlock ends a run, and lets the calls go that it held back.
func (s *Solo) unlock() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locked = false
	s.admitLocked()
	s.nextRunLocked()
}

func (s *Solo) admitLocked() {
	s.calls += len(s.entries)
	for _, c := range s.entries {
		close(c)
	}
	s.entries = nil
}

func (s *Solo) nextRunLocked() {
	if s.locked || s.calls > 0 || len(s.runs) == 0 {
		return
	}
	s.locked = true
	close(s.runs[0])
	s.runs = s.runs[1:]
}

// passKind is what a round holds of the worker's Solo.
type passKind uint8

const (
	noPass   passKind = iota
	callPass          // it has entered
	soloPass          // the goroutine that runs it holds the lock
)

// maxSoloRun bounds the receivers of one solo run. A run takes as long as its
// slowest call, and only one run is under way in the process: with 16, spans that
// many kills had left took longer than 5 minutes on a busy machine. A receiver that
// kills the process costs at most eight restarts more.
const maxSoloRun = 256

// firstSolo is the value of Row.Starts once an envelope's receivers run solo. Each
// run of the receiver at DoneUpTo alone adds one until its outcome is durable. Runs
// of more receivers add nothing: they do not show which receiver kills.
func (c *Config) firstSolo() uint16 { return uint16(c.MaxStarts) + 1 }

// runSolo calls the receivers of [from, to) in solo runs. The first run has one
// receiver, and each run twice as many as the run before, up to maxSoloRun. After a
// crash it begins with one receiver again, so a receiver that kills the process is
// alone in the end. It returns false if the partition is going.
func (j *job) runSolo(from, to uint32) bool {
	if !j.myTurn() { // before the lock: the envelope before may need it
		return false
	}
	most := min(maxSoloRun, uint32(j.p.w.cfg.Window))
	for n := uint32(1); from < to; n = min(2*n, most) {
		end, ok := j.callSolo(from, min(from+n, to))
		if !ok {
			return false
		}
		from = end
	}
	return true
}

// callSolo calls the receivers from one position up to below another, or as many of
// them as the permit covers, and returns where it ended. It keeps the lock until
// their outcomes are durable: if the next solo run killed the process before, one of
// these would be taken for the receiver that kills.
func (j *job) callSolo(from, to uint32) (end uint32, ok bool) {
	p := j.p
	permit, ok := j.lockSolo(int(to - from))
	if !ok {
		return from, false
	}
	defer p.w.cfg.Solo.unlock()
	if permit != nil {
		defer permit.Release()
		to = min(to, from+uint32(permit.Messages()))
	}
	w := j.newWindow(from, to)
	j.mu.Lock()
	j.windows++
	if to-from == 1 {
		j.starts++
	} else {
		j.starts = p.w.cfg.firstSolo()
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
		j.starts = p.w.cfg.firstSolo()
		j.found.starts = j.starts
		return j.snapshotLocked(), true
	}) == nil
}

// lockSolo waits until the provider may be called for up to n receivers, and then for
// the lock. It gives the lock back rather than wait while it holds it. False: the
// partition is going, and nothing is held.
func (j *job) lockSolo(n int) (notify.Permit, bool) {
	p, e := j.p, &j.env
	cfg := &p.w.cfg
	for {
		if !cfg.Gate.wait(p.soft, e.Expires) || !p.fresh() || !cfg.Health.waitReady(p.soft, &cfg.Routes, e.Expires) {
			return nil, false
		}
		var permit notify.Permit
		if p.w.rated != nil {
			var again bool
			if permit, again = p.permit(e.Category, n, expiry(e)); again {
				continue
			}
		}
		locked := p.soft.Err() == nil && cfg.Solo.lock(p.soft) == nil
		if locked && p.mayCall(e) {
			return permit, true
		}
		if permit != nil {
			permit.Release()
		}
		if !locked {
			return nil, false
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

// enterToCall lets the round's next call begin, unless that has been done before
// its claim. When the partition is about to go, a window that is all of its job is
// left to the next owner; others may have been called in part and go on.
func (r *round) enterToCall(p *partition) error {
	if r.pass != noPass {
		return nil
	}
	err := r.w.cfg.Solo.enter(p.soft)
	if err != nil && !r.parts[0].whole() {
		err = r.w.cfg.Solo.enter(p.ctx)
	}
	if err == nil {
		r.pass = callPass
	}
	return err
}

// leaveCall ends what enterToCall began. A solo run keeps its lock.
func (r *round) leaveCall() {
	if r.pass == callPass {
		r.pass = noPass
		r.w.cfg.Solo.leave()
	}
}

// putOffSolo puts the items of a solo run off that would have to wait: while it
// waited, no lane of the process could call anybody. Earlier calls of them may have
// been taken.
func (r *round) putOffSolo(items []notify.Item, refs []ref, until time.Time) {
	for i, at := range refs {
		e := &r.parts[at.part].job.env
		r.wait(notify.Exception{Pos: at.pos, Addr: items[i].Addr, Of: at.of, Class: notify.ClassAmbiguous, Code: codeHandedOver}, e, until)
	}
}
