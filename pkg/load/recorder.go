package load

import (
	"math/bits"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// recorder keeps the figures of some workers of one step; at most eight share
// one. The coordinator takes its window once a second and gives it an empty one,
// so nothing is merged while somebody records, and nobody waits for a merge.
type recorder struct {
	mu    sync.Mutex
	win   *window
	spare *window
}

// window is what happened since the coordinator looked last.
type window struct {
	tally
	lag, service, response *hdrhistogram.Histogram // ns, per message
	wake                   *hdrhistogram.Histogram // ns, per request: how late it woke for one it waited for
	busy                   time.Duration           // of the workers, waiting for answers
	own                    time.Duration           // of the workers, making requests that were due and starting them
	heat                   [HeatBuckets]int64
	errs                   map[errKey]*ErrorCount
}

// tally counts messages.
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

// merge adds o to w, heat and errors included.
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

// swap takes the window; the caller gives it back with giveBack.
func (r *recorder) swap() *window {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.win
	r.win, r.spare = r.spare, nil
	return w
}

func (r *recorder) giveBack(w *window) {
	w.reset()
	r.mu.Lock()
	r.spare = w
	r.mu.Unlock()
}

// look returns the counts of the window so far.
func (r *recorder) look() tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.win.tally
}

// sample is one request as it went. Times are since the step's beginning.
type sample struct {
	intended, sent, done time.Duration
	taken                time.Duration // when a worker took it: before it was due, or after, when none was free
	waited               bool          // the worker was there before it was due
	messages             int
	ack                  Ack
	err                  error
	at                   time.Time // wall clock of done, for errors
}

func (r *recorder) record(s *sample) {
	n := int64(s.messages)
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.win
	put(w.lag, s.sent-s.intended, n)
	put(w.service, s.done-s.sent, n)
	put(w.response, s.done-s.intended, n)
	w.heat[heatBucket(s.done-s.intended)] += n
	if s.waited {
		put(w.wake, s.sent-s.intended, 1)
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

// maxErrors bounds the kinds of errors that are told apart.
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

// put records d n times; what lies outside is kept as the nearest that fits.
func put(h *hdrhistogram.Histogram, d time.Duration, n int64) {
	_ = h.RecordValues(min(max(int64(d), 0), longest), n)
}

func heatBucket(d time.Duration) int {
	if d < HeatBound(0) {
		return 0
	}
	return min(bits.Len64(uint64(d)/uint64(HeatBound(0))), HeatBuckets-1)
}

// run records values that come in order, those of one bucket at once: neighbours
// of a slot are due 200 ns apart, and a bucket is 512 ns wide or more.
type run struct {
	h      *hdrhistogram.Histogram
	heat   *[HeatBuckets]int64 // nil: none
	lo, hi time.Duration       // of the bucket, hi excluded
	n      int64
}

func (r *run) add(v time.Duration) {
	if v >= r.lo && v < r.hi {
		r.n++
		return
	}
	r.flush()
	v = max(v, 0)
	// A histogram of 3 digits that begins at 1 us has 2,048 buckets of 512 ns,
	// 1,024 of 1,024 ns, and so on.
	width := time.Duration(512) << max(bits.Len64(uint64(v)>>9)-11, 0)
	r.lo = v &^ (width - 1)
	r.hi, r.n = r.lo+width, 1
}

func (r *run) flush() {
	if r.n == 0 {
		return
	}
	put(r.h, r.lo, r.n)
	if r.heat != nil {
		r.heat[heatBucket(r.lo)] += r.n
	}
	r.n = 0
}
