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

// History writes down what clients did and saw, on a clock that only counts, so
// that it can be checked against a model. I and O are the model's inputs and
// outputs. The zero value is empty; its methods may be called from any goroutine.
type History[I, O any] struct {
	mu    sync.Mutex
	clock int64
	ops   []porcupine.Operation
}

// Tick is the moment at which an operation is called.
func (h *History[I, O]) Tick() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	return h.clock
}

// Add notes an operation that was called at a tick and has returned now.
func (h *History[I, O]) Add(client int, in I, call int64, out O) {
	h.add(client, in, call, h.Tick(), out)
}

// AddUnknown notes one whose outcome nobody knows: it may be done any time.
func (h *History[I, O]) AddUnknown(client int, in I, call int64, out O) {
	h.add(client, in, call, math.MaxInt64, out)
}

func (h *History[I, O]) add(client int, in I, call, ret int64, out O) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret})
}

// Operations returns those whose input keep selects.
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

// ByKey makes the Partition of a model whose keys are independent.
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

// CheckHistory fails the test unless a history is linearizable. Where
// HISTORIES names a folder, a picture of one that is not goes there.
func CheckHistory(t *testing.T, model porcupine.Model, ops []porcupine.Operation, name string) {
	t.Helper()
	const limit = 30 * time.Second
	if porcupine.CheckOperationsTimeout(model, ops, limit) == porcupine.Ok {
		return
	}
	res, info := porcupine.CheckOperationsVerbose(model, ops, limit)
	if dir := os.Getenv("HISTORIES"); dir != "" {
		_ = porcupine.VisualizePath(model, info, filepath.Join(dir, fmt.Sprintf("history-%s.html", name)))
	}
	t.Fatalf("%s: %v", name, res)
}
