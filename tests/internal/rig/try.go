package rig

import (
	"context"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Ok ends the current step unless err is nil. A proof program is a series of steps, and each
// step needs the one before it. Ok, Must and Must2 end it as t.Fatal ends a test: they panic,
// and Try or Main turns the panic into an error. Each new goroutine needs its own Try.
func Ok(err error) {
	if err != nil {
		panic(err)
	}
}

// Must returns v, and ends the step under way if err is not nil.
func Must[T any](v T, err error) T {
	Ok(err)
	return v
}

// Must2 is Must for two values.
func Must2[A, B any](a A, b B, err error) (A, B) {
	Ok(err)
	return a, b
}

// Try calls f and returns the error that f was ended with: by Ok, or by a panic with an
// error. A mistake of the program itself stays a panic.
func Try(f func()) (err error) {
	defer Catch(&err)
	f()
	return nil
}

// Catch must be deferred. It does for the deferring function what Try does for f.
func Catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case runtime.Error:
		panic(p)
	case error:
		*err = p
	default:
		panic(p)
	}
}

// Together calls f n times at once, and returns when all calls have ended. It ends the
// step under way with the first error that a call was ended with; ctx of the others ends
// then.
func Together(ctx context.Context, n int, f func(ctx context.Context, i int)) {
	g, ctx := errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() error { return Try(func() { f(ctx, i) }) })
	}
	Ok(g.Wait())
}

// InSteps calls f for every step of the numbers below n, so many at a time: from is the
// first number of a step, to the one behind its last.
func InSteps(ctx context.Context, n, step, atOnce int, f func(ctx context.Context, from, to int)) {
	var next atomic.Int64
	Together(ctx, atOnce, func(ctx context.Context, _ int) {
		for ctx.Err() == nil {
			to := int(next.Add(int64(step)))
			if to-step >= n {
				return
			}
			f(ctx, to-step, min(to, n))
		}
	})
}
