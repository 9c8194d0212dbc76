package log

import "sync/atomic"

// Msg is a record that a handler must mark done. Key and Value alias the client's buffer. The handler
// may keep Key and Value as long as it keeps the Msg, and must not write to them.
type Msg struct {
	Record
	// Attempt is how often the handler has got this record, from 1. It increases by one when Handle
	// fails or panics before the record is done.
	Attempt int
	// AfterAssign is true if the record was appended after this member was given the partition. So no
	// earlier member has read the record while it owned the partition.
	AfterAssign bool

	epoch int32
	done  atomic.Bool
	owner msgOwner

	next      []*Msg // messages to mark done after this message; owner guards this field
	abandoned bool   // true: the handler will not process the record; owner guards this field
}

// msgOwner is the partition of a group to which a message belongs. At the first call of Msg.Done,
// Done calls the method finished, and marks as done the messages that this method returns.
type msgOwner interface {
	finished(m *Msg) (next []*Msg)
	after(m, next *Msg) (queued bool)
}

// Done marks the record as done, which means that the effects of the record are durable. Once all
// earlier records of the partition are done too and the low-water mark has been committed, the
// record is not delivered again. Done may be called from any goroutine, in any order and more than
// once. After this member has lost the partition, Done has no effect.
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

// ChainDone marks another message, the follower, as done as soon as m is done. If m is already
// done, ChainDone does this at once. Use ChainDone for a second copy of a record whose first copy
// is still being processed.
func (m *Msg) ChainDone(follower *Msg) {
	if !m.owner.after(m, follower) {
		follower.Done()
	}
}

// NewMsg returns a message that belongs to no group. It is for tests of handlers. The first call of
// the message's method Done calls the function onDone, which may be nil.
func NewMsg(r Record, onDone func()) *Msg {
	return &Msg{Record: r, Attempt: 1, owner: &loneOwner{done: onDone}}
}
