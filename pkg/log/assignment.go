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

// assignment is one partition between its assignment and its loss. One
// goroutine (run) calls the handler; records come from the poll loop and are
// marked from anywhere.
//
// A record is queued, then handed to the handler, then done. The partition is
// paused in the client while more records, or bytes, are queued or handed than
// the caps allow: a client that polls on while the handler is behind would
// deliver all of that again after a crash.
type assignment struct {
	g       *Group
	cl      *kgo.Client
	tp      TopicPartition
	ctx     context.Context // ends with the assignment
	cancel  context.CancelFunc
	handler PartitionHandler
	stopped chan struct{} // closed when run returned

	following sync.WaitGroup // who reads a Local; done before stopped is closed

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced when queue or state change
	track      tracker
	queue      []*Msg // not handed yet
	handed     int    // records handed and not done
	records    int    // queued or handed and not done
	bytes      int
	running    bool // the handler is inside Handle
	draining   bool // nothing is handed any more
	paused     bool
	committed  int64 // -1: none
	next       int64 // offset after the last one polled
	generation int   // how often it has begun
	newFrom    int64 // end of the log at the begin: what is there from here on was appended after the assignment
	held       error // why the partition stands until it goes; nil: it does not
	high       int64 // high watermark last seen
}

func newAssignment(ctx context.Context, g *Group, cl *kgo.Client, tp TopicPartition) *assignment {
	ctx, cancel := context.WithCancel(ctx)
	a := &assignment{
		g: g, cl: cl, tp: tp, ctx: ctx, cancel: cancel,
		stopped: make(chan struct{}), changed: make(chan struct{}),
		track: newTracker(-1), committed: -1, next: -1, high: -1, newFrom: math.MaxInt64,
	}
	a.handler = g.handler.Assigned(ctx, tp)
	return a
}

func (a *assignment) wakeLocked() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// begin sets where the assignment starts: the committed offset, or the one that
// replaces it. end is the end of the log, asked for after the assignment.
func (a *assignment) begin(at, committed, end int64, rejoin context.CancelCauseFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.track = newTracker(at)
	a.committed, a.next, a.newFrom = committed, at, end
	a.generation++
	if local := a.g.cfg.Conn.Local; local != nil && !a.draining {
		a.following.Add(1)
		go a.follow(local, at, a.generation, rejoin)
	}
}

// pushFetched queues what the client has fetched.
func (a *assignment) pushFetched(recs []*kgo.Record, high int64) {
	rs := make([]Record, len(recs))
	for i, r := range recs {
		rs[i] = fromKgo(a.tp.Topic, r)
	}
	a.mu.Lock()
	generation := a.generation
	a.mu.Unlock()
	a.push(rs, func(i int) int32 { return recs[i].LeaderEpoch }, high, generation)
}

// push queues records, in order; epoch is the leader epoch of each. False: the
// assignment has begun anew since the generation, or is about to go.
func (a *assignment) push(recs []Record, epoch func(i int) int32, high int64, generation int) bool {
	slab := make([]Msg, len(recs))
	msgs := make([]*Msg, len(recs))
	bytes, lost := 0, 0
	for i := range recs {
		m := &slab[i]
		m.Record = recs[i]
		m.Attempt, m.epoch, m.owner = 1, epoch(i), a
		if m.Lost() { // nobody is handed it
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
		return false // met again by the next owner
	}
	if len(msgs) == 0 {
		return true
	}
	a.next = recs[len(recs)-1].Offset + 1
	for _, m := range msgs {
		m.AfterAssign = m.Offset >= a.newFrom
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
			a.cl.PauseFetchPartitions(a.g.cfg.Conn.only(a.tp))
		}
	}
	a.wakeLocked()
	return true
}

// finished is called at the first Done of a message.
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
	a.cl.ResumeFetchPartitions(a.g.cfg.Conn.only(a.tp))
}

