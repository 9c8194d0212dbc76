package store

import (
	"container/heap"
	"math"
	"time"
)

// queueIndex holds the times and states of a queue's messages, without their bodies. It is kept
// only in memory and is rebuilt at each start. The queue's mutex guards it.
//
// A message takes 36 bytes, and up to a quarter more while slices grow (TestQueueMemory): a
// million waiting messages take 45 MB at most.
type queueIndex struct {
	slots []queued
	free  []uint32
	lanes [2]laneHeap
}

type queued struct {
	seq      uint64
	visible  int64 // when it may be received, or when its visibility timeout ends; ns since the queue was opened
	enqueued int64 // ms since 1970
	pos      uint32
	receives uint16
	hold     hold
	lane     queueLane
}

// hold says whether a receiver has a message.
type hold uint8

const (
	notHeld hold = iota
	held         // a receiver has it until visible
	dead
)

// queueLane is the lane of a message in its queue.
type queueLane uint8

const (
	onTime queueLane = iota
	backlog
)

// notInHeap is the position of messages that are in no heap: dead ones and those being removed.
const notInHeap = math.MaxUint32

// maxCounted is the highest number of receives that is counted.
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

// freeSlot removes a message and frees its slot. An empty queue releases the memory of a large
// index.
func (x *queueIndex) freeSlot(slot uint32) {
	x.remove(slot)
	x.slots[slot] = queued{pos: notInHeap}
	x.free = append(x.free, slot)
	if len(x.free) == len(x.slots) && len(x.slots) > 1<<16 {
		*x = queueIndex{}
	}
}

// laneHeap is a heap of the slots of messages that are not dead. The message that becomes visible
// first is on top.
type laneHeap struct {
	x     *queueIndex
	slots []uint32
}

func (x *queueIndex) heapOf(slot uint32) *laneHeap {
	l := &x.lanes[x.slots[slot].lane]
	l.x = x
	return l
}

// Less, Swap and Len implement heap.Interface. Fix needs no other methods.
func (l *laneHeap) Less(i, j int) bool {
	m, n := &l.x.slots[l.slots[i]], &l.x.slots[l.slots[j]]
	return m.visible < n.visible || m.visible == n.visible && m.seq < n.seq
}

func (l *laneHeap) Swap(i, j int) {
	h := l.slots
	h[i], h[j] = h[j], h[i]
	l.x.slots[h[i]].pos, l.x.slots[h[j]].pos = uint32(i), uint32(j)
}

func (l *laneHeap) Len() int { return len(l.slots) }
func (l *laneHeap) Push(any) {}
func (l *laneHeap) Pop() any { return nil }

func (x *queueIndex) push(slot uint32) {
	l := x.heapOf(slot)
	x.slots[slot].pos = uint32(len(l.slots))
	l.slots = append(l.slots, slot)
	heap.Fix(l, len(l.slots)-1)
}

// remove removes a slot from its heap, if it is in it.
func (x *queueIndex) remove(slot uint32) {
	l, i := x.heapOf(slot), x.slots[slot].pos
	if i == notInHeap {
		return
	}
	last := len(l.slots) - 1
	l.Swap(int(i), last)
	l.slots = l.slots[:last]
	x.slots[slot].pos = notInHeap
	if int(i) < last {
		heap.Fix(l, int(i))
	}
}

// move gives a message another visible time.
func (x *queueIndex) move(slot uint32, visible int64) {
	x.slots[slot].visible = visible
	heap.Fix(x.heapOf(slot), int(x.slots[slot].pos))
}

// first returns the slot on top of a lane's heap, and false if the heap is empty.
func (x *queueIndex) first(l queueLane) (slot uint32, ok bool) {
	if h := x.lanes[l].slots; len(h) > 0 {
		return h[0], true
	}
	return 0, false
}

// liveCount returns the number of messages that are neither dead nor being removed.
func (x *queueIndex) liveCount() int { return len(x.lanes[onTime].slots) + len(x.lanes[backlog].slots) }

type messageState uint8

const (
	messageReady messageState = iota
	messageDelayed
	messageHeld
	messageDead
	messageLeaving // acknowledged; its delete is being written
)

// state returns the state of a message at now. A message that was received maxReceives times without
// an acknowledgement is dead.
func (m *queued) state(now int64, maxReceives int) messageState {
	switch {
	case m.hold == dead:
		return messageDead
	case m.pos == notInHeap:
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

// ceilMs returns t in ms since 1970, rounded up so that no message is early.
func ceilMs(t time.Time) int64 {
	return t.Add(time.Millisecond - 1).UnixMilli()
}
