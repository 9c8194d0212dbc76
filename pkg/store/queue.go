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

// Tables of queues. Both have the same keys.
var (
	tableMessages = rows.Part{Table: 'Q'} // str queue, seq: enqueued and lane, visible, body
	tableReceived = rows.Part{Table: 'V'} // str queue, seq: receives, released until
)

// queues are the queues by name: those that had messages at the start, and
// those asked for since.
type queues struct {
	rows rows.Rows

	mu     sync.Mutex
	byName map[string]*queue
}

func (qs *queues) get(name string) *queue {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byName[name]
	if q == nil {
		q = &queue{rows: qs.rows, prefix: str(name), opened: time.Now(), look: make(chan struct{}, 1)}
		rand.Read(q.life[:]) // never fails since Go 1.24
		qs.byName[name] = q
	}
	return q
}

// queue gives out messages in the order in which they became visible, then of
// their seqs. What is stored is the message, and how often it was received: that
// is durable before a delivery is given out, so that a message that ends the
// process ends dead (but see roughFrom). Who has it, and until when, is in memory: after a start
// everything that was not acknowledged is visible again, at its delay's end.
//
// Acknowledged messages are deleted without waiting for an fsync: a delete that
// is lost is a delivery too many, which receivers must expect anyway. It is
// durable before every write that comes later.
type queue struct {
	rows   rows.Rows
	prefix string        // of its keys
	life   [4]byte       // in receipts: those of another process are over
	opened time.Time     // what times of the index count from, on the monotonic clock
	look   chan struct{} // 1: one of those who wait should look

	next uint64 // seq given to the latest message; changed in fills of Write

	mu          sync.Mutex // never held while calling rows
	maxReceives int
	index       queueIndex
	turn        int // messages of the on-time lane since one of the backlog, while both waited
}

func (q *queue) now() int64 { return int64(time.Since(q.opened)) }

