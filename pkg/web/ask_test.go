package web

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Visitors that come while a slow question is asked share what comes of it: its
// failure, too, and none waits for more than one.
func TestRememberedIsAskedOnce(t *testing.T) {
	t.Parallel()
	for _, fails := range []error{nil, errors.New("away")} {
		synctest.Test(t, func(t *testing.T) {
			var r cachedAnswer[int]
			var asked atomic.Int32
			var visitors sync.WaitGroup
			began := time.Now()
			for range 5 {
				visitors.Go(func() {
					v, err := r.get(time.Now, func() (int, error) {
						asked.Add(1)
						time.Sleep(apiTimeout)
						return 7, fails
					})
					if v != 7 || !errors.Is(err, fails) || time.Since(began) != apiTimeout {
						t.Errorf("%d, %v after %s", v, err, time.Since(began))
					}
				})
			}
			visitors.Wait()
			if asked.Load() != 1 {
				t.Errorf("asked %d times", asked.Load())
			}
			if _, ok := r.fresh(time.Now()); ok != (fails == nil) {
				t.Errorf("remembered: %v, after %v", ok, fails)
			}
		})
	}
}
