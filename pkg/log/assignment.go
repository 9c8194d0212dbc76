package log

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/notify"
)

// assignment is one partition of this member, from the assignment of the partition until its loss.
// The goroutine of the method run calls the handler. The poll loop queues the records; for the
// embedded log, the method readLocal does this. Any goroutine may mark records done.
//
// A record is first queued, then given to the handler, then done. After a crash all records that
// were queued or given, but not done, are delivered again. So the client pauses the partition while
// the number or the size of these records is above its limit.
type assignment struct {
	g       *Group
	cl      *kgo.Client
	tp      TopicPartition
	ctx     context.Context // ends with the assignment
	cancel  context.CancelFunc
	handler PartitionHandler
	stopped chan struct{} // closed when the method run has returned

	localReaders sync.WaitGroup // goroutines of readLocal; the method run waits for them before it returns

	mu           sync.Mutex    // guards the fields below
	stateChanged chan struct{} // closed and replaced when the queue or another field below changes
	track        tracker
	queue        []*Msg // records not handed to the handler yet
	handed       int    // number of records handed to the handler and not done
	records      int    // number of records queued or handed, and not done
	bytes        int    // size of the records that the field records counts
	running      bool   // the handler is inside Handle
	draining     bool   // true: no more records are handed to the handler
	paused       bool
	committed    int64 // committed offset; -1: no commit
	next         int64 // offset after the last record read
	generation   int   // number of calls of startAt
	endAtStart   int64 // end of the log when startAt was called; records at this offset and later were appended after the assignment
	held         error // error for which the partition has stopped until this member loses it; nil: it has not stopped
	high         int64 // latest known high watermark
}

func newAssignment(ctx context.Context, g *Group, cl *kgo.Client, tp TopicPartition) *assignment {
	ctx, cancel := context.WithCancel(ctx)
	a := &assignment{
		g: g, cl: cl, tp: tp, ctx: ctx, cancel: cancel,
		stopped: make(chan struct{}), stateChanged: make(chan struct{}),
		track: newTracker(-1), committed: -1, next: -1, high: -1, endAtStart: math.MaxInt64,
	}
	a.handler = g.handler.Assigned(ctx, tp)
	return a
}

func (a *assignment) wakeLocked() {
	close(a.stateChanged)
	a.stateChanged = make(chan struct{})
}

// startAt sets the offset at which the assignment starts. This offset, the parameter start, is the
// committed offset. If nothing was committed, or if the log does not contain the committed offset
// any more, it is the first offset of the log. The parameter end is the end of the log, read after
// the partition was assigned.
func (a *assignment) startAt(start, committed, end int64, rejoin context.CancelCauseFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.track = newTracker(start)
	a.committed, a.next, a.endAtStart = committed, start, end
	a.generation++
	if local := a.g.cfg.Conn.Local; local != nil && !a.draining {
		a.localReaders.Add(1)
		go a.readLocal(local, start, a.generation, rejoin)
	}
}

// pushFetched queues records that the client has fetched.
func (a *assignment) pushFetched(recs []*kgo.Record, high int64) {
	rs := make([]Record, len(recs))
	for i, r := range recs {
		rs[i] = fromKgo(a.tp.Topic, r)
	}
	a.mu.Lock()
	generation := a.generation
	a.mu.Unlock()
	a.queueRecords(rs, func(i int) int32 { return recs[i].LeaderEpoch }, high, generation)
}

