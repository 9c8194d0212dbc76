package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/rows"
)

// The tables of queues, in the form that store.go explains.
var (
	tableMessages = rows.Partition{Table: 'Q'} // str(queue)+seq: time of enqueue and lane, start of visibility, body
	tableReceived = rows.Partition{Table: 'V'} // str(queue)+seq: number of receives, time until which a released message is invisible
)

// queues holds the queues that had messages at the start, and the queues that were requested since
// then.
type queues struct {
	rows rows.Rows

	mu     sync.Mutex // guards byName
	byName map[string]*queue
}

func (qs *queues) get(name string) *queue {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byName[name]
	if q == nil {
		q = &queue{rows: qs.rows, prefix: str(name), opened: time.Now(), lookAgain: make(chan struct{}, 1)}
		rand.Read(q.instance[:]) // never fails since Go 1.24
		qs.byName[name] = q
	}
	return q
}

// queue delivers messages in the order in which they become visible, and messages with the same
// time in the order of their seqs. A message and its number of receives are stored durably before
// the message is delivered. So a message that kills the process again and again ends up dead (but
// see firstUncountedFrom). Only memory knows which messages are held, and until when. After a start
// every message is visible as soon as its delay has ended, unless it was acknowledged.
//
// An acknowledged message is deleted without waiting for an fsync. If a power loss undoes the
// delete, the message is delivered again. Receivers must expect repeated messages anyway. Every
// later write also makes the delete durable.
type queue struct {
	rows     rows.Rows
	prefix   string    // of the queue's keys
	instance [4]byte   // a random value in each receipt, so that receipts of an earlier process are not valid
	opened   time.Time // time 0 of the index, on the monotonic clock
	// lookAgain has capacity 1. A value in it tells one waiting Receive to check the queue again.
	lookAgain chan struct{}

	next uint64 // seq of the latest message; only fill functions of Write change it

	mu          sync.Mutex // a goroutine that holds mu never calls a method of rows
	maxReceives int
	index       queueIndex
	// onTimeSinceBacklog is the number of on-time messages that were delivered after the last
	// backlog message. Messages count only while both lanes have ready messages.
	onTimeSinceBacklog int
}

func (q *queue) now() int64 { return int64(time.Since(q.opened)) }

// wakeOne makes one waiting Receive check the queue again. If that Receive leaves messages in the
// queue, it calls wakeOne when it returns. So another waiting Receive learns when the next message
// becomes visible.
func (q *queue) wakeOne() {
	select {
	case q.lookAgain <- struct{}{}:
	default: // a signal is already there
	}
}

func (q *queue) appendKey(b []byte, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, q.prefix...), seq)
}

func (q *queue) Enqueue(ctx context.Context, ms []engine.Message) error {
	if err := engine.CheckMessages(ms); err != nil || len(ms) == 0 {
		return err
	}
	now, since := time.Now(), q.now()
	p := newPacked()
	defer packedPool.Put(p)
	added := make([]queued, len(ms))
	for i := range ms {
		added[i] = queued{visible: since + int64(ms[i].Delay), enqueued: now.UnixMilli()}
		stamp := uint64(added[i].enqueued)
		if ms[i].Backlog {
			added[i].lane = backlog
			stamp |= inBacklog
		}
		p.b = binary.BigEndian.AppendUint64(p.b, stamp)
		p.b = binary.BigEndian.AppendUint64(p.b, uint64(ceilMs(now.Add(ms[i].Delay))))
		p.b = append(p.b, ms[i].Body...)
		p.endPart()
	}
	k := make([]byte, 0, len(q.prefix)+8)
	return q.rows.Write(ctx, func(b rows.Batch) {
		for i := range added {
			q.next++
			added[i].seq = q.next
			b.Set(tableMessages, q.appendKey(k, q.next), p.part(i))
		}
		b.Settled(func(err error) {
			if err != nil {
				return
			}
			q.mu.Lock()
			for i := range added {
				q.index.add(added[i])
			}
			q.mu.Unlock()
			q.wakeOne()
		})
	})
}

// messageHead is the length of the head of a message. The head contains two points in time, in ms
// since 1970 and with 8 bytes each: when the message was enqueued, and when it becomes visible. If
// the highest bit of the first one (inBacklog) is set, the message is in the backlog lane.
const (
	messageHead = 16
	inBacklog   = 1 << 63
)

