package provider

import (
	"sync"
	"sync/atomic"
)

// forEachIndex calls the functions that worker returns, once for every index below n. It runs up to
// width functions at the same time and returns when all calls have ended. It calls each function
// from one goroutine only.
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
