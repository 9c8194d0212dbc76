package log

import "sync"

// loneOwner is the msgOwner of a message that belongs to no group, see NewMsg.
type loneOwner struct {
	done func()
	mu   sync.Mutex
}

func (o *loneOwner) finished(m *Msg) []*Msg {
	if o.done != nil {
		o.done()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	next := m.next
	m.next = nil
	return next
}

func (o *loneOwner) after(m, next *Msg) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if m.done.Load() {
		return false
	}
	m.next = append(m.next, next)
	return true
}
