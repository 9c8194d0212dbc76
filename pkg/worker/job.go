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

// job is one envelope that the worker delivers.
type job struct {
	p    *partition
	env  notify.Envelope
	msg  message
	row  notify.Row // the fields that do not change: key, count, digest, origin
	turn *orderTurn // the envelope's place in the order of the partition; nil: order does not matter

	index        []uint32     // request index by position; only for derived envelopes
	windowStarts []columnMark // by window: its first position, and a reader at that position

	// commitOrder is locked before a snapshot of the row is made, and unlocked when that row is in
	// the committer's queue. Otherwise an older snapshot could be written after a newer one.
	commitOrder sync.Mutex

	mu         sync.Mutex // guards the fields below
	settled    []byte     // by position: 1 if the receiver has its outcome
	startedTo  uint32
	doneTo     uint32
	resumedTo  uint32   // positions below resumedTo were started by a process that died
	starts     uint16   // how often the positions below resumedTo were started, including this time
	resumedRow struct { // values that the row had when the job resumed from it
		starts uint16
		doneTo uint32
	}
	claimedAny     bool // this owner has claimed at least one window
	resent         uint32
	defaultOutcome notify.Exception   // the first outcome that several positions can share
	exceptions     []notify.Exception // outcomes other than defaultOutcome, unsorted
	shownWait      notify.Exception   // what the started receivers wait for; State None: nothing
	windows        int                // number of windows that have not finished
	fate           jobFate
	allMade        bool // all windows of the job have been made
}

// columnMark is a reader of the receivers that begins at the position pos.
type columnMark struct {
	pos uint32
	rd  notify.ReceiverReader
}

// jobFate says which owner of the partition calls the receivers of a job: this owner or the next
// one.
type jobFate uint8

const (
	fateOpen jobFate = iota
	fateCalled
	fateLeft // left to the next owner
)

// window is the receivers of a job at the positions [lo, hi). They share one claim, are sent
// together, and get their outcomes together.
type window struct {
	job    *job
	lo, hi uint32
	rd     notify.ReceiverReader // is at position lo
	// budget and early are the numbers of receivers that the window has acquired from the quotas
	// partition.budget and partition.early.
	budget, early int
}

