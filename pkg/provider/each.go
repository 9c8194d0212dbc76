package provider

import (
	"sync"
	"sync/atomic"
)

// forEachIndex calls a worker's function for every index below n, with up to width workers at a
// time. It returns when all calls have ended. Each worker calls its function from one goroutine
// only.
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
