package load

import (
	"math/bits"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// recorder keeps the figures of some workers of one step. A step has at most maxRecorders
// recorders. Once a second the coordinator replaces the window by an empty window and then reads
// the old one. So workers never wait while the coordinator merges windows.
type recorder struct {
	mu    sync.Mutex // guards both fields, and the window to which the field win points
	win   *window    // workers add to it
	spare *window    // empty window; nil while the coordinator reads a window
}

// window holds the figures that a recorder collected, normally in one second (see takeWindow).
type window struct {
	tally
	lag, service, response *hdrhistogram.Histogram // ns, per message
	// wake holds how late workers woke, in ns. It has one value for each request whose worker
	// waited for the due time.
	wake *hdrhistogram.Histogram
	busy time.Duration // time that the workers waited for answers
	// own is the time that the workers needed to make and start requests. For each request it
	// begins at the due time, or when a worker started on the request, whichever is later.
	own  time.Duration
	heat [HeatBuckets]int64
	errs map[errKey]*ErrorCount
}

// tally counts messages, and the requests that carried them.
type tally struct {
	requests, sent, acked, rejected, failed int64
}

func (t *tally) add(o *tally) {
	t.requests += o.requests
	t.sent += o.sent
	t.acked += o.acked
	t.rejected += o.rejected
	t.failed += o.failed
}

type errKey struct{ class, code string }

func newWindow() *window {
	return &window{lag: NewHistogram(), service: NewHistogram(), response: NewHistogram(), wake: NewHistogram(), errs: map[errKey]*ErrorCount{}}
}

func (w *window) reset() {
	w.tally, w.busy, w.own, w.heat = tally{}, 0, 0, [HeatBuckets]int64{}
	for _, h := range []*hdrhistogram.Histogram{w.lag, w.service, w.response, w.wake} {
		if h.TotalCount() > 0 {
			h.Reset()
		}
	}
	clear(w.errs)
}

// merge adds the figures of o to w, including the heat map and the errors.
func (w *window) merge(o *window) {
	w.tally.add(&o.tally)
	w.busy += o.busy
	w.own += o.own
	for i := range w.heat {
		w.heat[i] += o.heat[i]
	}
	for _, p := range [][2]*hdrhistogram.Histogram{{w.lag, o.lag}, {w.service, o.service}, {w.response, o.response}, {w.wake, o.wake}} {
		if p[1].TotalCount() > 0 {
			p[0].Merge(p[1])
		}
	}
	for k, e := range o.errs {
		was := w.errs[k]
		if was == nil {
			was = &ErrorCount{Class: e.Class, Code: e.Code}
			w.errs[k] = was
		}
		was.Count += e.Count
		if e.Last.After(was.Last) {
			was.Last = e.Last
		}
	}
}

func newRecorder() *recorder { return &recorder{win: newWindow(), spare: newWindow()} }

// takeWindow returns the window and puts the spare window in its place. The caller owns the
// returned window until it calls giveBack.
func (r *recorder) takeWindow() *window {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.win
	r.win, r.spare = r.spare, nil
	return w
}

// giveBack empties a window that takeWindow returned and makes it the spare window.
func (r *recorder) giveBack(w *window) {
	w.reset()
	r.mu.Lock()
	r.spare = w
	r.mu.Unlock()
}

// currentTally returns the counts of the current window.
func (r *recorder) currentTally() tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.win.tally
}

// sample describes how one request went. Times count from the start of the step.
type sample struct {
	intended, sent, done time.Duration
	// taken is when a worker started on the request. If no worker was free when the request was
	// due, this is after the time intended.
	taken    time.Duration
	waited   bool // true: the worker started on the request before it was due
	messages int
	ack      Ack
	err      error
	at       time.Time // time of day at the moment done, for errors
}

func (r *recorder) record(s *sample) {
	n := int64(s.messages)
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.win
	recordValue(w.lag, s.sent-s.intended, n)
	recordValue(w.service, s.done-s.sent, n)
	recordValue(w.response, s.done-s.intended, n)
	w.heat[heatBucket(s.done-s.intended)] += n
	if s.waited {
		recordValue(w.wake, s.sent-s.intended, 1)
	}
	w.busy += s.done - s.sent
	w.own += s.sent - max(s.taken, s.intended)
	w.requests++
	w.sent += n
	if s.err != nil {
		w.failed += n
		class, code := classOf(s.err)
		w.fail(class, code, n, s.at)
		return
	}
	w.acked += int64(s.ack.Accepted)
	if s.ack.Rejected > 0 {
		w.rejected += int64(s.ack.Rejected)
		w.fail("rejected", "rejected", int64(s.ack.Rejected), s.at)
	}
}

// maxErrors is the highest number of kinds of errors that a window counts separately. All other
// kinds are counted together, with class "transport" and code "other".
const maxErrors = 100

func (w *window) fail(class, code string, n int64, at time.Time) {
	k := errKey{class, code}
	e := w.errs[k]
	if e == nil {
		if len(w.errs) >= maxErrors {
			k = errKey{"transport", "other"}
			if e = w.errs[k]; e == nil {
				e = &ErrorCount{Class: k.class, Code: k.code}
				w.errs[k] = e
			}
		} else {
			e = &ErrorCount{Class: class, Code: code}
			w.errs[k] = e
		}
	}
	e.Count += n
	e.Last = at
}

// recordValue records the value d as often as n says. It replaces a value outside the range of
// the histogram by the nearest value in the range.
func recordValue(h *hdrhistogram.Histogram, d time.Duration, n int64) {
	_ = h.RecordValues(min(max(int64(d), 0), longest), n)
}

func heatBucket(d time.Duration) int {
	if d < HeatBound(0) {
		return 0
	}
	return min(bits.Len64(uint64(d)/uint64(HeatBound(0))), HeatBuckets-1)
}

// bucketRun records a series of values into a histogram. If consecutive values fall into the same
// bucket, it records them with one call. This is frequent: at 5M/s the messages that a bulk worker
// sends at once are due 200 ns apart, and a bucket is at least 512 ns wide.
type bucketRun struct {
	h      *hdrhistogram.Histogram
	heat   *[HeatBuckets]int64 // nil: the values are not for the heat map
	lo, hi time.Duration       // bounds of the bucket: lo <= value < hi
	n      int64
}

func (r *bucketRun) add(v time.Duration) {
	if v >= r.lo && v < r.hi {
		r.n++
		return
	}
	r.flush()
	v = max(v, 0)
	// A histogram with 3 digits that begins at 1 us has 2,048 buckets of 512 ns, then 1,024 buckets
	// of 1,024 ns, and so on.
	width := time.Duration(512) << max(bits.Len64(uint64(v)>>9)-11, 0)
	r.lo = v &^ (width - 1)
	r.hi, r.n = r.lo+width, 1
}

func (r *bucketRun) flush() {
	if r.n == 0 {
		return
	}
	recordValue(r.h, r.lo, r.n)
	if r.heat != nil {
		r.heat[heatBucket(r.lo)] += r.n
	}
	r.n = 0
}
