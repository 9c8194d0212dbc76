package worker

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// job is one envelope on its way.
type job struct {
	p    *partition
	env  notify.Envelope
	msg  message
	row  notify.Row // what does not change: key, count, digest, origin
	turn *turn      // nil: order does not matter

	index []uint32 // request index per position, derived envelopes only
	at    []mark   // one per window boundary: where its receivers begin

	// handIn is held from the snapshot of a row until it stands in the
	// committer's queue: else a claim that saw less could be written last.
	handIn sync.Mutex

	mu        sync.Mutex
	settled   []byte // per position: 1 if it has its outcome
	startedTo uint32
	doneTo    uint32
	resumedTo uint32   // positions below were started by a process that died
	starts    uint16   // how often, the start under way included
	found     struct { // what the row said when it was resumed
		starts uint16
		doneTo uint32
	}
	begun   bool // something was claimed by this owner
	resent  uint32
	def     notify.Exception   // the default outcome, once there is one
	ex      []notify.Exception // unsorted
	waits   notify.Exception   // what its rounds wait for; State None: nothing
	windows int                // not finished
	fate    decision
	claimed bool // all windows have been handed out
}

// mark is a place in the receivers' column.
type mark struct {
	pos uint32
	rd  notify.ReceiverReader
}

// decision says whether a job is called by this owner of the partition.
type decision uint8

const (
	undecided decision = iota
	called
	left // for the next owner
)

// window is a span of positions that is claimed, called and settled together.
type window struct {
	job    *job
	lo, hi uint32
	rd     notify.ReceiverReader // at lo
	// What it holds of the partition's quotas.
	budget, early int
}

// newJob makes the job of an envelope whose windows begin at windows, and returns the
// users' hashes for the order (only where they are few).
func newJob(p *partition, m message, env notify.Envelope, windows []notify.ReceiverReader) (*job, []uint64) {
	cfg := &p.w.cfg
	j := &job{p: p, env: env, msg: m}
	j.row = notify.Row{
		Key: env.Key(), Count: env.Count, Digest: notify.ColumnDigest(env.Receivers),
		Caller: env.Caller, Campaign: env.Campaign, Channel: env.Channel, Category: env.Category,
		Accepted: env.Accepted, Topic: m.Topic, LogPart: m.Partition, Offset: m.Offset,
	}
	small := env.Count < barrierFrom && cfg.Role == First
	var hashes []uint64
	if small {
		hashes = make([]uint64, 0, env.Count)
	}
	derived := env.Derived()
	j.at = make([]mark, len(windows))
	for i, rd := range windows {
		j.at[i] = mark{uint32(i * cfg.Window), rd}
	}
	rd := notify.ReadReceivers(env.Receivers)
	for r := (notify.Receiver{}); (small || derived) && rd.Next(&r); {
		if small {
			hashes = append(hashes, notify.HashUser(r.User))
		}
		if derived {
			j.index = append(j.index, r.Index)
		}
	}
	j.row.Index = j.index
	j.settled = make([]byte, env.Count)
	return j, hashes
}

// resume takes over what an earlier start of the same envelope left: outcomes
// below DoneUpTo stand; receivers from there to StartedUpTo are ambiguous. It
// reports whether the ambiguous receivers were started too often. They then need solo
// runs, which find the receiver that kills the process.
func (j *job) resume(row *notify.Row) (alone bool) {
	cfg := &j.p.w.cfg
	j.doneTo, j.startedTo = row.DoneUpTo, row.StartedUpTo
	j.resumedTo = row.StartedUpTo
	j.resent, j.starts = row.Resent, row.Starts+1
	j.found.starts, j.found.doneTo = row.Starts, row.DoneUpTo
	j.def = row.Default
	for i := uint32(0); i < row.DoneUpTo && i < j.env.Count; i++ {
		j.settled[i] = 1
	}
	for _, x := range row.Exceptions {
		if x.Pos < row.DoneUpTo {
			j.ex = append(j.ex, x)
		}
	}
	open := row.StartedUpTo - row.DoneUpTo
	if open == 0 {
		return false
	}
	first := cfg.firstSolo()
	switch {
	case row.Starts == first: // counted when the solo runs began, but for the last run
		open = min(open, maxSoloRun)
	case row.Starts > first: // so were all receivers behind the called one
		open = 1
	}
	if f := cfg.Events.Resumed; f != nil && open > 0 {
		f(cfg.Lane, int(open))
	}
	switch {
	case row.Starts >= first+uint16(cfg.MaxStarts):
		// Nothing else was called in the process, and it died each time: it is the one.
		j.giveUp(row.DoneUpTo)
		j.starts, j.found.starts = first, first
		alone = true
	case slices.Contains(cfg.Unknown, j.env.Category):
		for pos := row.DoneUpTo; pos < row.StartedUpTo; pos++ {
			j.settleLocked(pos, notify.Exception{Pos: pos, State: notify.Unknown, Code: "interrupted"})
		}
	default:
		j.resent += open
		if row.Starts >= uint16(cfg.MaxStarts) {
			j.starts, alone = max(row.Starts, first), true
		}
		return alone
	}
	j.advanceLocked()
	return alone
}

