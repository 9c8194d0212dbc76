// Package enginetest holds one suite per contract of pkg/engine. Every sentence
// of a contract's comments has a test of the same words, and every engine
// passes every suite it implements:
//
//	func TestStatus(t *testing.T) { enginetest.Status(t, open) }
//
// Suites that end in a model test run random calls against the engine and
// against models of a few lines, restarts included, and compare all answers.
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

// T is what openers need of a test; *testing.T and *rapid.T have it.
type T interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// Opener opens an empty engine for one test and closes it with the test's end.
// reopen ends it, if it can as a loss of power would, and opens what is
// durable; it is nil where nothing is.
type Opener[E any] func(t T) (e E, reopen func() E)

// bg is the context of calls that must not be cut short.
var bg = context.Background()

func must(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

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
		t.Fatalf("error %v has kind %v, want %v", err, notify.KindOf(err), kind)
	}
}

// same compares results; empty and nil slices are the same.
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

// ended is a context that has ended, as it does when a caller hangs up.
func ended() context.Context {
	ctx, cancel := context.WithCancel(bg)
	cancel()
	return ctx
}

// base returns a fixed base made at ms with a number in it.
func base(ms int64, n uint64) (b notify.Base) {
	var t [8]byte
	binary.BigEndian.PutUint64(t[:], uint64(ms))
	copy(b[:6], t[2:])
	binary.BigEndian.PutUint64(b[8:], n)
	return b
}

// together runs fn in n goroutines that start at once.
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

// model runs a random program of the given actions against an engine and its
// model.
func model(t *testing.T, program func(rt *rapid.T) map[string]func(*rapid.T)) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) { rt.Repeat(program(rt)) })
}

// modelInTime is model in a bubble of synctest, where a test has no deadline to
// ask for: behind a struct, rapid does not.
func modelInTime(t *testing.T, program func(rt *rapid.T) map[string]func(*rapid.T)) {
	t.Helper()
	inTime(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) { rt.Repeat(program(rt)) })
	})
}

// sometimes runs fn one time in four: a restart costs more than all else.
func sometimes(rt *rapid.T, fn func()) {
	if rapid.IntRange(0, 3).Draw(rt, "sometimes") == 3 {
		fn()
	}
}

var errStop = errors.New("stop")

// collect gathers what an each-function yields.
func collect[V any](t T, each func(fn func(*V) error) error) []V {
	t.Helper()
	var out []V
	must(t, each(func(v *V) error {
		out = append(out, *v)
		return nil
	}))
	return out
}

// stops checks that an each-function passes on the error of its callback and
// calls it no more.
func stops[V any](t T, each func(fn func(*V) error) error) {
	t.Helper()
	calls := 0
	err := each(func(*V) error {
		calls++
		return errStop
	})
	if !errors.Is(err, errStop) || calls != 1 {
		t.Fatalf("%d calls and error %v, want one call and the callback's error", calls, err)
	}
}

func sorted[V any](vs []V, cmp func(a, b V) int) []V {
	return slices.SortedFunc(slices.Values(vs), cmp)
}