// queueRecords queues records in order. The function epoch returns the leader epoch of record i.
// The parameter generation is the value that the field generation had when the caller began to
// read. If startAt was called since then, or if the assignment is draining, queueRecords queues
// nothing and returns false.
func (a *assignment) queueRecords(recs []Record, epoch func(i int) int32, high int64, generation int) bool {
	slab := make([]Msg, len(recs))
	msgs := make([]*Msg, len(recs))
	bytes, lost := 0, 0
	for i := range recs {
		m := &slab[i]
		m.Record = recs[i]
		m.Attempt, m.epoch, m.owner = 1, epoch(i), a
		if m.Lost() { // the handler never gets a lost record
			m.done.Store(true)
			lost++
		} else {
			bytes += m.size()
		}
		msgs[i] = m
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.high = max(a.high, high)
	if a.draining || generation != a.generation {
		return false // the next owner reads these records
	}
	if len(msgs) == 0 {
		return true
	}
	a.next = recs[len(recs)-1].Offset + 1
	for _, m := range msgs {
		m.AfterAssign = m.Offset >= a.endAtStart
	}
	a.track.add(msgs)
	if lost > 0 {
		a.track.advance()
		msgs = slices.DeleteFunc(msgs, (*Msg).IsDone)
	}
	a.queue = append(a.queue, msgs...)
	a.records += len(msgs)
	a.bytes += bytes
	if cfg := &a.g.cfg; !a.paused && (a.records >= cfg.MaxInFlight || a.bytes >= cfg.MaxInFlightBytes) {
		a.paused = true
		if cfg.Conn.Local == nil {
			a.cl.PauseFetchPartitions(a.g.cfg.Conn.nestOne(a.tp))
		}
	}
	a.wakeLocked()
	return true
}

// finished implements msgOwner. The first call of Done of a message calls finished.
func (a *assignment) finished(m *Msg) []*Msg {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := m.next
	m.next = nil
	if !m.abandoned {
		a.handed--
	}
	a.records--
	a.bytes -= m.size()
	if a.track.head < len(a.track.pending) && a.track.pending[a.track.head] == m {
		a.track.advance()
	}
	if cfg := &a.g.cfg; a.paused && a.records <= cfg.MaxInFlight/2 && a.bytes <= cfg.MaxInFlightBytes/2 {
		a.resumeLocked()
	}
	if a.handed == 0 {
		a.wakeLocked()
	}
	return next
}

func (a *assignment) after(m, next *Msg) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.done.Load() {
		return false
	}
	m.next = append(m.next, next)
	return true
}

func (a *assignment) resumeLocked() {
	a.paused = false
	if a.g.cfg.Conn.Local != nil {
		a.wakeLocked()
		return
	}
	a.cl.ResumeFetchPartitions(a.g.cfg.Conn.nestOne(a.tp))
}

// run gives records to the handler until the assignment ends.
func (a *assignment) run() {
	defer close(a.stopped)
	defer func() {
		a.mu.Lock()
		a.draining = true // a lost partition was not drained; draining keeps startAt from starting another readLocal
		a.mu.Unlock()
		a.localReaders.Wait()
	}()
	for {
		batch := a.takeBatch()
		if batch == nil {
			return
		}
		if err := a.callHandler(batch); err != nil && a.ctx.Err() == nil {
			if !errors.Is(err, notify.ErrNewer) { // stopAt reports ErrNewer
				a.g.cfg.Events.failed(a.tp, err)
			}
			a.retryBatch(batch, err)
		}
		a.mu.Lock()
		a.running = false
		a.wakeLocked()
		a.mu.Unlock()
	}
}

// takeBatch waits for records and returns up to MaxPollRecords of them. When the assignment ends, it
// returns nil.
func (a *assignment) takeBatch() []*Msg {
	for {
		a.mu.Lock()
		if a.draining {
			a.mu.Unlock()
			return nil
		}
		if n := min(len(a.queue), a.g.cfg.MaxPollRecords); n > 0 {
			batch := a.queue[:n:n]
			a.queue = a.queue[n:]
			a.handed += n
			a.running = true
			a.mu.Unlock()
			return batch
		}
		a.queue = nil
		changed := a.stateChanged
		a.mu.Unlock()
		select {
		case <-changed:
		case <-a.ctx.Done():
			return nil
		}
	}
}

// callHandler calls the handler. If the handler panics, callHandler returns the panic as a *Panic.
func (a *assignment) callHandler(batch []*Msg) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Panic{Value: v, Stack: debug.Stack()}
		}
	}()
	return a.handler.Handle(a.ctx, batch)
}

// retryBatch delivers again those records of a failed batch that are not done, until the handler
// accepts them. After a backoff it delivers one record at a time, so that a record that makes the
// handler fail does not block the others. When the partition is draining, retryBatch stops.
func (a *assignment) retryBatch(todo []*Msg, cause error) {
	causes := make(map[*Msg]error, 1)
	for wait := a.g.cfg.RetryBackoff; len(todo) > 0; wait = min(2*wait, 5*time.Second) {
		if !a.waitUnlessDraining(wait) {
			a.abandonRecords(todo)
			return
		}
		var failed []*Msg
		for i, m := range todo {
			if a.ctx.Err() != nil {
				return
			}
			if m.IsDone() {
				continue
			}
			err := a.retryOne(todo[i:i+1:i+1], cmp.Or(causes[m], cause))
			if errors.Is(err, notify.ErrNewer) {
				a.stopAt(m, err)
				a.abandonRecords(append(failed, todo[i:]...))
				return
			}
			if err != nil {
				a.g.cfg.Events.failed(a.tp, err)
				causes[m] = err
				failed = append(failed, m)
			}
		}
		todo = failed
	}
}

