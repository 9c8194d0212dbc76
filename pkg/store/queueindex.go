package store

import (
	"container/heap"
	"math"
	"time"
)

// queueIndex is what a queue knows of its messages without reading them: where
// each stands in time. It is in memory alone and built anew at each start.
//
// A message takes 36 bytes, and up to a quarter more while slices grow
// (TestQueueMemory): a million that wait, 45 MB at most.
type queueIndex struct {
	slots []queued
	free  []uint32
	lanes [2]lane
}

type queued struct {
	seq      uint64
	visible  int64 // when it may be received, or its visibility ends; ns since the queue was opened
	enqueued int64 // ms since 1970
	pos      uint32
	receives uint16
	hold     hold
	lane     laneOf
}

// hold says whose a message is.
type hold uint8

const (
	nobodys hold = iota
	held         // a receiver's, until visible
	dead
)

// laneOf is the lane of a message.
type laneOf uint8

const (
	onTime laneOf = iota
	backlog
)

// none is no place in the heap: of messages that are dead or being removed.
const none = math.MaxUint32

// maxCounted is where the count of receives stops.
const maxCounted = math.MaxUint16

func (x *queueIndex) add(m queued) uint32 {
	var slot uint32
	if n := len(x.free); n > 0 {
		slot, x.free = x.free[n-1], x.free[:n-1]
		x.slots[slot] = m
	} else {
		slot = uint32(len(x.slots))
		x.slots = append(x.slots, m)
	}
	x.push(slot)
	return slot
}

// at returns the message in a slot if it is the one with this seq.
func (x *queueIndex) at(slot uint32, seq uint64) *queued {
	if uint64(slot) >= uint64(len(x.slots)) || x.slots[slot].seq != seq || seq == 0 {
		return nil
	}
	return &x.slots[slot]
}

// forget gives a slot to the next message. A queue that is empty lets go of what
// a flood made it take.
func (x *queueIndex) forget(slot uint32) {
	x.remove(slot)
	x.slots[slot] = queued{pos: none}
	x.free = append(x.free, slot)
	if len(x.free) == len(x.slots) && len(x.slots) > 1<<16 {
		*x = queueIndex{}
	}
}

// lane is a heap of the slots of messages that are not dead, the first to become visible
// on top.
type lane struct {
	x     *queueIndex
	slots []uint32
}

func (x *queueIndex) laneOf(slot uint32) *lane {
	l := &x.lanes[x.slots[slot].lane]
	l.x = x
	return l
}

// Less, Swap and Len implement heap.Interface, of which Fix needs no more.
func (l *lane) Less(i, j int) bool {
	m, n := &l.x.slots[l.slots[i]], &l.x.slots[l.slots[j]]
	return m.visible < n.visible || m.visible == n.visible && m.seq < n.seq
}

func (l *lane) Swap(i, j int) {
	h := l.slots
	h[i], h[j] = h[j], h[i]
	l.x.slots[h[i]].pos, l.x.slots[h[j]].pos = uint32(i), uint32(j)
}

func (l *lane) Len() int { return len(l.slots) }
func (l *lane) Push(any) {}
func (l *lane) Pop() any { return nil }

func (x *queueIndex) push(slot uint32) {
	l := x.laneOf(slot)
	x.slots[slot].pos = uint32(len(l.slots))
	l.slots = append(l.slots, slot)
	heap.Fix(l, len(l.slots)-1)
}

// remove takes a slot out of its lane, if it is in it.
func (x *queueIndex) remove(slot uint32) {
	l, i := x.laneOf(slot), x.slots[slot].pos
	if i == none {
		return
	}
	last := len(l.slots) - 1
	l.Swap(int(i), last)
	l.slots = l.slots[:last]
	x.slots[slot].pos = none
	if int(i) < last {
		heap.Fix(l, int(i))
	}
}

// move gives a message another visible time.
func (x *queueIndex) move(slot uint32, visible int64) {
	x.slots[slot].visible = visible
	heap.Fix(x.laneOf(slot), int(x.slots[slot].pos))
}

// first returns the slot on top of a lane; false: there is none.
func (x *queueIndex) first(l laneOf) (slot uint32, ok bool) {
	if h := x.lanes[l].slots; len(h) > 0 {
		return h[0], true
	}
	return 0, false
}

// live is how many are not dead.
func (x *queueIndex) live() int { return len(x.lanes[onTime].slots) + len(x.lanes[backlog].slots) }

type messageState uint8

const (
	messageReady messageState = iota
	messageDelayed
	messageHeld
	messageDead
	messageLeaving // acknowledged; its delete is being handed in
)

// state says what a message is at now; maxReceives without an end make it dead.
func (m *queued) state(now int64, maxReceives int) messageState {
	switch {
	case m.hold == dead:
		return messageDead
	case m.pos == none:
		return messageLeaving
	case m.visible <= now && int(m.receives) >= maxReceives:
		return messageDead
	case m.visible <= now:
		return messageReady
	case m.hold == held:
		return messageHeld
	}
	return messageDelayed
}

// ceilMs rounds up, so that nothing is early.
func ceilMs(t time.Time) int64 {
	return t.Add(time.Millisecond - 1).UnixMilli()
}