// readBodies calls fn with the bodies of n messages, in order. The body is nil if the message was
// deleted. A body is valid until fn returns.
func (q *queue) readBodies(ctx context.Context, n int, seq func(i int) uint64, fn func(i int, body []byte) error) error {
	key := func(b []byte, i int) []byte { return q.appendKey(b, seq(i)) }
	return q.rows.GetMany(ctx, tableMessages, n, key, func(i int, v []byte) error {
		switch {
		case v == nil:
			return fn(i, nil)
		case len(v) < messageHead:
			return corrupt(string(key(nil, i)))
		}
		return fn(i, v[messageHead:])
	})
}

func (q *queue) Receive(ctx context.Context, max int, visibility time.Duration) ([]engine.Delivery, error) {
	if err := engine.CheckVisibility(visibility); err != nil || max <= 0 {
		return nil, err
	}
	for ctx.Err() == nil {
		taken, next, more := q.takeReady(max, int64(visibility))
		if len(taken) > 0 {
			if more {
				q.wakeOne()
			}
			return q.deliver(ctx, taken)
		}
		if err := q.waitForChange(ctx, next); err != nil {
			return nil, err
		}
	}
	q.wakeOne()
	return nil, nil
}

// waitForChange returns when Receive should check the queue again: at the time firstVisible, at a
// signal of wakeOne, or when ctx ends. The time firstVisible is in ns since the queue was opened; 0
// means that there is no message. waitForChange returns an error if the store has failed.
func (q *queue) waitForChange(ctx context.Context, firstVisible int64) error {
	var due <-chan time.Time
	if firstVisible > 0 {
		t := time.NewTimer(time.Duration(firstVisible - q.now()))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-due:
	case <-q.lookAgain:
	case <-ctx.Done():
	case <-q.rows.Failed():
		return q.rows.Err()
	}
	return nil
}

// takenMessage is a copy of a message, with its slot in the index. takeReady makes the copy before
// it changes the message.
type takenMessage struct {
	slot uint32
	queued
}

// takeReady marks up to max ready messages as held and returns them. If no message is ready, the
// result firstVisible is the time at which the next message becomes visible, or 0 if there is none.
// The result othersLeft is true if the queue has more messages than the returned ones, ready or
// not.
func (q *queue) takeReady(max int, visibility int64) (taken []takenMessage, firstVisible int64, othersLeft bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	x, now := &q.index, q.now()
	for len(taken) < max {
		slot, ok := q.nextLocked(now)
		if !ok {
			break
		}
		m := &x.slots[slot]
		taken = append(taken, takenMessage{slot, *m})
		m.receives, m.hold = m.receives+1, held
		x.move(slot, now+visibility)
	}
	for l := range x.lanes {
		if slot, ok := x.firstInLane(queueLane(l)); ok && len(taken) == 0 && (firstVisible == 0 || x.slots[slot].visible < firstVisible) {
			firstVisible = x.slots[slot].visible
		}
	}
	return taken, firstVisible, x.liveCount() > len(taken)
}

// nextLocked returns the slot of the message to deliver next. The result ok is false if no message
// is ready. While both lanes have ready messages, every engine.BacklogShare-th message is from the
// backlog lane.
func (q *queue) nextLocked(now int64) (slot uint32, ok bool) {
	prompt, some := q.readyLocked(onTime, now)
	late, overdue := q.readyLocked(backlog, now)
	switch {
	case !overdue:
		return prompt, some
	case !some:
		return late, true
	}
	if q.onTimeSinceBacklog++; q.onTimeSinceBacklog == engine.BacklogShare {
		q.onTimeSinceBacklog = 0
		return late, true
	}
	return prompt, true
}

// readyLocked returns the first ready message of a lane. If a visible message has already been
// received maxReceives times, readyLocked marks it as dead and continues with the next message.
func (q *queue) readyLocked(l queueLane, now int64) (slot uint32, ok bool) {
	x := &q.index
	for {
		slot, ok = x.firstInLane(l)
		if !ok || x.slots[slot].visible > now {
			return 0, false
		}
		m := &x.slots[slot]
		if int(m.receives) < q.maxReceives {
			return slot, true
		}
		m.hold = dead
		x.remove(slot)
	}
}