// run hands records to the handler until the assignment ends.
func (a *assignment) run() {
	defer close(a.stopped)
	defer func() {
		a.mu.Lock()
		a.draining = true // a partition that is lost was not drained; no follower begins any more
		a.mu.Unlock()
		a.following.Wait()
	}()
	for {
		batch := a.take()
		if batch == nil {
			return
		}
		if err := a.handle(batch); err != nil && a.ctx.Err() == nil {
			if !errors.Is(err, notify.ErrNewer) { // of that one hold tells
				a.g.cfg.Events.failed(a.tp, err)
			}
			a.retry(batch, err)
		}
		a.mu.Lock()
		a.running = false
		a.wakeLocked()
		a.mu.Unlock()
	}
}

// take waits for records and hands them out; nil when the assignment is over.
func (a *assignment) take() []*Msg {
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
		changed := a.changed
		a.mu.Unlock()
		select {
		case <-changed:
		case <-a.ctx.Done():
			return nil
		}
	}
}

// handle calls the handler; a panic becomes a *Panic.
func (a *assignment) handle(batch []*Msg) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Panic{Value: v, Stack: debug.Stack()}
		}
	}()
	return a.handler.Handle(a.ctx, batch)
}

// retry delivers what a failed batch left undone again until it is taken, after
// a backoff and one record at a time, so that the one that makes the handler
// fail is found and does not take the others with it. It gives up when the
// partition is about to go.
func (a *assignment) retry(todo []*Msg, cause error) {
	causes := make(map[*Msg]error, 1)
	for wait := a.g.cfg.RetryBackoff; len(todo) > 0; wait = min(2*wait, 5*time.Second) {
		if !a.pause(wait) {
			a.abandon(todo)
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
				a.hold(m, err)
				a.abandon(append(failed, todo[i:]...))
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

// hold stops the partition at m until it is about to go: a newer release wrote m, or
// what the handler must read for m, and only a process of that release can handle it.
// Nothing behind m is handed out, so that the order of the partition stays, and nothing
// is committed past m.
func (a *assignment) hold(m *Msg, cause error) {
	cause = fmt.Errorf("offset %d: %w", m.Offset, cause)
	a.mu.Lock()
	a.held = cause
	a.mu.Unlock()
	if f := a.g.cfg.Events.Held; f != nil {
		f(a.tp, cause)
	}
	for a.pause(time.Hour) {
	}
}

func (a *assignment) retryOne(one []*Msg, cause error) error {
	m := one[0]
	if m.Attempt >= a.g.cfg.MaxAttempts && a.g.cfg.Poison != nil {
		if err := a.g.cfg.Poison(a.ctx, m, cause); err != nil {
			return fmt.Errorf("putting %s@%d aside: %w", a.tp, m.Offset, err)
		}
		return nil
	}
	m.Attempt++
	return a.handle(one)
}

// pause waits; false: the partition is about to go.
func (a *assignment) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		a.mu.Lock()
		draining, changed := a.draining, a.changed
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

// abandon stops counting records that nobody works on as handed: a drain need
// not wait for them.
func (a *assignment) abandon(msgs []*Msg) {
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

// drain stops handing out records and waits until nothing handed is unfinished,
// or ctx ends. It may be called more than once.
func (a *assignment) drain(ctx context.Context) {
	a.mu.Lock()
	if !a.draining {
		a.draining = true
		for _, m := range a.queue { // nobody will mark these
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
		idle, changed := a.handed == 0 && !a.running, a.changed
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

// end cancels the assignment's context and waits for the handler to come back,
// or ctx to end. What is marked afterwards changes nothing.
func (a *assignment) end(ctx context.Context) error {
	a.cancel()
	a.mu.Lock()
	a.draining = true
	if a.paused { // a pause outlives the assignment in the client
		a.resumeLocked()
	}
	a.mu.Unlock()
	select {
	case <-a.stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stream: handler of %s did not return", a.tp)
	}
}

// mark returns what there is to commit; ok is false when that is nothing new.
func (a *assignment) mark() (at kgo.EpochOffset, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return kgo.EpochOffset{Epoch: a.track.epoch, Offset: a.track.low}, a.track.moved && a.track.low > a.committed
}

func (a *assignment) markCommitted(at int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.committed = max(a.committed, at)
}

// fromKgo returns a record of a topic.
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
