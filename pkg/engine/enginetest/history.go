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

// Add records an operation that has just returned. The parameter startTick is what Tick returned to
// the client before the operation.
func (h *History[I, O]) Add(client int, in I, startTick int64, out O) {
	h.add(client, in, startTick, h.Tick(), out)
}

// Note calls Add if the client knows the outcome of the operation. Otherwise it calls
// AddUnknown.
func (h *History[I, O]) Note(client int, in I, startTick int64, out O, outcomeKnown bool) {
	if outcomeKnown {
		h.Add(client, in, startTick, out)
		return
	}
	h.AddUnknown(client, in, startTick, out)
}

// AddUnknown records an operation whose outcome is unknown. The operation may take effect
// at any later time or never.
func (h *History[I, O]) AddUnknown(client int, in I, startTick int64, out O) {
	h.add(client, in, startTick, math.MaxInt64, out)
}

func (h *History[I, O]) add(client int, in I, startTick, endTick int64, out O) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: startTick, Output: out, Return: endTick})
}

// Operations returns the operations for whose input selected returns true.
func (h *History[I, O]) Operations(selected func(in I) bool) (out []porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, op := range h.ops {
		if selected(op.Input.(I)) {
			out = append(out, op)
		}
	}
	return out
}

// ByKey returns a function for the field Partition of a porcupine.Model. The function groups
// operations by key. It may be used only if operations on different keys do not affect each other.
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
	t.Fatalf("the history %s is not linearizable; the result of the check is %v", name, res)
}

// CheckHistories creates n histories from the seeds 0 to n-1, and fails the test if one of them is
// not linearizable. It also fails the test unless each kind of operation in want occurs in some
// history.
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
			t.Fatalf("the history of seed %d is wrong", seed)
		}
	}
	t.Logf("%d histories, %d operations: %v", n, total, kinds)
	for _, k := range want {
		if kinds[k] == 0 {
			t.Errorf("no history has an operation of the kind %q", k)
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
	t.Errorf("the check found no error in %d histories of a broken store", n)
}