// snapshotLocked is the row as of now. Called with mu held.
func (j *job) snapshotLocked() notify.Row {
	row := j.row
	row.Starts, row.Resent = 1, j.resent
	if j.doneTo < j.resumedTo {
		row.Starts = j.starts
	}
	row.DoneUpTo, row.StartedUpTo = j.doneTo, j.startedTo
	row.Default = j.def
	row.Updated = time.Now().UnixMilli()
	if j.waits.State != notify.None && j.doneTo < j.startedTo {
		x := j.waits
		x.Pos = j.doneTo
		row.Exceptions = []notify.Exception{x}
	}
	if len(j.ex) > 0 {
		row.Exceptions = append(row.Exceptions, j.ex...)
		slices.SortFunc(row.Exceptions, func(a, b notify.Exception) int {
			if a.Pos != b.Pos {
				return int(a.Pos) - int(b.Pos)
			}
			return int(a.Addr) - int(b.Addr)
		})
	}
	return row
}

// settleLocked records an outcome of a position. The first outcome that could
// stand for many becomes the default.
func (j *job) settleLocked(pos uint32, x notify.Exception) {
	j.settled[pos] = 1
	x.Pos = pos
	if x.Of <= 1 && x.Receipt == "" {
		if j.def.State == notify.None {
			j.def = x
			j.def.Pos, j.def.Addr = 0, 0
			return
		}
		if sameOutcome(&j.def, &x) {
			return
		}
	}
	j.ex = append(j.ex, x)
}

func sameOutcome(a, b *notify.Exception) bool {
	return a.State == b.State && a.Class == b.Class && a.Wake == b.Wake && a.Retry == b.Retry && a.Of == b.Of &&
		a.Code == b.Code && a.Provider == b.Provider && a.Receipt == b.Receipt
}

func (j *job) advanceLocked() {
	if open := bytes.IndexByte(j.settled[j.doneTo:], 0); open >= 0 {
		j.doneTo += uint32(open)
	} else {
		j.doneTo = j.env.Count
	}
	if j.startedTo < j.doneTo {
		j.startedTo = j.doneTo
	}
}

// claim moves StartedUpTo to the window's end in the durable row, and waits for it.
func (j *job) claim(w *window) error {
	return j.commit(func() (notify.Row, bool) {
		j.startedTo, j.begun = max(j.startedTo, w.hi), true
		return j.snapshotLocked(), true
	})
}

