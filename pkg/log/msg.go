package log

import "sync/atomic"

// Msg is a record that a handler must mark done. Key and Value alias the client's buffer: the
// handler may keep them as long as the Msg, and must not write to them.
type Msg struct {
	Record
	// Attempt counts deliveries of this record to this handler, from 1. It
	// grows when Handle failed or panicked before the record was done.
	Attempt int
	// AfterAssign: the record was appended after this member was given the partition, so no
	// earlier member read it while it owned the partition.
	AfterAssign bool

	epoch int32
	done  atomic.Bool
	owner msgOwner

	next      []*Msg // guarded by owner
	abandoned bool   // guarded by owner
}

// msgOwner is the assignment that a message belongs to. finished is called at the first Done and
// returns the messages to mark done next.
type msgOwner interface {
	finished(m *Msg) (next []*Msg)
	after(m, next *Msg) (queued bool)
}

// Done marks the record done: its effects are durable. The record is not delivered again once all
// offsets below it are done too and the low-water mark is committed. Done may be called from any
// goroutine, in any order and more than once. After the partition is gone it does nothing.
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

// After marks next done as soon as m is done, or at once if m is done already. It is for a second
// copy of a record whose first copy is still being processed.
func (m *Msg) After(next *Msg) {
	if !m.owner.after(m, next) {
		next.Done()
	}
}

// NewMsg returns a message that belongs to no group, for tests of handlers. Its first Done calls
// done, which may be nil.
func NewMsg(r Record, done func()) *Msg {
	return &Msg{Record: r, Attempt: 1, owner: &loneOwner{done: done}}
}
