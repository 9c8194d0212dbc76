package pebble

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
	heap  []uint32 // slots of all that are not dead, the first to become visible on top
}

type queued struct {
	seq      uint64
	visible  int64 // when it may be received, or its visibility ends; ns since the queue was opened
	enqueued int64 // ms since 1970
	pos      uint32
	receives uint16
	held     bool // by a receiver, until visible
	dead     bool
}

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
	x.slots[slot].pos = uint32(len(x.heap))
	x.heap = append(x.heap, slot)
	x.up(len(x.heap) - 1)
}

// remove takes a slot out of the heap, if it is in it.
func (x *queueIndex) remove(slot uint32) {
	i := x.slots[slot].pos
	if i == none {
		return
	}
	last := len(x.heap) - 1
	x.swap(int(i), last)
	x.heap = x.heap[:last]
	x.slots[slot].pos = none
	if int(i) < last {
		x.fix(int(i))
	}
}

// move gives a message another visible time.
func (x *queueIndex) move(slot uint32, visible int64) {
	x.slots[slot].visible = visible
	x.fix(int(x.slots[slot].pos))
}

func (x *queueIndex) fix(i int) {
	if !x.down(i) {
		x.up(i)
	}
}

func (x *queueIndex) swap(i, j int) {
	x.heap[i], x.heap[j] = x.heap[j], x.heap[i]
	x.slots[x.heap[i]].pos, x.slots[x.heap[j]].pos = uint32(i), uint32(j)
}

func (x *queueIndex) up(i int) {
	for i > 0 {
		parent := (i - 1) / 4
		if !x.before(x.heap[i], x.heap[parent]) {
			return
		}
		x.swap(i, parent)
		i = parent
	}
}

// down reports whether it moved anything. Four children a node: half the depth,
// and the siblings are one cache line.
func (x *queueIndex) down(i int) bool {
	began := i
	for {
		first := 4*i + 1
		if first >= len(x.heap) {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, len(x.heap)); c++ {
			if x.before(x.heap[c], x.heap[least]) {
				least = c
			}
		}
		if !x.before(x.heap[least], x.heap[i]) {
			break
		}
		x.swap(i, least)
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
	case m.dead:
		return messageDead
	case m.pos == none:
		return messageLeaving
	case m.visible <= now && int(m.receives) >= maxReceives:
		return messageDead
	case m.visible <= now:
		return messageReady
	case m.held:
		return messageHeld
	}
	return messageDelayed
}

// ceilMs rounds up, so that nothing is early.
func ceilMs(t time.Time) int64 {
	return t.Add(time.Millisecond - 1).UnixMilli()
}
