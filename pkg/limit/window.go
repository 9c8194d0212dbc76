package limit

import "time"

// windowParts is how finely a window slides: its oldest tenth is dropped at
// once.
const windowParts = 10

// window counts outcomes over the latest windowParts parts of a width each.
type window struct {
	width time.Duration
	part  int64 // number of the latest part
	all   [windowParts]int
	bad   [windowParts]int
}

func (w *window) add(now time.Time, o Outcome, n int) {
	w.slide(now)
	i := w.part % windowParts
	w.all[i] += n
	if o == Unhealthy {
		w.bad[i] += n
	}
}

func (w *window) sum(now time.Time) (all, bad int) {
	w.slide(now)
	for i := range windowParts {
		all += w.all[i]
		bad += w.bad[i]
	}
	return all, bad
}

// slide empties the parts that have come into use again since the latest one.
func (w *window) slide(now time.Time) {
	part := now.UnixNano() / int64(w.width)
	if part-w.part >= windowParts {
		w.reset()
		w.part = part
	}
	for w.part < part {
		w.part++
		w.all[w.part%windowParts], w.bad[w.part%windowParts] = 0, 0
	}
}

func (w *window) reset() { w.all, w.bad = [windowParts]int{}, [windowParts]int{} }
