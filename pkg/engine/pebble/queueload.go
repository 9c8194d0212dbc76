package pebble

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"sort"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// load builds the indexes anew. It reads the head of every message, some
// hundred thousand a second.
func (qs *queues) load(s *Store) error {
	qs.s, qs.byName = s, map[string]*queue{}
	var q *queue
	err := s.each(under([]byte{tMessage}), func(k, v []byte) (bool, error) {
		name, seq, ok := readQueueKey(k)
		if !ok || len(v) < messageHead {
			return false, corrupt("message", k)
		}
		if q == nil || q.name != name {
			q = qs.get(name)
		}
		stamp, lane := binary.BigEndian.Uint64(v), onTime
		if stamp&inBacklog != 0 {
			lane = backlog
		}
		q.index.add(queued{
			seq: seq, enqueued: int64(stamp &^ inBacklog), lane: lane,
			visible: q.since(int64(binary.BigEndian.Uint64(v[8:]))),
		})
		q.next = seq
		return true, nil
	})
	if err != nil {
		return err
	}
	return s.each(under([]byte{tReceived}), func(k, v []byte) (bool, error) {
		name, seq, ok := readQueueKey(k)
		d := reader{b: v}
		receives, until := d.uint(), d.int()
		if !ok || !d.done() {
			return false, corrupt("received", k)
		}
		q := qs.get(name)
		// As many slots as messages, in the order of their seqs.
		i := sort.Search(len(q.index.slots), func(i int) bool { return q.index.slots[i].seq >= seq })
		m := q.index.at(uint32(i), seq)
		if m == nil {
			return true, nil // nothing depends on it
		}
		m.receives = uint16(min(receives, maxCounted))
		if until != 0 {
			q.index.move(uint32(i), q.since(until))
		}
		return true, nil
	})
}

// since turns ms since 1970 into the time of the index.
func (q *queue) since(ms int64) int64 { return int64(time.UnixMilli(ms).Sub(q.opened.Round(0))) }

func readQueueKey(k []byte) (name string, seq uint64, ok bool) {
	if len(k) < 11 || len(k) != 11+int(binary.BigEndian.Uint16(k[1:])) {
		return "", 0, false
	}
	return string(k[3 : len(k)-8]), binary.BigEndian.Uint64(k[len(k)-8:]), true
}

// Depth looks at the index alone, at every message: 2 ms a million.
func (q *queue) Depth(context.Context) (d engine.QueueDepth, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now, oldest := q.now(), int64(0)
	d.Backlog = len(q.index.heaps[backlog])
	for i := range q.index.slots {
		m := &q.index.slots[i]
		if m.seq == 0 {
			continue // free
		}
		switch m.state(now, q.maxReceives) {
		case messageReady:
			d.Ready++
			if oldest == 0 || m.enqueued < oldest {
				oldest = m.enqueued
			}
		case messageDelayed:
			d.Delayed++
		case messageHeld:
			d.InFlight++
		case messageDead:
			d.Dead++
		case messageLeaving:
		}
	}
	if oldest != 0 {
		d.Oldest = time.UnixMilli(oldest)
	}
	return d, nil
}

// Dead returns receipts with which Ack removes dead messages.
func (q *queue) Dead(ctx context.Context, max int) (out []engine.Delivery, err error) {
	n := -1
	for _, m := range q.deadOnes(max) {
		if err := sometimes(ctx, &n); err != nil {
			return nil, err
		}
		body, err := q.body(m.seq)
		if err != nil {
			return nil, err
		}
		if body == nil {
			continue // removed meanwhile
		}
		out = append(out, engine.Delivery{
			Receipt: q.receiptOf(receiptDead, m.slot, m.seq, m.receives), Body: body,
			Receives: int(m.receives), Enqueued: time.UnixMilli(m.enqueued), Backlog: m.lane == backlog,
		})
	}
	return out, nil
}

// deadOnes returns up to max dead messages, oldest first.
func (q *queue) deadOnes(limit int) (out []took) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	for i := range q.index.slots {
		if m := &q.index.slots[i]; m.seq != 0 && m.state(now, q.maxReceives) == messageDead {
			out = append(out, took{uint32(i), m.receives, m.seq, m.enqueued, m.visible, m.lane})
		}
	}
	slices.SortFunc(out, func(a, b took) int { return cmp.Compare(a.seq, b.seq) })
	return out[:min(len(out), max(limit, 0))]
}
