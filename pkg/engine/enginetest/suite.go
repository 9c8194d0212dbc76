// Package enginetest contains one suite of tests for each contract of pkg/engine. If a
// sentence in the comments of a contract says what is true after a method returns, the
// suite has a test whose name says the same. Every engine passes the suite of each contract
// that it implements:
//
//	func TestStatus(t *testing.T) { enginetest.Status(t, open) }
//
// The last test of many suites is a model test. It runs random calls and restarts on the
// engine and on a simple model, and compares all results.
package enginetest

import (
	"context"
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/notify"
)

// T has the methods of a test that the suites and openers need. *testing.T and *rapid.T
// implement it.
type T interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// Opener opens an empty engine for one test and closes it when the test ends. reopen stops
// the engine, if possible in the same way as a loss of power, and opens it again with its
// durable state. reopen is nil if the engine has no durable state.
type Opener[E any] func(t T) (e E, reopen func() E)

// bg is the context of calls that must not be cancelled.
var bg = context.Background()

func must(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

// val is for a call that returns a value and an error: val(s.Get(bg, key))(t). It returns v, or
// fails the test if err is not nil.
func val[V any](v V, err error) func(T) V {
	return func(t T) V {
		t.Helper()
		must(t, err)
		return v
	}
}

func wantKind(t T, err error, kind notify.Kind) {
	t.Helper()
	if err == nil || notify.KindOf(err) != kind {
		t.Fatalf("the error %v has the kind %v, want the kind %v", err, notify.KindOf(err), kind)
	}
}

// same fails the test if got and want differ. An empty slice and a nil slice are equal.
func same(t T, what string, got, want any) {
	t.Helper()
	g, w := reflect.ValueOf(got), reflect.ValueOf(want)
	if g.IsValid() && w.IsValid() && g.Kind() == reflect.Slice && g.Len() == 0 && w.Len() == 0 {
		return
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

// endedContext returns a context that is already cancelled.
func endedContext() context.Context {
	ctx, cancel := context.WithCancel(bg)
	cancel()
	return ctx
}

// base returns the base with the time ms and the number n.
func base(ms int64, n uint64) (b notify.Base) {
	var t [8]byte
	binary.BigEndian.PutUint64(t[:], uint64(ms))
	copy(b[:6], t[2:])
	binary.BigEndian.PutUint64(b[8:], n)
	return b
}

// together calls fn(0) to fn(n-1) in n goroutines that start at the same moment. It waits until all
// goroutines have ended.
func together(n int, fn func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			fn(i)
		})
	}
	close(start)
	wg.Wait()
}

// runModel runs random sequences of the actions that the function program returns. It
// calls program for each sequence, to open an engine and create its model. The actions
// call the engine and the model and compare the results.
func runModel(t *testing.T, program func(rt *rapid.T) map[string]func(*rapid.T)) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) { rt.Repeat(program(rt)) })
}

// runModelInBubble does what runModel does, in a bubble of synctest. In a bubble the method
// Deadline of a test must not be called. So runModelInBubble passes t to rapid inside a struct
// that hides this method.
func runModelInBubble(t *testing.T, program func(rt *rapid.T) map[string]func(*rapid.T)) {
	t.Helper()
	inBubble(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) { rt.Repeat(program(rt)) })
	})
}

// sometimes runs fn one time in four, because a restart costs more than the other actions.
func sometimes(rt *rapid.T, fn func()) {
	if rapid.IntRange(0, 3).Draw(rt, "sometimes") == 3 {
		fn()
	}
}

var errStop = errors.New("stop")

// collect calls iterate and returns the values that iterate passes to its callback.
func collect[V any](t T, iterate func(fn func(*V) error) error) []V {
	t.Helper()
	var out []V
	must(t, iterate(func(v *V) error {
		out = append(out, *v)
		return nil
	}))
	return out
}

// checkStops calls iterate with a callback that returns an error. It fails the test unless
// iterate returns that error and calls the callback only once.
func checkStops[V any](t T, iterate func(fn func(*V) error) error) {
	t.Helper()
	calls := 0
	err := iterate(func(*V) error {
		calls++
		return errStop
	})
	if !errors.Is(err, errStop) || calls != 1 {
		t.Fatalf("the callback was called %d times and the error is %v, want one call and the error of the callback", calls, err)
	}
}

func sorted[V any](vs []V, cmp func(a, b V) int) []V {
	return slices.SortedFunc(slices.Values(vs), cmp)
}