// deliver reads the bodies of the taken messages and stores their numbers of receives durably. If the
// read or the write fails, deliver makes the messages ready again.
func (q *queue) deliver(ctx context.Context, taken []takenMessage) ([]engine.Delivery, error) {
	out := make([]engine.Delivery, 0, len(taken))
	err := q.readBodies(ctx, len(taken), func(i int) uint64 { return taken[i].seq }, func(i int, body []byte) error {
		t := taken[i]
		if body == nil {
			return corrupt(string(q.appendKey(nil, t.seq)))
		}
		t.receives++
		out = append(out, q.delivery(t, body))
		return nil
	})
	if err == nil {
		counted := taken
		if q.skipsFirstReceive() {
			counted = slices.DeleteFunc(slices.Clone(taken), func(t takenMessage) bool { return t.receives == 0 })
		}
		err = q.putReceived(ctx, counted...)
	}
	if err == nil {
		return out, nil
	}
	q.giveBack(taken)
	if ctx.Err() != nil { // Receive returns no error when ctx ends
		err = nil
	}
	return nil, err
}

func (q *queue) delivery(t takenMessage, body []byte) engine.Delivery {
	return engine.Delivery{
		Receipt: q.receipt(t), Body: bytes.Clone(body),
		Receives: int(t.receives), Enqueued: time.UnixMilli(t.enqueued), Backlog: t.lane == backlog,
	}
}

// firstUncountedFrom is the lowest maxReceives for which a queue does not store the first receive
// of a message. Nearly all messages are received only once. Storing this receive would cost two of
// the nine row writes of a callback, and a wait for the disk. Instead, each message that is visible
// at a start counts as received once. So a message that kills the process still ends up dead. Other
// messages may have one receive fewer than allowed.
const firstUncountedFrom = 100

// skipsFirstReceive returns true if the queue does not store the first receive of a message.
// maxReceives does not change after the first Receive.
func (q *queue) skipsFirstReceive() bool { return q.maxReceives >= firstUncountedFrom }

// countUnwrittenLocked counts one receive for each visible message without a stored receive. Such a
// message may have been received before the start, because the first receive is not stored.
func (q *queue) countUnwrittenLocked() {
	if !q.skipsFirstReceive() {
		return
	}
	now := q.now() + int64(time.Millisecond) // stored times are rounded up
	for i := range q.index.slots {
		if m := &q.index.slots[i]; m.seq != 0 && m.receives == 0 && m.visible <= now {
			m.receives = 1
		}
	}
}

// receivedLen is the length of a row in tableReceived. The row has the number of receives (2 bytes)
// and a time (8 bytes, ms since 1970). At this time a released message becomes visible again.
const receivedLen = 2 + 8

// putReceived stores how often messages were received and, for released messages, when they become
// visible again. It skips acknowledged messages. It reads the counts and times inside the fill
// function of the Write. So if two Writes run at the same time, the later one stores the newer
// values.
func (q *queue) putReceived(ctx context.Context, of ...takenMessage) error {
	if len(of) == 0 {
		return nil
	}
	k, v := make([]byte, 0, len(q.prefix)+8), make([]byte, 0, receivedLen)
	return q.rows.Write(ctx, func(b rows.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, t := range of {
			m := q.index.messageAt(t.slot, t.seq)
			if m == nil || m.pos == notInHeap {
				continue
			}
			until := int64(0)
			if m.hold != held {
				until = ceilMs(time.Now().Add(time.Duration(m.visible - q.now())))
			}
			v = binary.BigEndian.AppendUint16(v[:0], m.receives)
			v = binary.BigEndian.AppendUint64(v, uint64(until))
			b.Set(tableReceived, q.appendKey(k, t.seq), v)
		}
	})
}

// giveBack undoes takeReady: the messages are ready again, in their old order.
func (q *queue) giveBack(taken []takenMessage) {
	q.mu.Lock()
	for _, t := range taken {
		m := q.index.messageAt(t.slot, t.seq)
		if m != nil && m.hold == held && m.pos != notInHeap && m.receives == t.receives+1 {
			m.receives, m.hold = t.receives, notHeld
			q.index.move(t.slot, t.visible)
		}
	}
	q.mu.Unlock()
	q.wakeOne()
}