// wakeOne makes one receiver that waits look again. Whoever takes the signal, or
// leaves with messages still there, gives it again: one of those who stay knows
// when the next message is visible.
func (q *queue) wakeOne() {
	select {
	case q.look <- struct{}{}:
	default: // there is one
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
		p.mark()
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

// messageHead is two times of 8 bytes each: enqueued, and visible, in ms since
// 1970. The first bit of the first one is the lane.
const (
	messageHead = 16
	inBacklog   = 1 << 63
)

// bodies calls fn with the bodies of n messages, in order; a body is valid until fn
// returns, and nil if the message is gone.
func (q *queue) bodies(ctx context.Context, n int, seq func(i int) uint64, fn func(i int, body []byte) error) error {
	key := func(b []byte, i int) []byte { return q.appendKey(b, seq(i)) }
	return q.rows.Look(ctx, tableMessages, n, key, func(i int, v []byte) error {
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
		taken, next, more := q.take(max, int64(visibility))
		if len(taken) > 0 {
			if more {
				q.wakeOne()
			}
			return q.deliver(ctx, taken)
		}
		if err := q.wait(ctx, next); err != nil {
			return nil, err
		}
	}
	q.wakeOne()
	return nil, nil
}

// wait returns when it is time to look again: at next, ns since opened, 0: never;
// when somebody says so; or when ctx ends.
func (q *queue) wait(ctx context.Context, next int64) error {
	var due <-chan time.Time
	if next > 0 {
		t := time.NewTimer(time.Duration(next - q.now()))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-due:
	case <-q.look:
	case <-ctx.Done():
	case <-q.rows.Failed():
		return q.rows.Err()
	}
	return nil
}

// took is a message, and where it is in the index. Of one that is being received it is
// what the message was before.
type took struct {
	slot uint32
	queued
}

// take takes up to max ready messages. If there are none it says when the next
// one is; more reports whether others are left, ready or not.
func (q *queue) take(max int, visibility int64) (taken []took, next int64, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	x, now := &q.index, q.now()
	for len(taken) < max {
		slot, ok := q.nextLocked(now)
		if !ok {
			break
		}
		m := &x.slots[slot]
		taken = append(taken, took{slot, *m})
		m.receives, m.hold = m.receives+1, held
		x.move(slot, now+visibility)
	}
	for l := range x.lanes {
		if slot, ok := x.first(laneOf(l)); ok && len(taken) == 0 && (next == 0 || x.slots[slot].visible < next) {
			next = x.slots[slot].visible
		}
	}
	return taken, next, x.live() > len(taken)
}

// nextLocked is the message to be taken next: of the backlog lane, while the
// other has any, one of engine.BacklogShare.
func (q *queue) nextLocked(now int64) (slot uint32, ok bool) {
	prompt, some := q.readyLocked(onTime, now)
	late, overdue := q.readyLocked(backlog, now)
	switch {
	case !overdue:
		return prompt, some
	case !some:
		return late, true
	}
	if q.turn++; q.turn == engine.BacklogShare {
		q.turn = 0
		return late, true
	}
	return prompt, true
}

// readyLocked is the first message of a lane that may be received. It puts aside
// those that were received too often.
func (q *queue) readyLocked(l laneOf, now int64) (slot uint32, ok bool) {
	x := &q.index
	for {
		slot, ok = x.first(l)
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

// deliver reads what was taken and makes durable that it was received.
func (q *queue) deliver(ctx context.Context, taken []took) ([]engine.Delivery, error) {
	out := make([]engine.Delivery, 0, len(taken))
	err := q.bodies(ctx, len(taken), func(i int) uint64 { return taken[i].seq }, func(i int, body []byte) error {
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
		if q.rough() {
			counted = slices.DeleteFunc(slices.Clone(taken), func(t took) bool { return t.receives == 0 })
		}
		err = q.putReceived(ctx, counted...)
	}
	if err == nil {
		return out, nil
	}
	q.giveBack(taken)
	if ctx.Err() != nil { // no error of a Receive
		err = nil
	}
	return nil, err
}

func (q *queue) delivery(t took, body []byte) engine.Delivery {
	return engine.Delivery{
		Receipt: q.receipt(t), Body: bytes.Clone(body),
		Receives: int(t.receives), Enqueued: time.UnixMilli(t.enqueued), Backlog: t.lane == backlog,
	}
}

// roughFrom is the limit of receives from which on a queue does not write the first
// receive of a message, which for nearly all messages is the only one: it was two of
// the nine row writes of a callback, and a wait for the disk. After a start each message
// that was visible by then counts as received once, so a message that ends the process
// still ends dead, and one that does not is received at most once less.
const roughFrom = 100

func (q *queue) rough() bool { return q.maxReceives >= roughFrom } // it is set before the first Receive

// countUnwrittenLocked counts the receives before the start that were not written.
func (q *queue) countUnwrittenLocked() {
	if !q.rough() {
		return
	}
	now := q.now() + int64(time.Millisecond) // what is stored is rounded up
	for i := range q.index.slots {
		if m := &q.index.slots[i]; m.seq != 0 && m.receives == 0 && m.visible <= now {
			m.receives = 1
		}
	}
}

// receivedLen is the length of how often a message was received, 2 bytes, and when it is
// visible again, if it was released, ms since 1970.
const receivedLen = 2 + 8

// putReceived writes how often messages were received and, if they were released,
// until when. It writes what is true in the fill: the last write of two is never the
// older one, and nothing is written of what was acknowledged.
func (q *queue) putReceived(ctx context.Context, of ...took) error {
	if len(of) == 0 {
		return nil
	}
	k, v := make([]byte, 0, len(q.prefix)+8), make([]byte, 0, receivedLen)
	return q.rows.Write(ctx, func(b rows.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, t := range of {
			m := q.index.at(t.slot, t.seq)
			if m == nil || m.pos == none {
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

// giveBack undoes a take: the messages are ready again, in their old places.
func (q *queue) giveBack(taken []took) {
	q.mu.Lock()
	for _, t := range taken {
		m := q.index.at(t.slot, t.seq)
		if m != nil && m.hold == held && m.pos != none && m.receives == t.receives+1 {
			m.receives, m.hold = t.receives, nobodys
			q.index.move(t.slot, t.visible)
		}
	}
	q.mu.Unlock()
	q.wakeOne()
}
