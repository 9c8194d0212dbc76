package load

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Config of a Run beside its scenario.
type Config struct {
	Target   Target
	Ledger   *Ledger          // nil: delivery is not checked
	State    StateOf          // of what the ledger misses; nil: all of it that comes no more is lost
	Progress func(p Progress) // every Every; nil: none
	Every    time.Duration    // default 1 s
	Timeout  time.Duration    // of a request; default 30 s
	// Keys gives request number n an Idempotency-Key; nil: none. With keys, a
	// request that failed is sent again until it is answered or Patience ends,
	// so that what it stored is known.
	Keys     func(n int64) string
	Patience time.Duration // default 60 s
	// Acked is told of every accepted id or base, after its answer; nil: nobody.
	Acked func(Acked)
}

// Acked is what one answered request promised.
type Acked struct {
	Request  int64
	IDs      []string
	Base     notify.Base
	Count    int
	Rejected int
}

// Progress is what a run looks like now.
type Progress struct {
	Phase     string // "sending" or "draining"
	Total     Figures
	Last      Figures // of the last interval; its histograms are nil
	Delivered int64   // by the ledger; -1: not known
}

// Ran is what a run showed.
type Ran struct {
	Scenario Scenario
	Figures  Figures
	Began    time.Time
	// Check is what the ledger says after the drain; nil without one.
	Check *Check
	// Interrupted: the run was stopped early; its figures are of what there was.
	Interrupted bool
}

// Run sends a scenario's load and, with a ledger, waits for its delivery. It
// returns when that is done, or with the figures so far when ctx ends.
func Run(ctx context.Context, s Scenario, cfg Config) (Ran, error) {
	s = s.WithDefaults()
	if err := s.Validate(); err != nil {
		return Ran{}, err
	}
	if cfg.Every == 0 {
		cfg.Every = time.Second
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second
	}
	if cfg.Patience == 0 {
		cfg.Patience = time.Minute
	}
	if s.Target == Null {
		cfg.Target = nowhere{}
	}
	r := &run{s: s, cfg: cfg, data: newData(s), began: time.Now()}
	for range s.Workers {
		r.recs = append(r.recs, newRecorder())
	}
	if cfg.Ledger != nil {
		if err := cfg.Ledger.begin(ctx); err != nil {
			return Ran{}, fmt.Errorf("ledger: %w", err)
		}
	}
	stopProgress := r.report(ctx)
	r.send(ctx)
	sendingTook := time.Since(r.began)
	res := Ran{Scenario: s, Began: r.began, Interrupted: ctx.Err() != nil}
	if cfg.Ledger != nil {
		r.draining.Store(true)
		check, err := cfg.Ledger.drain(context.WithoutCancel(ctx), s.Drain, &r.acked, cfg.State)
		if err != nil {
			stopProgress()
			return res, fmt.Errorf("ledger: %w", err)
		}
		res.Check = &check
	}
	stopProgress()
	res.Figures = merge(r.recs, sendingTook)
	return res, nil
}

type run struct {
	s        Scenario
	cfg      Config
	data     *data
	began    time.Time
	recs     []*recorder
	next     atomic.Int64 // number of the next request
	draining atomic.Bool
	acked    promises
}

// requests is how many requests the run has at most.
func (r *run) requests() int64 {
	n := int64(math.MaxInt64)
	if r.s.Count > 0 {
		n = (r.s.Count + int64(r.s.Size) - 1) / int64(r.s.Size)
	}
	if r.s.Rate > 0 && r.s.Duration > 0 {
		n = min(n, int64(r.s.Rate*r.s.Duration.Seconds()/float64(r.s.Size)))
	}
	return n
}

// due is when request n is to be sent: a pure function of its number.
func (r *run) due(n int64) time.Time {
	if r.s.Rate == 0 {
		return time.Time{}
	}
	return r.began.Add(time.Duration(float64(n) * float64(r.s.Size) / r.s.Rate * float64(time.Second)))
}

