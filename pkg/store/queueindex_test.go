package store

import (
	"math/rand/v2"
	"runtime"
	"testing"
)

// TestQueueIndex compares the heap with a search of everything.
func TestQueueIndex(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	var x queueIndex
	live := map[uint32]bool{}
	some := func() uint32 {
		for slot := range live {
			return slot
		}
		return notInHeap
	}
	for seq := uint64(1); seq < 20_000; seq++ {
		slot, what := some(), rng.IntN(10)
		switch {
		case len(live) < 100 || what < 3:
			live[x.add(queued{seq: seq, visible: rng.Int64N(50), lane: queueLane(rng.IntN(2))})] = true
		case what < 6:
			x.freeSlot(slot)
			delete(live, slot)
		case what < 7:
			x.remove(slot)
			x.push(slot)
		default:
			x.move(slot, rng.Int64N(50))
		}
		for slot := range live {
			if top, _ := x.firstInLane(x.slots[slot].lane); x.heapOf(slot).Less(int(x.slots[slot].pos), int(x.slots[top].pos)) {
				t.Fatalf("%+v is before %+v", x.slots[slot], x.slots[top])
			}
		}
		if x.liveCount() != len(live) {
			t.Fatalf("%d of %d in the heaps", x.liveCount(), len(live))
		}
	}
}

// TestQueueMemory is where the number in queueindex.go comes from.
func TestQueueMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has memory of its own")
	}
	const messages = 1_000_000
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	var x queueIndex
	for seq := range uint64(messages) {
		x.add(queued{seq: seq + 1, visible: int64(seq % 1000)})
	}
	each := float64(heap()-before) / messages
	t.Logf("%.1f bytes a message", each)
	if each > 48 {
		t.Errorf("%.1f bytes a message", each)
	}
	for slot := range uint32(messages) {
		x.freeSlot(slot)
	}
	if after := heap(); after > before+1<<20 {
		t.Errorf("an empty queue keeps %d bytes", after-before)
	}
	runtime.KeepAlive(&x)
}
