package memory

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Queue returns the delay queue of a name; its messages are given out at most
// maxReceives times (1 or more). The same name is the same queue, whatever
// maxReceives says the second time.
func (s *Store) Queue(name string, maxReceives int) engine.Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[name]
	if q == nil {
		q = &queue{maxReceives: max(maxReceives, 1), messages: map[uint64]*message{}, changed: make(chan struct{})}
		s.queues[name] = q
	}
	return q
}

// queue is a map of messages; what becomes of one is computed from the time.
type queue struct {
	maxReceives int

	mu       sync.Mutex
	seq      uint64
	messages map[uint64]*message
	turn     int           // messages of the on-time lane since one of the backlog, while both waited
	changed  chan struct{} // closed when a message may be visible earlier than before
}

type message struct {
	seq      uint64
	body     []byte
	enqueued time.Time
	visible  time.Time // when it may be received, or its visibility ends
	held     bool      // by a receiver, until visible
	receives int
	backlog  bool
}

func (m *message) receipt() string {
	return strconv.FormatUint(m.seq, 10) + "-" + strconv.Itoa(m.receives)
}

// deadReceipt is another than any that a receiver was given.
func (m *message) deadReceipt() string { return strconv.FormatUint(m.seq, 10) + "-dead" }

func (m *message) delivery(receipt string) engine.Delivery {
	return engine.Delivery{Receipt: receipt, Body: bytes.Clone(m.body), Receives: m.receives, Enqueued: m.enqueued, Backlog: m.backlog}
}

type messageState uint8

const (
	ready messageState = iota
	delayed
	inFlight
	dead
)

func (q *queue) state(m *message, now time.Time) messageState {
	switch {
	case !m.visible.After(now) && m.receives >= q.maxReceives:
		return dead
	case !m.visible.After(now):
		return ready
	case m.held:
		return inFlight
	}
	return delayed
}

// in returns the messages that are in a state, by visible time, then age. Must
// be called with mu held.
func (q *queue) in(want messageState, now time.Time) (out []*message) {
	for _, m := range q.messages {
		if q.state(m, now) == want {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *message) int {
		return cmp.Or(a.visible.Compare(b.visible), cmp.Compare(a.seq, b.seq))
	})
	return out
}

// named returns the message that a receipt names, if it is in one of the states
// wanted. Must be called with mu held.
func (q *queue) named(receipt string, want ...messageState) *message {
	seq, _, _ := strings.Cut(receipt, "-")
	n, _ := strconv.ParseUint(seq, 10, 64)
	m := q.messages[n]
	if m == nil {
		return nil
	}
	state, is := q.state(m, time.Now()), m.receipt()
	if state == dead {
		is = m.deadReceipt()
	}
	if receipt != is || !slices.Contains(want, state) {
		return nil
	}
	return m
}

func (q *queue) signal() {
	close(q.changed)
	q.changed = make(chan struct{})
}

func (q *queue) Enqueue(ctx context.Context, ms []engine.Message) error {
	if err := check(ctx); err != nil {
		return err
	}
	if err := engine.CheckMessages(ms); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for _, m := range ms {
		q.seq++
		q.messages[q.seq] = &message{seq: q.seq, body: bytes.Clone(m.Body), enqueued: now, visible: now.Add(m.Delay), backlog: m.Backlog}
	}
	q.signal()
	return nil
}

func (q *queue) Receive(ctx context.Context, max int, visibility time.Duration) ([]engine.Delivery, error) {
	if err := engine.CheckVisibility(visibility); err != nil || max <= 0 {
		return nil, err
	}
	for ctx.Err() == nil {
		out, next, changed := q.take(max, visibility)
		if len(out) > 0 {
			return out, nil
		}
		var due <-chan time.Time
		var t *time.Timer
		if !next.IsZero() {
			t = time.NewTimer(time.Until(next))
			due = t.C
		}
		select {
		case <-due:
		case <-changed:
		case <-ctx.Done():
		}
		if t != nil {
			t.Stop()
		}
	}
	return nil, nil
}

// take gives out ready messages; if there are none, it says when to look again.
func (q *queue) take(max int, visibility time.Duration) (out []engine.Delivery, next time.Time, changed <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for _, m := range q.share(q.in(ready, now), max) {
		m.receives++
		m.held, m.visible = true, now.Add(visibility)
		out = append(out, m.delivery(m.receipt()))
	}
	if len(out) == 0 {
		for _, m := range q.messages {
			if m.visible.After(now) && (next.IsZero() || m.visible.Before(next)) {
				next = m.visible
			}
		}
	}
	return out, next, q.changed
}

// share picks up to most of what is ready: of the backlog lane, while the other
// has any, one of engine.BacklogShare. Must be called with mu held.
func (q *queue) share(due []*message, most int) (out []*message) {
	var prompt, late []*message
	for _, m := range due {
		if m.backlog {
			late = append(late, m)
		} else {
			prompt = append(prompt, m)
		}
	}
	for len(out) < most && len(prompt)+len(late) > 0 {
		from := &prompt
		switch {
		case len(late) == 0:
		case len(prompt) == 0:
			from = &late
		default:
			if q.turn++; q.turn == engine.BacklogShare {
				q.turn, from = 0, &late
			}
		}
		out = append(out, (*from)[0])
		*from = (*from)[1:]
	}
	return out
}

func (q *queue) Extend(ctx context.Context, receipts []string, visibility time.Duration) error {
	if err := check(ctx); err != nil {
		return err
	}
	if err := engine.CheckVisibility(visibility); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range receipts {
		if m := q.named(r, inFlight); m != nil {
			m.visible = time.Now().Add(visibility)
		}
	}
	q.signal() // it may be earlier
	return nil
}

func (q *queue) Ack(ctx context.Context, receipts []string) error {
	if err := check(ctx); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range receipts {
		if m := q.named(r, inFlight, dead); m != nil {
			delete(q.messages, m.seq)
		}
	}
	return nil
}

func (q *queue) Release(ctx context.Context, receipt string, delay time.Duration) error {
	if err := check(ctx); err != nil {
		return err
	}
	if err := engine.CheckDelay(delay); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if m := q.named(receipt, inFlight); m != nil {
		m.held, m.visible = false, time.Now().Add(delay)
	}
	q.signal()
	return nil
}

func (q *queue) Depth(ctx context.Context) (d engine.QueueDepth, err error) {
	if err := check(ctx); err != nil {
		return d, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for _, m := range q.messages {
		state := q.state(m, now)
		if m.backlog && state != dead {
			d.Backlog++
		}
		switch state {
		case dead:
			d.Dead++
		case inFlight:
			d.InFlight++
		case delayed:
			d.Delayed++
		case ready:
			if d.Ready++; d.Oldest.IsZero() || m.enqueued.Before(d.Oldest) {
				d.Oldest = m.enqueued
			}
		}
	}
	return d, nil
}

// Dead returns receipts with which Ack removes dead messages.
func (q *queue) Dead(ctx context.Context, max int) ([]engine.Delivery, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	ms := q.in(dead, time.Now())
	slices.SortFunc(ms, func(a, b *message) int { return cmp.Compare(a.seq, b.seq) })
	var out []engine.Delivery
	for _, m := range ms[:clamp(len(ms), max)] {
		out = append(out, m.delivery(m.deadReceipt()))
	}
	return out, nil
}