func (r *run) send(ctx context.Context) {
	var wg sync.WaitGroup
	last := r.requests()
	for w, rec := range r.recs {
		wg.Go(func() {
			body := make([]byte, 0, 1024+r.s.Size*24)
			for turn := int64(0); ctx.Err() == nil; turn++ {
				// Ordered, a user always has the same worker, which sends the
				// next message only after the answer to the one before: the
				// order notifyd promises to keep.
				n := turn*int64(r.s.Workers) + int64(w)
				if !r.s.Ordered {
					n = r.next.Add(1) - 1
				}
				if n >= last || (r.s.Rate == 0 && r.s.Duration > 0 && time.Since(r.began) >= r.s.Duration) {
					return
				}
				due := r.due(n)
				size := r.s.Size
				if r.s.Count > 0 {
					size = int(min(int64(size), r.s.Count-n*int64(size)))
				}
				// The body is made before its time: making it is our cost.
				body = r.data.request(body[:0], uint64(n)*uint64(r.s.Size), size)
				if due.IsZero() {
					due = time.Now()
				} else if !waitUntil(ctx, due) {
					return
				}
				r.one(ctx, rec, n, due, body, size)
			}
		})
	}
	wg.Wait()
}

// waitUntil sleeps until a time; a time that has passed is late, not skipped.
func waitUntil(ctx context.Context, at time.Time) bool {
	d := time.Until(at)
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (r *run) one(ctx context.Context, rec *recorder, n int64, due time.Time, body []byte, size int) {
	key := ""
	if r.cfg.Keys != nil {
		key = r.cfg.Keys(n)
	}
	sent := time.Now()
	reply, err := r.attempt(ctx, body, key)
	for wait := 50 * time.Millisecond; err != nil && key != "" && again(err) && time.Since(sent) < r.cfg.Patience; wait = min(2*wait, time.Second) {
		if !waitUntil(ctx, time.Now().Add(max(wait, min(notify.RetryAfterOf(err), 2*time.Second)))) {
			break
		}
		reply, err = r.attempt(ctx, body, key)
	}
	done := time.Now()
	var out outcome
	read := r.s.read
	if !r.asked() {
		read = r.s.count
	}
	if err == nil {
		out, err = read(reply, size)
	}
	rec.record(due, sent, done, size, out, err)
	if err == nil && r.s.Target != Null && r.asked() {
		a := Acked{Request: n, IDs: out.ids, Base: out.base, Count: size, Rejected: out.rejected}
		r.acked.add(a)
		if r.cfg.Acked != nil {
			r.cfg.Acked(a)
		}
	}
}

// asked reports whether anybody wants to know what was promised.
func (r *run) asked() bool { return r.cfg.Ledger != nil || r.cfg.Acked != nil }

// again reports whether a request whose outcome is unknown may be repeated
// under its key.
func again(err error) bool {
	switch notify.KindOf(err) {
	case notify.KindUnavailable, notify.KindThrottled, notify.KindInternal, notify.KindConflict:
		return true
	}
	return false
}

func (r *run) attempt(ctx context.Context, body []byte, key string) (Reply, error) {
	ctx, stop := context.WithTimeout(ctx, r.cfg.Timeout)
	defer stop()
	return r.cfg.Target.Send(ctx, body, key)
}

// report calls Progress until it is stopped.
func (r *run) report(ctx context.Context) (stop func()) {
	if r.cfg.Progress == nil {
		return func() {}
	}
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(r.cfg.Every)
		defer tick.Stop()
		was := Figures{}
		for {
			select {
			case <-tick.C:
			case <-end:
				return
			}
			now := merge(r.recs, time.Since(r.began))
			p := Progress{Phase: "sending", Total: now, Delivered: -1, Last: Figures{
				Elapsed: now.Elapsed - was.Elapsed, Requests: now.Requests - was.Requests, Sent: now.Sent - was.Sent,
				Accepted: now.Accepted - was.Accepted, Rejected: now.Rejected - was.Rejected, Failed: now.Failed - was.Failed,
			}}
			if r.draining.Load() {
				p.Phase = "draining"
			}
			if r.cfg.Ledger != nil {
				if t, err := r.cfg.Ledger.totals(context.WithoutCancel(ctx)); err == nil {
					p.Delivered = t.IDs - r.cfg.Ledger.before.IDs
				}
			}
			was = now
			r.cfg.Progress(p)
		}
	})
	return func() { close(end); wg.Wait() }
}

// promises remembers what was acknowledged: ids of singles, bases of fan-outs.
type promises struct {
	mu    sync.Mutex
	ids   []string
	bases []Acked
	n     int64
}

func (p *promises) add(a Acked) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n += int64(a.Count - a.Rejected)
	if len(a.IDs) > 0 {
		p.ids = append(p.ids, a.IDs...)
		return
	}
	p.bases = append(p.bases, a)
}
