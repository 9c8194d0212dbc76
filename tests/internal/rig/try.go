package rig

import (
	"context"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Ok panics with err if err is not nil. It ends a step of a proof program as t.Fatal ends a test.
// Try or Main turns the panic into an error. Each new goroutine needs its own Try.
func Ok(err error) {
	if err != nil {
		panic(err)
	}
}

// Must returns v. It panics with err if err is not nil.
func Must[T any](v T, err error) T {
	Ok(err)
	return v
}

// Must2 returns a and b. It panics with err if err is not nil.
func Must2[A, B any](a A, b B, err error) (A, B) {
	Ok(err)
	return a, b
}

// Try calls f. If f panics with an error, for example in Ok or Must, Try returns that error. Try
// does not recover other panics: runtime errors, such as a nil pointer, and values that are no
// errors.
func Try(f func()) (err error) {
	defer Catch(&err)
	f()
	return nil
}

// Catch recovers a panic of the function that defers it, under the same conditions as Try, and
// stores the error in err. It must be deferred.
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
// ended. If a call panics with an error (see Try), Together cancels the ctx of the other calls.
// When all calls have ended, it panics with the first error.
func Together(ctx context.Context, n int, f func(ctx context.Context, i int)) {
	g, ctx := errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() error { return Try(func() { f(ctx, i) }) })
	}
	Ok(g.Wait())
}

// InSteps divides the numbers from 0 to n-1 into ranges of the given length (step), and calls f for
// each range [from, to). At most atOnce calls run at the same time.
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