// commit makes the row that snapshot returns (called with mu held) durable. When it
// returns nil, the row was durable before another member could be given the
// partition, so what follows from it may begin: calls of what it claims, and what a
// finished row hands on.
func (j *job) commit(snapshot func() (row notify.Row, ok bool)) error {
	ctx := j.p.ctx
	if err := log.Held(ctx); err != nil {
		return err
	}
	done := make(chan struct{})
	j.handIn.Lock()
	stamp, err := j.p.stamp()
	if err != nil {
		j.handIn.Unlock()
		return err
	}
	j.mu.Lock()
	row, ok := snapshot()
	j.mu.Unlock()
	if !ok {
		j.handIn.Unlock()
		return nil
	}
	row.Stamp = stamp
	err = j.p.w.cfg.Committer.Commit(ctx, row, func() { close(done) })
	j.handIn.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-done:
		// Only then did the row stand before another member could read it.
		return log.Held(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// save takes back the claims of a job that is left behind, beside its progress:
// windows that were called have all been settled, the others were not called, so
// the next owner finds nothing ambiguous but what this one found so. A stop is no
// death of the process: it does not count as a start of that. Drain calls it when
// no goroutine of the partition runs any more. Calls are dropped unsettled only
// after the partition's context has ended, and then Commit writes nothing.
func (j *job) save() {
	// An error means the partition is gone: the claim stands instead.
	_ = j.commit(func() (notify.Row, bool) {
		j.starts = j.found.starts
		j.startedTo = max(j.doneTo, min(j.startedTo, j.resumedTo))
		return j.snapshotLocked(), j.begun || j.doneTo > j.found.doneTo
	})
}

// finishWindow merges a window's outcomes and reports whether it was the last.
func (j *job) finishWindow(def notify.Exception, plain []byte, lo uint32, ex []notify.Exception) (last bool) {
	j.mu.Lock()
	if j.def.State == notify.None && def.State != notify.None {
		j.def = def
		j.def.Pos, j.def.Addr = 0, 0
	}
	copy(j.settled[lo:], plain) // no position of the window had an outcome
	if !sameOutcome(&j.def, &def) {
		for i, is := range plain {
			if is != 0 {
				x := def
				x.Pos = lo + uint32(i)
				j.ex = append(j.ex, x)
			}
		}
	}
	for i := range ex {
		j.settled[ex[i].Pos] = 1
		if x := ex[i]; x.Of <= 1 && sameOutcome(&j.def, &x) {
			continue
		}
		j.ex = append(j.ex, ex[i])
	}
	j.advanceLocked()
	j.windows--
	last = j.windows == 0 && j.claimed
	j.mu.Unlock()
	return last
}

// handedOut says that every window of the job has been made.
func (j *job) handedOut() {
	j.mu.Lock()
	j.claimed = true
	last := j.windows == 0
	j.mu.Unlock()
	if last {
		j.finish()
	}
}

// finish commits the finished row, hands on what it hands on, and marks the
// record. It runs in the goroutine of the last window.
func (j *job) finish() {
	if j.p.w.cfg.Order == Relaxed {
		j.p.leave(j)
	}
	killpoint.Hit("before-outcome")
	var row notify.Row
	err := j.commit(func() (notify.Row, bool) {
		j.rebaseLocked()
		row = j.snapshotLocked()
		row.Done = true
		row.DoneUpTo, row.StartedUpTo = row.Count, row.Count
		return row, true
	})
	if err != nil {
		return
	}
	if f := j.p.w.cfg.Events.Finished; f != nil {
		f(j.p.w.cfg.Lane, &j.env)
	}
	killpoint.Hit("outcome-before-handon")
	if j.handOn(j.p.ctx, &row) != nil {
		return
	}
	if j.p.w.cfg.Order == Strict { // who is behind must meet the holds
		j.p.leave(j)
	}
	killpoint.Hit("handon-before-mark")
	j.msg.Done()
}

// rebaseLocked makes the commonest exception the default when most receivers
// have one: the first window may have gone differently from the rest.
func (j *job) rebaseLocked() {
	if len(j.ex) <= int(j.env.Count)/2 || len(j.ex) < 8 {
		return
	}
	type outcome struct {
		state               notify.State
		retry               bool
		wake                int64
		class               notify.Class
		code, prov, receipt string
	}
	count := map[outcome]int{}
	var best outcome
	with := map[uint32]bool{}
	for i := range j.ex {
		x := &j.ex[i]
		with[x.Pos] = true
		if x.Of > 1 || x.Receipt != "" {
			continue
		}
		o := outcome{x.State, x.Retry, x.Wake, x.Class, x.Code, x.Provider, x.Receipt}
		if count[o]++; count[o] > count[best] {
			best = o
		}
	}
	if count[best] <= int(j.env.Count)-len(with) {
		return
	}
	old := j.def
	j.def = notify.Exception{State: best.state, Retry: best.retry, Wake: best.wake, Class: best.class, Code: best.code, Provider: best.prov}
	kept := j.ex[:0]
	for _, x := range j.ex {
		if x.Of > 1 || !sameOutcome(&j.def, &x) {
			kept = append(kept, x)
		}
	}
	for pos := uint32(0); pos < j.env.Count; pos++ {
		if !with[pos] {
			x := old
			x.Pos = pos
			kept = append(kept, x)
		}
	}
	j.ex = kept
}

// remark says in the row what the started receivers wait for, so that readers
// know. It does not wait until that is durable: nothing depends on it.
func (j *job) remark(x notify.Exception) {
	j.handIn.Lock()
	defer j.handIn.Unlock()
	stamp, err := j.p.stamp()
	if err != nil {
		return
	}
	j.mu.Lock()
	j.waits = x
	row := j.snapshotLocked()
	j.mu.Unlock()
	row.Stamp = stamp
	_ = j.p.w.cfg.Committer.Commit(j.p.soft, row, func() {}) // not, when the partition goes
}

// goOn ends what remark said, for the rows to come.
func (j *job) goOn() {
	j.mu.Lock()
	j.waits = notify.Exception{}
	j.mu.Unlock()
}