// newJob makes the job of an envelope. The parameter windows contains a reader for the start of
// each window. newJob also returns the hashes of the users, for the order of the partition. A large
// envelope is a barrier in that order and has no hashes.
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
	j.windowStarts = make([]columnMark, len(windows))
	for i, rd := range windows {
		j.windowStarts[i] = columnMark{uint32(i * cfg.Window), rd}
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

// resumeFromRow continues from the row that an earlier start of the same envelope left. Receivers
// below DoneUpTo have final outcomes. Receivers from DoneUpTo to StartedUpTo are ambiguous.
// resumeFromRow returns true if the ambiguous receivers were started too often. Then they need solo
// runs, which find the receiver that kills the process.
func (j *job) resumeFromRow(row *notify.Row) (alone bool) {
	cfg := &j.p.w.cfg
	j.doneTo, j.startedTo = row.DoneUpTo, row.StartedUpTo
	j.resumedTo = row.StartedUpTo
	j.resent, j.starts = row.Resent, row.Starts+1
	j.resumedRow.starts, j.resumedRow.doneTo = row.Starts, row.DoneUpTo
	j.defaultOutcome = row.Default
	for i := uint32(0); i < row.DoneUpTo && i < j.env.Count; i++ {
		j.settled[i] = 1
	}
	for _, x := range row.Exceptions {
		if x.Pos < row.DoneUpTo {
			j.exceptions = append(j.exceptions, x)
		}
	}
	open := row.StartedUpTo - row.DoneUpTo
	if open == 0 {
		return false
	}
	first := cfg.firstSolo()
	switch {
	case row.Starts == first: // count only the receivers of the last run; the others were counted when the solo runs began
		open = min(open, maxSoloRun)
	case row.Starts > first: // the last run had only one receiver; count only that receiver, the others were counted before
		open = 1
	}
	if f := cfg.Events.Resumed; f != nil && open > 0 {
		f(cfg.Lane, int(open))
	}
	switch {
	case row.Starts >= first+uint16(cfg.MaxStarts):
		// The process called only the receiver at DoneUpTo, MaxStarts times, and died each time.
		j.failKiller(row.DoneUpTo)
		j.starts, j.resumedRow.starts = first, first
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

// snapshotLocked returns the row with the current progress. j.mu must be held.
func (j *job) snapshotLocked() notify.Row {
	row := j.row
	row.Starts, row.Resent = 1, j.resent
	if j.doneTo < j.resumedTo {
		row.Starts = j.starts
	}
	row.DoneUpTo, row.StartedUpTo = j.doneTo, j.startedTo
	row.Default = j.defaultOutcome
	row.Updated = time.Now().UnixMilli()
	if j.shownWait.State != notify.None && j.doneTo < j.startedTo {
		x := j.shownWait
		x.Pos = j.doneTo
		row.Exceptions = []notify.Exception{x}
	}
	if len(j.exceptions) > 0 {
		row.Exceptions = append(row.Exceptions, j.exceptions...)
		slices.SortFunc(row.Exceptions, func(a, b notify.Exception) int {
			if a.Pos != b.Pos {
				return int(a.Pos) - int(b.Pos)
			}
			return int(a.Addr) - int(b.Addr)
		})
	}
	return row
}

// settleLocked records the outcome of a position. Several positions can share an outcome if it has
// no provider id and the receiver has one address. The first such outcome becomes the default
// outcome. j.mu must be held.
func (j *job) settleLocked(pos uint32, x notify.Exception) {
	j.settled[pos] = 1
	x.Pos = pos
	if x.Of <= 1 && x.Receipt == "" {
		if j.defaultOutcome.State == notify.None {
			j.defaultOutcome = x
			j.defaultOutcome.Pos, j.defaultOutcome.Addr = 0, 0
			return
		}
		if sameOutcome(&j.defaultOutcome, &x) {
			return
		}
	}
	j.exceptions = append(j.exceptions, x)
}

// sameOutcome returns true if two exceptions are equal in all fields other than position and
// address.
func sameOutcome(a, b *notify.Exception) bool {
	return a.State == b.State && a.Class == b.Class && a.Wake == b.Wake && a.Retry == b.Retry && a.Of == b.Of &&
		a.Code == b.Code && a.Provider == b.Provider && a.Receipt == b.Receipt
}

// advanceLocked moves j.doneTo past the positions that have outcomes, up to the first that has
// none. j.mu must be held.
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

// claim writes the end of the window into the row, as StartedUpTo, and waits until the row is
// durable.
func (j *job) claim(w *window) error {
	return j.commit(func() (notify.Row, bool) {
		j.startedTo, j.claimedAny = max(j.startedTo, w.hi), true
		return j.snapshotLocked(), true
	})
}

// commit writes the row that the function snapshot returns, and waits until the row is durable. It
// calls snapshot with j.mu held. If snapshot returns false, commit writes nothing and returns nil.
// If commit has written the row and returns nil, the next owner of the partition certainly reads
// this row. So the caller may make the calls that the row claims, or do the work that follows a
// finished row.
func (j *job) commit(snapshot func() (row notify.Row, ok bool)) error {
	ctx := j.p.ctx
	if err := log.AwaitOwnership(ctx); err != nil {
		return err
	}
	done := make(chan struct{})
	j.commitOrder.Lock()
	stamp, err := j.p.nextStamp()
	if err != nil {
		j.commitOrder.Unlock()
		return err
	}
	j.mu.Lock()
	row, ok := snapshot()
	j.mu.Unlock()
	if !ok {
		j.commitOrder.Unlock()
		return nil
	}
	row.Stamp = stamp
	err = j.p.w.cfg.Committer.Commit(ctx, row, func() { close(done) })
	j.commitOrder.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-done:
		// If this process still owns the partition, the row was durable before another member could
		// read it.
		return log.AwaitOwnership(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeBackClaims writes the row of a job that a drain leaves to the next owner. It removes the
// claims of windows that were not called. Windows that were called have their outcomes. So for the
// next owner, only receivers that this owner found ambiguous are ambiguous. The stop of a process
// is not a crash, so it does not count as a start.
//
// Drain calls takeBackClaims when no goroutine of the partition runs any more. The claims of calls
// whose answers were dropped must stay. They do: answers are dropped only after the partition's
// context has ended, and then commit writes nothing.
func (j *job) takeBackClaims() {
	// An error means that the partition is gone. Then the claims stay in the row.
	_ = j.commit(func() (notify.Row, bool) {
		j.starts = j.resumedRow.starts
		j.startedTo = max(j.doneTo, min(j.startedTo, j.resumedTo))
		return j.snapshotLocked(), j.claimedAny || j.doneTo > j.resumedRow.doneTo
	})
}

// finishWindow adds a window's outcomes to the job. The parameter def is the default outcome of the
// window. The parameter plain has one byte for each position, beginning at the position lo; a byte
// 1 means that the receiver has the default outcome. The parameter ex contains the other outcomes.
// finishWindow returns true if the job has no more open windows.
func (j *job) finishWindow(def notify.Exception, plain []byte, lo uint32, ex []notify.Exception) (last bool) {
	j.mu.Lock()
	if j.defaultOutcome.State == notify.None && def.State != notify.None {
		j.defaultOutcome = def
		j.defaultOutcome.Pos, j.defaultOutcome.Addr = 0, 0
	}
	copy(j.settled[lo:], plain) // no position of the window had an outcome
	if !sameOutcome(&j.defaultOutcome, &def) {
		for i, is := range plain {
			if is != 0 {
				x := def
				x.Pos = lo + uint32(i)
				j.exceptions = append(j.exceptions, x)
			}
		}
	}
	for i := range ex {
		j.settled[ex[i].Pos] = 1
		if x := ex[i]; x.Of <= 1 && sameOutcome(&j.defaultOutcome, &x) {
			continue
		}
		j.exceptions = append(j.exceptions, ex[i])
	}
	j.advanceLocked()
	j.windows--
	last = j.windows == 0 && j.allMade
	j.mu.Unlock()
	return last
}

// allHandedOut records that all windows of the job have been made. If they have all ended already,
// it finishes the job.
func (j *job) allHandedOut() {
	j.mu.Lock()
	j.allMade = true
	last := j.windows == 0
	j.mu.Unlock()
	if last {
		j.finish()
	}
}

// finish writes the finished row, does the work that follows it (see handOn), and marks the record
// as done. The goroutine of the last window calls finish.
func (j *job) finish() {
	if j.p.w.cfg.Order == Relaxed {
		j.p.leaveOrder(j)
	}
	killpoint.Hit("before-outcome")
	var row notify.Row
	err := j.commit(func() (notify.Row, bool) {
		j.chooseDefaultLocked()
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
	if j.p.w.cfg.Order == Strict { // later envelopes of the users must find the holds
		j.p.leaveOrder(j)
	}
	killpoint.Hit("handon-before-mark")
	j.msg.Done()
}

// chooseDefaultLocked makes the most frequent exception the default outcome, if the job has many
// exceptions and more receivers have this one than the present default outcome. Until then the
// default outcome is the result of the first window, and most windows may have another result. j.mu
// must be held.
func (j *job) chooseDefaultLocked() {
	if len(j.exceptions) <= int(j.env.Count)/2 || len(j.exceptions) < 8 {
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
	for i := range j.exceptions {
		x := &j.exceptions[i]
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
	old := j.defaultOutcome
	j.defaultOutcome = notify.Exception{State: best.state, Retry: best.retry, Wake: best.wake, Class: best.class, Code: best.code, Provider: best.prov}
	kept := j.exceptions[:0]
	for _, x := range j.exceptions {
		if x.Of > 1 || !sameOutcome(&j.defaultOutcome, &x) {
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
	j.exceptions = kept
}

// writeWait writes the cause of a wait into the row, so that a reader of the status sees it. The
// parameter x says what the started receivers wait for. writeWait does not wait until the row is
// durable, because nothing depends on it.
func (j *job) writeWait(x notify.Exception) {
	j.commitOrder.Lock()
	defer j.commitOrder.Unlock()
	stamp, err := j.p.nextStamp()
	if err != nil {
		return
	}
	j.mu.Lock()
	j.shownWait = x
	row := j.snapshotLocked()
	j.mu.Unlock()
	row.Stamp = stamp
	_ = j.p.w.cfg.Committer.Commit(j.p.untilDrain, row, func() {}) // an error means that the partition is being drained
}

// clearWait removes the cause that writeWait wrote. Later rows do not show it.
func (j *job) clearWait() {
	j.mu.Lock()
	j.shownWait = notify.Exception{}
	j.mu.Unlock()
}
