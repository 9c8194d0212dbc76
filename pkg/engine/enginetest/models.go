package enginetest

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// modelQueue is a simple model of a queue: a list of messages. The state of a message is
// computed from the current time. The suite runs random programs on the model and on an
// engine.
type modelQueue struct{ messages []*modelMessage }

type modelMessage struct {
	engine.Delivery           // the last delivery of the message
	visible         time.Time // when the message becomes visible
	held            bool      // true: a receiver owns the message until the time visible
}

// inState returns the messages in a state, in the order in which they became visible.
func (q *modelQueue) inState(state string) (out []*modelMessage) {
	for _, m := range q.messages {
		if m.state() == state {
			out = append(out, m)
		}
	}
	slices.SortStableFunc(out, func(a, b *modelMessage) int { return a.visible.Compare(b.visible) })
	return out
}

func (m *modelMessage) state() string {
	switch over := !m.visible.After(time.Now()); {
	case over && m.Receives >= QueueReceives:
		return "dead"
	case over:
		return "ready"
	case m.held:
		return "held"
	}
	return "delayed"
}

func (q *modelQueue) enqueue(ms []engine.Message) {
	now := time.Now()
	for _, m := range ms {
		q.messages = append(q.messages, &modelMessage{Delivery: engine.Delivery{Body: m.Body, Enqueued: now}, visible: now.Add(m.Delay)})
	}
}

func (q *modelQueue) receive(max int, visibility time.Duration) (out []engine.Delivery) {
	ready := q.inState("ready")
	for _, m := range ready[:min(len(ready), max)] {
		m.Receives++
		m.held, m.visible = true, time.Now().Add(visibility)
		m.Receipt = string(m.Body) + strings.Repeat("!", m.Receives)
		out = append(out, m.Delivery)
	}
	return out
}

// held returns the messages that a receiver owns and whose valid receipt is in receipts.
func (q *modelQueue) held(receipts []string) []*modelMessage {
	return slices.DeleteFunc(q.inState("held"), func(m *modelMessage) bool { return !slices.Contains(receipts, m.Receipt) })
}

func (q *modelQueue) remove(ms []*modelMessage) {
	q.messages = slices.DeleteFunc(q.messages, func(m *modelMessage) bool { return slices.Contains(ms, m) })
}

func (q *modelQueue) depth() engine.QueueDepth {
	ready := q.inState("ready")
	d := engine.QueueDepth{Ready: len(ready), Delayed: len(q.inState("delayed")), InFlight: len(q.inState("held")), Dead: len(q.inState("dead"))}
	for _, m := range ready {
		if d.Oldest.IsZero() || m.Enqueued.Before(d.Oldest) {
			d.Oldest = m.Enqueued
		}
	}
	return d
}

// modelTriggers is a simple model of engine.Triggers: a map of rows by id.
type modelTriggers map[string]engine.Trigger

// put stores a row and returns true if the stored version is oldVersion. If oldVersion is
// 0, it does so only if no row is stored.
func (m modelTriggers) put(oldVersion uint64, t engine.Trigger) bool {
	if stored, ok := m[t.ID]; ok != (oldVersion > 0) || stored.Version != oldVersion {
		return false
	}
	t.Version = oldVersion + 1
	m[t.ID] = t
	return true
}

func (m modelTriggers) create(ts []engine.Trigger) []bool {
	won := make([]bool, len(ts))
	for i := range ts {
		won[i] = m.put(0, ts[i])
	}
	return won
}

func (m modelTriggers) swap(ss []engine.TriggerSwap) []bool {
	won := make([]bool, len(ss))
	for i := range ss {
		won[i] = ss[i].Old > 0 && m.put(ss[i].Old, ss[i].New)
	}
	return won
}

func (m modelTriggers) get(ids []string) []engine.Trigger {
	out := make([]engine.Trigger, len(ids))
	for i, id := range ids {
		out[i] = m[id]
	}
	return out
}

func (m modelTriggers) list(caller string, state engine.TriggerState, behind string, max int) (out []engine.Trigger) {
	for _, t := range m {
		fits := state == 0 || t.State == state || state == engine.TriggerOpen && t.IsOpen()
		if fits && (caller == "" || t.Caller == caller) && (behind == "" || t.ID < behind) {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b engine.Trigger) int { return cmp.Compare(b.ID, a.ID) })
	return out[:min(len(out), max)]
}

// purge removes all terminal rows that ended earlier than beforeMs, ms since 1970.
func (m modelTriggers) purge(beforeMs int64) (n int) {
	for id, t := range m {
		if t.State.Terminal() && t.Ended < beforeMs {
			delete(m, id)
			n++
		}
	}
	return n
}
