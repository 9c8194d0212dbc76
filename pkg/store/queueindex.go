package store

import (
	"container/heap"
	"math"
	"time"
)

// queueIndex holds the times and states of a queue's messages, without their bodies. It is only in
// memory. Each start rebuilds it. queue.mu guards it.
//
// A message takes 36 bytes, and up to a quarter more while slices grow (TestQueueMemory). So a
// million waiting messages take at most 45 MB.
type queueIndex struct {
	slots []queued
	free  []uint32
	lanes [2]laneHeap
}

type queued struct {
	seq uint64
	// visible is the time from which the message may be received, in ns since the queue was opened.
	// For a held message it is the end of the visibility timeout.
	visible  int64
	enqueued int64  // ms since 1970
	pos      uint32 // index of the message in the slots of its laneHeap, or notInHeap
	receives uint16
	hold     hold
	lane     queueLane
}

// hold says whether a receiver holds the message, or whether the message is dead.
type hold uint8

const (
	notHeld hold = iota
	held         // a receiver holds the message until the time in the field visible
	dead
)

// queueLane is the lane of a message in its queue: backlog if the sender has set Message.Backlog,
// otherwise onTime.
type queueLane uint8

const (
	onTime queueLane = iota
	backlog
)

// notInHeap is the value of the field pos for messages that are in no heap: dead messages, and
// messages whose removal is being written.
const notInHeap = math.MaxUint32

// maxCounted is the highest number of receives that can be stored for a message.
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

// messageAt returns the message with this slot and seq. It returns nil if the slot is empty or has
// another message.
func (x *queueIndex) messageAt(slot uint32, seq uint64) *queued {
	if uint64(slot) >= uint64(len(x.slots)) || x.slots[slot].seq != seq || seq == 0 {
		return nil
	}
	return &x.slots[slot]
}

// freeSlot removes a message and frees its slot. If no message is left and the index has more than
// 65,536 slots, it also releases the memory of the index.
func (x *queueIndex) freeSlot(slot uint32) {
	x.remove(slot)
	x.slots[slot] = queued{pos: notInHeap}
	x.free = append(x.free, slot)
	if len(x.free) == len(x.slots) && len(x.slots) > 1<<16 {
		*x = queueIndex{}
	}
}

// laneHeap is a heap of the slots of a lane's messages, except the messages that are in no heap (see
// notInHeap). The message that becomes visible first is on top.
type laneHeap struct {
	x     *queueIndex
	slots []uint32
}

func (x *queueIndex) heapOf(slot uint32) *laneHeap {
	l := &x.lanes[x.slots[slot].lane]
	l.x = x
	return l
}

// Less, Swap and Len implement heap.Interface. Push and Pop do nothing, because heap.Fix does not call
// them.
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

// remove removes a slot from its heap. It does nothing if the slot is in no heap.
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

// move changes the time at which a message becomes visible.
func (x *queueIndex) move(slot uint32, visible int64) {
	x.slots[slot].visible = visible
	heap.Fix(x.heapOf(slot), int(x.slots[slot].pos))
}

// firstInLane returns the slot on top of a lane's heap. ok is false if the heap is empty.
func (x *queueIndex) firstInLane(l queueLane) (slot uint32, ok bool) {
	if h := x.lanes[l].slots; len(h) > 0 {
		return h[0], true
	}
	return 0, false
}

// liveCount returns the number of messages in both heaps. It counts neither dead messages nor
// messages whose removal is being written.
func (x *queueIndex) liveCount() int { return len(x.lanes[onTime].slots) + len(x.lanes[backlog].slots) }

type messageState uint8

const (
	messageReady messageState = iota
	messageDelayed
	messageHeld
	messageDead
	messageLeaving // acknowledged; its removal is being written
)

// state returns the state of a message at the time now. A visible message that was received
// maxReceives times is dead: no receiver has acknowledged it.
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

// ceilMs returns t in ms since 1970. It rounds up, so that no message becomes visible too early.
func ceilMs(t time.Time) int64 {
	return t.Add(time.Millisecond - 1).UnixMilli()
}
