package log

import "sync/atomic"

// Msg is a record handed to a handler, to be marked done once. Key and Value
// alias the client's buffer: they may be kept as long as the Msg, and must not
// be written to.
type Msg struct {
	Record
	// Attempt counts deliveries of this record to this handler, from 1. It
	// grows when Handle failed or panicked before the record was done.
	Attempt int
	// AfterAssign: the record was appended after this member was given the partition. No
	// earlier member read it before that.
	AfterAssign bool

	epoch int32
	done  atomic.Bool
	owner owner

	next      []*Msg // guarded by owner
	abandoned bool   // guarded by owner
}

// owner is told of the first Done of a message.
type owner interface {
	finished(m *Msg) (next []*Msg)
	after(m, next *Msg) (queued bool)
}

// Done says that the record's effects are durable: it will not be delivered
// again once the offsets below it are done too and the mark is committed. It
// may be called from any goroutine, in any order, more than once, and after the
// partition is gone, when it does nothing.
func (m *Msg) Done() {
	if !m.done.CompareAndSwap(false, true) {
		return
	}
	for _, n := range m.owner.finished(m) {
		n.Done()
	}
}

// IsDone reports whether Done was called.
func (m *Msg) IsDone() bool { return m.done.Load() }

// After makes next done as soon as m is: for a second copy of a record whose
// first copy is still being worked on. At once if m is done.
func (m *Msg) After(next *Msg) {
	if !m.owner.after(m, next) {
		next.Done()
	}
}

// NewMsg returns a message outside of any group, for tests of handlers; done is
// called at its first Done and may be nil.
func NewMsg(r Record, done func()) *Msg {
	return &Msg{Record: r, Attempt: 1, owner: &alone{done: done}}
}
