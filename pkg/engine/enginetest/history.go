package enginetest

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// History records the operations of clients and their results, so that they can be checked
// with a model. Its clock is a counter. The type parameters I and O are the types of the
// inputs and outputs of the model. The zero value is an empty History. Any goroutine may
// call its methods.
type History[I, O any] struct {
	mu    sync.Mutex
	clock int64
	ops   []porcupine.Operation
}

// Tick returns the next value of the clock. A client calls Tick immediately before an
// operation.
func (h *History[I, O]) Tick() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	return h.clock
}

// Add records an operation that began at the tick call and has just returned.
func (h *History[I, O]) Add(client int, in I, call int64, out O) {
	h.add(client, in, call, h.Tick(), out)
}

// Note calls Add if known is true, and AddUnknown if it is false. known is true if the
// client knows the outcome of the operation.
func (h *History[I, O]) Note(client int, in I, call int64, out O, known bool) {
	if known {
		h.Add(client, in, call, out)
		return
	}
	h.AddUnknown(client, in, call, out)
}

// AddUnknown records an operation whose outcome is unknown. The operation may take effect
// at any later time or never.
func (h *History[I, O]) AddUnknown(client int, in I, call int64, out O) {
	h.add(client, in, call, math.MaxInt64, out)
}

func (h *History[I, O]) add(client int, in I, call, ret int64, out O) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret})
}

// Operations returns the operations for which keep returns true. The argument of keep is the input
// of the operation.
func (h *History[I, O]) Operations(keep func(I) bool) (out []porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, op := range h.ops {
		if keep(op.Input.(I)) {
			out = append(out, op)
		}
	}
	return out
}

// ByKey returns the field Partition for a model whose keys are independent. The returned
// function groups operations by key.
func ByKey[I any, K comparable](key func(I) K) func([]porcupine.Operation) [][]porcupine.Operation {
	return func(history []porcupine.Operation) (out [][]porcupine.Operation) {
		by := map[K][]porcupine.Operation{}
		for _, op := range history {
			k := key(op.Input.(I))
			by[k] = append(by[k], op)
		}
		for _, ops := range by {
			out = append(out, ops)
		}
		return out
	}
}

// checkLimit is the longest time that the check of one history may take. A check normally
// takes some milliseconds. The limit is large because a check that is stopped too early on
// a busy machine proves nothing.
const checkLimit = 10 * time.Minute

// CheckHistory fails the test unless a history is linearizable. If the history is not
// linearizable and the environment variable HISTORIES names a folder, CheckHistory writes a
// picture of the history to that folder.
func CheckHistory(t *testing.T, model porcupine.Model, ops []porcupine.Operation, name string) {
	t.Helper()
	if porcupine.CheckOperationsTimeout(model, ops, checkLimit) == porcupine.Ok {
		return
	}
	res, info := porcupine.CheckOperationsVerbose(model, ops, checkLimit)
	if dir := os.Getenv("HISTORIES"); dir != "" {
		_ = porcupine.VisualizePath(model, info, filepath.Join(dir, fmt.Sprintf("history-%s.html", name)))
	}
	t.Fatalf("%s: %v", name, res)
}

// CheckHistories creates n histories from the seeds 0 to n-1. It fails the test if a
// history is not linearizable, or if an operation of a kind in want occurs in none of the
// histories.
func CheckHistories(t *testing.T, model porcupine.Model, name string, n int, history func(seed uint64) []porcupine.Operation, kind func(in, out any) string, want ...string) {
	t.Helper()
	total, kinds := 0, map[string]int{}
	for seed := range n {
		ops := history(uint64(seed))
		total += len(ops)
		for _, op := range ops {
			kinds[kind(op.Input, op.Output)]++
		}
		CheckHistory(t, model, ops, fmt.Sprintf("%s-%d", name, seed))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d histories, %d operations: %v", n, total, kinds)
	for _, k := range want {
		if kinds[k] == 0 {
			t.Errorf("no %s in any history", k)
		}
	}
}

// CheckFindsIllegal creates up to n histories of a broken store. It fails the test if all histories
// are linearizable. So it proves that the check can find an error.
func CheckFindsIllegal(t *testing.T, model porcupine.Model, n int, history func(seed uint64) []porcupine.Operation) {
	t.Helper()
	for seed := range n {
		if porcupine.CheckOperationsTimeout(model, history(uint64(seed)), checkLimit) == porcupine.Illegal {
			return
		}
	}
	t.Errorf("none of %d histories of a broken store was found illegal", n)
}
