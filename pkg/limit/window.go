package limit

import "time"

// windowParts is the number of parts of a window. The window slides when its oldest part is
// dropped.
const windowParts = 10

// outcomeWindow counts outcomes over the latest windowParts parts, each of length width.
type outcomeWindow struct {
	width      time.Duration
	latestPart int64 // number of the latest part: its start time divided by width
	all        [windowParts]int
	bad        [windowParts]int
}

func (w *outcomeWindow) addOutcomes(now time.Time, o Outcome, n int) {
	w.slide(now)
	i := w.latestPart % windowParts
	w.all[i] += n
	if o == Unhealthy {
		w.bad[i] += n
	}
}

func (w *outcomeWindow) totals(now time.Time) (all, bad int) {
	w.slide(now)
	for i := range windowParts {
		all += w.all[i]
		bad += w.bad[i]
	}
	return all, bad
}

// slide moves the window so that it ends at now. It sets the counts of each new part to 0, in the slot
// of an old part.
func (w *outcomeWindow) slide(now time.Time) {
	part := now.UnixNano() / int64(w.width)
	if part-w.latestPart >= windowParts {
		w.reset()
		w.latestPart = part
	}
	for w.latestPart < part {
		w.latestPart++
		w.all[w.latestPart%windowParts], w.bad[w.latestPart%windowParts] = 0, 0
	}
}

func (w *outcomeWindow) reset() { w.all, w.bad = [windowParts]int{}, [windowParts]int{} }
