package provider

import (
	"sync"
	"sync/atomic"
)

// forEachIndex calls a function once for every index below n. It makes the calls in several
// goroutines; the parameter width is the largest number of goroutines. Each goroutine calls worker
// once to get a function of its own, and then calls only that function. forEachIndex returns when
// all calls have ended.
func forEachIndex(n, width int, worker func() func(i int)) {
	width = min(n, width)
	if width <= 1 {
		if n > 0 {
			f := worker()
			for i := range n {
				f(i)
			}
		}
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range width {
		wg.Go(func() {
			f := worker()
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				f(i)
			}
		})
	}
	wg.Wait()
}
