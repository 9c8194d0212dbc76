package pebble

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// queues are the queues by name: those that had messages at the start, and
// those asked for since.
type queues struct {
	s *Store

	mu     sync.Mutex
	byName map[string]*queue
}

func (qs *queues) get(name string) *queue {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byName[name]
	if q == nil {
		q = &queue{s: qs.s, name: name, opened: time.Now(), look: make(chan struct{}, 1)}
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
// is lost is a delivery too many, which receivers must expect anyway. It stands
// in the log in front of every write that comes later.
type queue struct {
	s      *Store
	name   string
	life   [4]byte       // in receipts: those of another process are over
	opened time.Time     // what times of the index count from, on the monotonic clock
	look   chan struct{} // 1: one of those who wait should look

	next uint64 // seq given to the latest message; under the committer's lock

	mu          sync.Mutex // never held while waiting for the committer
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

func queueKey(b []byte, table byte, name string, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(appendStr(append(b, table), name), seq)
}

func (q *queue) key(table byte, seq uint64) []byte {
	return queueKey(make([]byte, 0, 11+len(q.name)), table, q.name, seq)
}

func (q *queue) Enqueue(ctx context.Context, ms []engine.Message) error {
	if err := engine.CheckMessages(ms); err != nil {
		return err
	}
	if len(ms) == 0 {
		return nil
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
		p.buf = binary.BigEndian.AppendUint64(p.buf, stamp)
		p.buf = binary.BigEndian.AppendUint64(p.buf, uint64(ceilMs(now.Add(ms[i].Delay))))
		p.buf = append(p.buf, ms[i].Body...)
		p.mark()
	}
	k := q.key(tMessage, 0)
	return q.s.commit.write(ctx, func(tx tx) {
		for i := range added {
			q.next++
			added[i].seq = q.next
			binary.BigEndian.PutUint64(k[len(k)-8:], q.next)
			tx.set(k, p.part(i))
		}
	}, func(err error) {
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
}

// messageHead is two times of 8 bytes each: enqueued, and visible, in ms since
// 1970. The first bit of the first one is the lane.
const (
	messageHead = 16
	inBacklog   = 1 << 63
)

// body returns what a message says; nil when it is gone.
func (q *queue) body(seq uint64) ([]byte, error) {
	k := q.key(tMessage, seq)
	v, err := q.s.get(k)
	if err != nil || v == nil {
		return nil, err
	}
	if len(v) < messageHead {
		return nil, corrupt("message", k)
	}
	return v[messageHead:], nil
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
	case <-q.s.latch.failed:
		return translate(q.s.latch.cause())
	}
	return nil
}

// took is a message that was taken, and what it was before.
type took struct {
	slot     uint32
	receives uint16
	seq      uint64
	enqueued int64
	visible  int64
	lane     laneOf
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
		taken = append(taken, took{slot, m.receives, m.seq, m.enqueued, m.visible, m.lane})
		m.receives, m.hold = m.receives+1, held
		x.move(slot, now+visibility)
	}
	for l := range x.heaps {
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
	for _, t := range taken {
		body, err := q.body(t.seq)
		if err == nil && body == nil {
			err = corrupt("message", q.key(tMessage, t.seq))
		}
		if err != nil {
			q.giveBack(taken)
			return nil, err
		}
		out = append(out, engine.Delivery{
			Receipt: q.receipt(t.slot, t.seq, t.receives+1), Body: body,
			Receives: int(t.receives) + 1, Enqueued: time.UnixMilli(t.enqueued), Backlog: t.lane == backlog,
		})
	}
	counted := taken
	if q.rough() {
		counted = slices.DeleteFunc(slices.Clone(taken), func(t took) bool { return t.receives == 0 })
	}
	if len(counted) == 0 {
		return out, nil
	}
	err := q.s.commit.write(ctx, func(tx tx) {
		for _, t := range counted {
			q.putReceived(tx, t.slot, t.seq)
		}
	}, nil)
	if err != nil {
		q.giveBack(taken)
		if ctx.Err() != nil { // no error of a Receive
			err = nil
		}
		return nil, err
	}
	return out, nil
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

// putReceived writes how often a message was received and, if it was released,
// until when. It writes what is true when the group is filled: the last write of
// two is never the older one, and nothing is written of what was acknowledged.
func (q *queue) putReceived(tx tx, slot uint32, seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := q.index.at(slot, seq)
	if m == nil || m.pos == none {
		return
	}
	v := binary.AppendUvarint(make([]byte, 0, 12), uint64(m.receives))
	until := int64(0)
	if m.hold != held {
		until = ceilMs(time.Now().Add(time.Duration(m.visible - q.now())))
	}
	tx.set(q.key(tReceived, seq), appendInt64(v, until))
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
