package enginetest

import (
	"hash/fnv"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/store"
)

// Openers of the suite Filter must open a store.Filter with these values.
const (
	FilterRate   = 100.0 // ids per second
	FilterWindow = time.Minute
)

func filterID(n int) uint64 {
	h := fnv.New64a()
	h.Write([]byte("id" + strconv.Itoa(n)))
	x := h.Sum64()
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	return x ^ x>>33
}

func filterIDs(from, to int) (ids []uint64) {
	for n := from; n < to; n++ {
		ids = append(ids, filterID(n))
	}
	return ids
}

// countSeen calls Seen for the ids. It returns for how many ids Seen reports that they may have been
// added, and the time since which the filter is complete.
func countSeen(t T, f store.Filter, ids []uint64) (known int, complete time.Time) {
	t.Helper()
	maybe, complete, err := f.Seen(bg, ids)
	must(t, err)
	same(t, "answers", len(maybe), len(ids))
	for _, is := range maybe {
		if is {
			known++
		}
	}
	return known, complete
}

// Filter runs the suite of store.Filter in bubbles of synctest.
func Filter(t *testing.T, open Opener[store.Filter]) {
	run := func(name string, fn func(t *testing.T, f store.Filter)) {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f, _ := open(t)
				fn(t, f)
			})
		})
	}
	full := int(FilterRate * FilterWindow.Seconds())
	run("Add remembers ids for at least the filter's window", func(t *testing.T, f store.Filter) {
		must(t, f.Add(bg, filterIDs(0, full)))
		must(t, f.Add(bg, nil))
		for range 4 {
			known, _ := countSeen(t, f, filterIDs(0, full))
			same(t, "known", known, full)
			time.Sleep(FilterWindow / 5)
		}
		time.Sleep(FilterWindow/5 - time.Millisecond)
		known, _ := countSeen(t, f, filterIDs(0, full))
		same(t, "known at the end of the window", known, full)
	})
	run("Seen reports for each id whether it may have been added, and is rarely wrong", func(t *testing.T, f store.Filter) {
		for i := range 3 { // more windows than the filter remembers
			must(t, f.Add(bg, filterIDs(i*full, (i+1)*full)))
			time.Sleep(FilterWindow)
		}
		known, _ := countSeen(t, f, filterIDs(-full, 0))
		if share := float64(known) / float64(full); share > 0.03 {
			t.Errorf("Seen reports %.4f of ids that were never added", share)
		}
		known, _ = countSeen(t, f, nil)
		same(t, "of none", known, 0)
	})
	run("the filter forgets ids that were added long ago, and is then complete only since a later time", func(t *testing.T, f store.Filter) {
		start := time.Now()
		must(t, f.Add(bg, filterIDs(0, 100)))
		for range 4 {
			time.Sleep(FilterWindow)
			known, complete := countSeen(t, f, filterIDs(0, 100))
			if known < 100 && !complete.After(start) {
				t.Fatalf("%d of 100 are known, and complete since %v", known, complete)
			}
		}
		known, complete := countSeen(t, f, filterIDs(0, 100))
		if known > 10 || time.Since(complete) > 2*FilterWindow {
			t.Fatalf("after four windows %d of 100 are known, complete since %v ago", known, time.Since(complete))
		}
		time.Sleep(10 * FilterWindow)
		if _, complete := countSeen(t, f, filterIDs(0, 1)); time.Since(complete) > 2*FilterWindow || time.Since(complete) < FilterWindow {
			t.Fatalf("complete since %v ago, want one window to two", time.Since(complete))
		}
	})
	run("a filter is complete since it was created", func(t *testing.T, f store.Filter) {
		start := time.Now()
		_, complete := countSeen(t, f, filterIDs(0, 1))
		if complete.Before(start.Truncate(time.Millisecond)) || complete.After(time.Now()) {
			t.Fatalf("complete since %v, want %v", complete, start)
		}
		time.Sleep(FilterWindow / 2)
		_, later := countSeen(t, f, filterIDs(0, 1))
		same(t, "later", later.UnixMilli(), complete.UnixMilli())
	})
	run("after Incomplete the filter is complete only from now on", func(t *testing.T, f store.Filter) {
		must(t, f.Add(bg, filterIDs(0, 10)))
		time.Sleep(time.Second)
		now := time.Now()
		must(t, f.Incomplete(bg))
		known, complete := countSeen(t, f, filterIDs(0, 10))
		if complete.Before(now.Truncate(time.Millisecond)) {
			t.Fatalf("complete since %v, want %v", complete, now)
		}
		same(t, "still known", known, 10)
	})
	run("concurrent calls of Add and Seen", func(t *testing.T, f store.Filter) {
		together(8, func(i int) {
			for n := range 10 {
				ids := filterIDs(i*1000+n*50, i*1000+n*50+50)
				if err := f.Add(bg, ids); err != nil {
					t.Error(err)
				}
				maybe, _, err := f.Seen(bg, ids)
				for _, is := range maybe {
					if err != nil || !is {
						t.Error("Seen reports an id that was added as never added; its error is", err)
					}
				}
			}
		})
	})
	t.Run("model", func(t *testing.T) { filterModel(t, open) })
}

// filterModel checks each id that was added. Either Seen must report the id as perhaps
// added, or the id was added before the time since which the filter is complete.
func filterModel(t *testing.T, open Opener[store.Filter]) {
	runModelInBubble(t, func(rt *rapid.T) map[string]func(*rapid.T) {
		f, _ := open(rt)
		added := map[int]time.Time{}
		return map[string]func(*rapid.T){
			"add": func(rt *rapid.T) {
				from := rapid.IntRange(0, 50).Draw(rt, "from")
				must(rt, f.Add(bg, filterIDs(from, from+5)))
				for n := from; n < from+5; n++ {
					added[n] = time.Now()
				}
			},
			"incomplete": func(rt *rapid.T) { must(rt, f.Incomplete(bg)) },
			"pass": func(rt *rapid.T) {
				time.Sleep(time.Duration(rapid.IntRange(0, 100).Draw(rt, "seconds")) * time.Second)
			},
			"": func(rt *rapid.T) {
				maybe, complete, err := f.Seen(bg, filterIDs(0, 55))
				must(rt, err)
				if complete.After(time.Now()) {
					rt.Fatalf("complete since %v, which is in the future", complete)
				}
				for n, at := range added {
					if !maybe[n] && complete.Before(at) {
						rt.Fatalf("%d was added at %v and is not known; complete since %v", n, at, complete)
					}
				}
			},
		}
	})
}
