package log

import "sync"

// alone owns one message that came from no group.
type alone struct {
	done func()
	mu   sync.Mutex
}

func (o *alone) finished(m *Msg) []*Msg {
	if o.done != nil {
		o.done()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	next := m.next
	m.next = nil
	return next
}

func (o *alone) after(m, next *Msg) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if m.done.Load() {
		return false
	}
	m.next = append(m.next, next)
	return true
}
