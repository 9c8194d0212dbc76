package store

import (
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
	heaps [2][]uint32 // by lane: slots of all that are not dead, the first to become visible on top
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

func (x *queueIndex) before(a, b uint32) bool {
	m, n := &x.slots[a], &x.slots[b]
	return m.visible < n.visible || m.visible == n.visible && m.seq < n.seq
}

func (x *queueIndex) push(slot uint32) {
	h := &x.heaps[x.slots[slot].lane]
	x.slots[slot].pos = uint32(len(*h))
	*h = append(*h, slot)
	x.up(*h, len(*h)-1)
}

// remove takes a slot out of its heap, if it is in it.
func (x *queueIndex) remove(slot uint32) {
	h, i := &x.heaps[x.slots[slot].lane], x.slots[slot].pos
	if i == none {
		return
	}
	last := len(*h) - 1
	x.swap(*h, int(i), last)
	*h = (*h)[:last]
	x.slots[slot].pos = none
	if int(i) < last {
		x.fix(*h, int(i))
	}
}

// move gives a message another visible time.
func (x *queueIndex) move(slot uint32, visible int64) {
	x.slots[slot].visible = visible
	x.fix(x.heaps[x.slots[slot].lane], int(x.slots[slot].pos))
}

// first returns the slot on top of a lane; false: there is none.
func (x *queueIndex) first(l laneOf) (slot uint32, ok bool) {
	if h := x.heaps[l]; len(h) > 0 {
		return h[0], true
	}
	return 0, false
}

// live is how many are not dead.
func (x *queueIndex) live() int { return len(x.heaps[onTime]) + len(x.heaps[backlog]) }

func (x *queueIndex) fix(h []uint32, i int) {
	if !x.down(h, i) {
		x.up(h, i)
	}
}

func (x *queueIndex) swap(h []uint32, i, j int) {
	h[i], h[j] = h[j], h[i]
	x.slots[h[i]].pos, x.slots[h[j]].pos = uint32(i), uint32(j)
}

func (x *queueIndex) up(h []uint32, i int) {
	for i > 0 {
		parent := (i - 1) / 4
		if !x.before(h[i], h[parent]) {
			return
		}
		x.swap(h, i, parent)
		i = parent
	}
}

// down reports whether it moved anything. Four children a node: half the depth,
// and the siblings are one cache line.
func (x *queueIndex) down(h []uint32, i int) bool {
	began := i
	for {
		first := 4*i + 1
		if first >= len(h) {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, len(h)); c++ {
			if x.before(h[c], h[least]) {
				least = c
			}
		}
		if !x.before(h[least], h[i]) {
			break
		}
		x.swap(h, i, least)
		i = least
	}
	return i > began
}

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
