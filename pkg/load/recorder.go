package load

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// recorder keeps one worker's figures; workers never share one.
type recorder struct {
	mu       sync.Mutex
	lag      *hdrhistogram.Histogram // ns
	service  *hdrhistogram.Histogram
	response *hdrhistogram.Histogram
	sent     int64 // receivers
	accepted int64
	rejected int64
	failed   int64 // receivers of requests that failed: not known to be stored
	requests int64
	errs     map[string]int64
}

// Histograms cover 1 us to 5 min at 3 digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1000, int64(5*time.Minute), 3)
}

func newRecorder() *recorder {
	return &recorder{lag: newHistogram(), service: newHistogram(), response: newHistogram(), errs: map[string]int64{}}
}

func (r *recorder) record(due, sent, done time.Time, receivers int, out outcome, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	put := func(h *hdrhistogram.Histogram, d time.Duration) {
		_ = h.RecordValue(min(max(int64(d), 0), int64(5*time.Minute)))
	}
	put(r.lag, sent.Sub(due))
	put(r.service, done.Sub(sent))
	put(r.response, done.Sub(due))
	r.requests++
	r.sent += int64(receivers)
	if err != nil {
		r.failed += int64(receivers)
		r.errs[errCode(err)]++
		return
	}
	r.accepted += int64(out.accepted)
	r.rejected += int64(out.rejected)
}

// Figures is the state of a run: of its beginning until now, or of an interval.
type Figures struct {
	Elapsed  time.Duration
	Requests int64
	Sent     int64 // receivers
	Accepted int64
	Rejected int64
	Failed   int64
	Errors   map[string]int64
	Lag      *hdrhistogram.Histogram
	Service  *hdrhistogram.Histogram
	Response *hdrhistogram.Histogram
}

// merge adds up what the workers have so far.
func merge(rs []*recorder, elapsed time.Duration) Figures {
	f := Figures{Elapsed: elapsed, Errors: map[string]int64{}, Lag: newHistogram(), Service: newHistogram(), Response: newHistogram()}
	for _, r := range rs {
		r.mu.Lock()
		f.Requests += r.requests
		f.Sent += r.sent
		f.Accepted += r.accepted
		f.Rejected += r.rejected
		f.Failed += r.failed
		for k, n := range r.errs {
			f.Errors[k] += n
		}
		f.Lag.Merge(r.lag)
		f.Service.Merge(r.service)
		f.Response.Merge(r.response)
		r.mu.Unlock()
	}
	return f
}
