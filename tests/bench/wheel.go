package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/notifyd/notifyd/pkg/timer/wheel"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// measureWheel measures the timer wheel with ten million timers (one million if -short is set).
// Their values have 8 bytes, and their due times are random within an hour. It measures the memory
// and the processor time of each timer. The processor time is measured for adding the timer and for
// releasing it. The wheel advances in steps of a millisecond. The release includes the moves of the
// timer to finer levels of the wheel. The reference is a binary heap with the same values.
func (b *bench) measureWheel(ctx context.Context) {
	n := 10_000_000
	if b.short {
		n = 1_000_000
	}
	start := time.Now().UnixMilli()
	due := func(rng *rand.Rand) int64 { return rng.Int64N(int64(time.Hour / time.Millisecond)) }

	before := heapBytes()
	w := wheel.New[uint64](start)
	rng, began := rand.New(rand.NewPCG(1, 2)), cpu()
	for i := range n {
		w.Add(start+due(rng), uint64(i))
	}
	added := cpu() - began
	bytes := float64(heapBytes()-before) / float64(n)
	began = cpu()
	fired := 0
	for ms := range int64(time.Hour/time.Millisecond) + 1 {
		w.Advance(start+ms, func(uint64) { fired++ })
	}
	released := cpu() - began
	runtime.KeepAlive(w)
	if fired != n {
		panic(fmt.Errorf("the wheel released %d of %d timers", fired, n))
	}
	rig.Ok(ctx.Err())

	w = nil //nolint:wastedassign // so that the memory of the wheel is not counted for the binary heap
	before = heapBytes()
	var h minHeap
	rng, began = rand.New(rand.NewPCG(1, 2)), cpu()
	for i := range n {
		h.push(pending{due(rng), uint64(i)})
	}
	heapAdded := cpu() - began
	heapSize := float64(heapBytes()-before) / float64(n)
	began = cpu()
	for last := int64(0); len(h) > 0; {
		p := h.pop()
		if p.at < last {
			panic(fmt.Errorf("the binary heap returned timers out of order"))
		}
		last = p.at
	}
	heapReleased := cpu() - began

	each := func(d time.Duration) float64 { return float64(d) / float64(n) }
	b.add(result{ID: "P7", Work: fmt.Sprintf("wheel with %s timers: processor time to add and release a timer (%.0f + %.0f ns); ref: binary heap (%.0f + %.0f ns)", number(float64(n)), each(added), each(released), each(heapAdded), each(heapReleased)),
		Value: each(added + released), Unit: "ns/timer", Reference: each(heapAdded + heapReleased)}, info)
	b.add(result{ID: "P7", Work: fmt.Sprintf("wheel with %s timers: memory; ref: binary heap", number(float64(n))), Value: bytes, Unit: "B/timer", Reference: heapSize}, info)
}

// heapBytes returns the bytes of all reachable objects on the Go heap.
func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// pending is a timer in the binary heap.
type pending struct {
	at int64 // due time in ms
	v  uint64
}

// minHeap is a binary heap as in container/heap, but without interface values. Interface values
// would cost an allocation for each timer.
type minHeap []pending

func (h *minHeap) push(p pending) {
	s := append(*h, p)
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if s[up].at <= p.at {
			break
		}
		s[i], i = s[up], up
	}
	s[i] = p
	*h = s
}

func (h *minHeap) pop() pending {
	s := *h
	first, p := s[0], s[len(s)-1]
	s = s[:len(s)-1]
	i := 0
	for {
		down := 2*i + 1
		if down >= len(s) {
			break
		}
		if down+1 < len(s) && s[down+1].at < s[down].at {
			down++
		}
		if p.at <= s[down].at {
			break
		}
		s[i], i = s[down], down
	}
	if len(s) > 0 {
		s[i] = p
	}
	*h = s
	return first
}
