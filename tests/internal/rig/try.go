package rig

import (
	"context"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Ok ends the current step unless err is nil. A proof program is a series of steps, and each
// step needs the step before it. Ok, Must and Must2 end a step as t.Fatal ends a test: they
// panic, and Try or Main turns the panic into an error. Each new goroutine needs its own Try.
func Ok(err error) {
	if err != nil {
		panic(err)
	}
}

// Must returns v. It ends the current step if err is not nil.
func Must[T any](v T, err error) T {
	Ok(err)
	return v
}

// Must2 is Must for two values.
func Must2[A, B any](a A, b B, err error) (A, B) {
	Ok(err)
	return a, b
}

// Try calls f. If Ok, Must or Must2 ends f, or f panics with an error, Try returns that error. A
// runtime error, such as a nil pointer, and a panic with another value stay panics.
func Try(f func()) (err error) {
	defer Catch(&err)
	f()
	return nil
}

// Catch must be deferred. It recovers a panic of the function that defers it, as Try does for f, and
// stores the error in err.
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

// Together calls f n times concurrently, with i from 0 to n-1, and returns when all calls have
// ended. If a call ends with an error, Together cancels the ctx of the other calls. After all calls
// have ended, it ends the current step with the first error.
func Together(ctx context.Context, n int, f func(ctx context.Context, i int)) {
	g, ctx := errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() error { return Try(func() { f(ctx, i) }) })
	}
	Ok(g.Wait())
}

// InSteps divides the numbers from 0 to n-1 into steps and calls f for each step. The parameter step
// is the size of a step. At most atOnce calls run at the same time. The parameter from of f is the
// first number of the step, and to is its last number plus 1.
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