// stopAt stops the partition at the record m until this member loses the partition. It is called if
// only a process of a newer release can handle m: such a process wrote m, or wrote a row that the
// handler must read for m. The handler gets no record after m, so that the records stay in order.
// No offset after m is committed.
func (a *assignment) stopAt(m *Msg, cause error) {
	cause = fmt.Errorf("offset %d: %w", m.Offset, cause)
	a.mu.Lock()
	a.held = cause
	a.mu.Unlock()
	if f := a.g.cfg.Events.Held; f != nil {
		f(a.tp, cause)
	}
	for a.waitUnlessDraining(time.Hour) {
	}
}

func (a *assignment) retryOne(one []*Msg, cause error) error {
	m := one[0]
	if m.Attempt >= a.g.cfg.MaxAttempts && a.g.cfg.Poison != nil {
		if err := a.g.cfg.Poison(a.ctx, m, cause); err != nil {
			return fmt.Errorf("copying the record at offset %d of partition %s to the poison topic: %w", m.Offset, a.tp, err)
		}
		return nil
	}
	m.Attempt++
	return a.callHandler(one)
}

// waitUnlessDraining waits for the time d. It returns false as soon as the partition is draining.
func (a *assignment) waitUnlessDraining(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		a.mu.Lock()
		draining, changed := a.draining, a.stateChanged
		a.mu.Unlock()
		if draining {
			return false
		}
		select {
		case <-timer.C:
			return true
		case <-changed:
		case <-a.ctx.Done():
			return false
		}
	}
}

// abandonRecords is called with records that the handler will not process. It subtracts them from
// the field handed, so that a drain does not wait for them.
func (a *assignment) abandonRecords(msgs []*Msg) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range msgs {
		if !m.done.Load() && !m.abandoned {
			m.abandoned = true
			a.handed--
		}
	}
	a.wakeLocked()
}

// drain stops giving records to the handler. It waits until all records that the handler has are
// done, or until ctx ends. It may be called more than once.
func (a *assignment) drain(ctx context.Context) {
	a.mu.Lock()
	if !a.draining {
		a.draining = true
		for _, m := range a.queue { // the handler never gets these records
			a.records--
			a.bytes -= m.size()
		}
		a.queue = nil
		a.wakeLocked()
	}
	a.mu.Unlock()
	if d, ok := a.handler.(Drainer); ok {
		d.Drain(ctx)
		return
	}
	for {
		a.mu.Lock()
		idle, changed := a.handed == 0 && !a.running, a.stateChanged
		a.mu.Unlock()
		if idle {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// cancelAndWait cancels the assignment's context and waits until the handler has returned, or until
// ctx ends. Marking a record done after cancelAndWait has no effect.
func (a *assignment) cancelAndWait(ctx context.Context) error {
	a.cancel()
	a.mu.Lock()
	a.draining = true
	if a.paused { // the client would keep the pause after the assignment has ended
		a.resumeLocked()
	}
	a.mu.Unlock()
	select {
	case <-a.stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("log: the handler of partition %s did not return in time after its context had ended", a.tp)
	}
}

// markToCommit returns the low-water mark. If the low-water mark is not above the committed offset,
// there is nothing to commit, and the result ok is false.
func (a *assignment) markToCommit() (at kgo.EpochOffset, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return kgo.EpochOffset{Epoch: a.track.epoch, Offset: a.track.low}, a.track.moved && a.track.low > a.committed
}

func (a *assignment) markCommitted(at int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.committed = max(a.committed, at)
}

// fromKgo converts a record of the client library franz-go. The parameter topic is the name of the
// topic without Conn.Prefix.
func fromKgo(topic string, r *kgo.Record) Record {
	rec := Record{Topic: topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value, Time: r.Timestamp}
	if len(r.Headers) > 0 {
		rec.Headers = make([]Header, len(r.Headers))
		for i, h := range r.Headers {
			rec.Headers[i] = Header{Key: h.Key, Value: h.Value}
		}
	}
	return rec
}
