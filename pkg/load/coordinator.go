package load

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// coordinator looks at the recorders, ten times a second at most, and makes what
// everybody else sees. Only its goroutine touches its fields, but for those behind
// mu.
type coordinator struct {
	run        *Run
	thresholds []*watched
	health     func() Health
	abort      func()

	calibrated map[*stepRun]float64 // messages/s against the null sink
	calTook    time.Duration

	mu      sync.Mutex
	phase   int
	began   time.Duration // of the phase
	state   State
	markers []Marker
	faults  []FaultResult
	settled settled
	sentAll time.Duration // when the drain began; 0: not yet

	said      atomic.Pointer[Server] // by the server, last
	second    int
	last      time.Duration // end of the last second
	seconds   []SecondRow
	heat      []HeatColumn
	sums      HealthSummary
	nowHealth Health
	came      came
	lastCame  int64
	rates     Rates
	intended  int64 // at the end of the last second
	server    Server
	recent    [][]recentStep // per second, where a threshold has a window
	window    time.Duration  // the longest of them
	measured  int            // seconds that count: not of the drain
	late      int            // measured seconds in which the generator woke late
	queued    int            // measured seconds in which it woke on time, and requests started late
	starved   int
	worstWake time.Duration
	probe     *recorder  // of Run.probe
	timing    sync.Mutex // guards endToEnd: settle joins, too
	endToEnd  map[*stepRun]*endTimes
	intervals []Interval
	inter     map[*stepRun]*window
	interFrom time.Duration
}

type recentStep struct {
	step *stepRun
	win  *window
}

func newCoordinator(r *Run) (*coordinator, error) {
	c := &coordinator{
		run: r, state: StateCalibrating, calibrated: map[*stepRun]float64{}, abort: func() {},
		probe: newRecorder(), endToEnd: map[*stepRun]*endTimes{}, inter: map[*stepRun]*window{},
	}
	var err error
	if c.thresholds, err = newWatched(r.s.Thresholds); err != nil {
		return nil, err
	}
	for _, w := range c.thresholds {
		for _, m := range []*metric{&w.cond.left, w.cond.right} {
			if m != nil {
				c.window = max(c.window, m.window)
			}
		}
	}
	if c.health = r.cfg.health; r.feeds != nil {
		c.health = func() Health { return r.feeds.health(c.last) }
	} else if c.health == nil {
		c.health = newSampler().sample
	}
	return c, nil
}

// start runs the coordinator until the function it returns was called.
func (c *coordinator) start(ctx context.Context) (stop func()) {
	c.setState(StateRunning)
	end := make(chan struct{})
	var wg sync.WaitGroup
	asking, hush := context.WithCancel(ctx)
	if f := c.run.cfg.Server; f != nil {
		wg.Go(func() {
			for asking.Err() == nil {
				c.askServer(asking, f, false)
				waitUntil(asking, time.Now().Add(time.Second))
			}
		})
	}
	wg.Go(func() { probe(asking, c.run, c.probe) })
	wg.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		observed := time.Duration(0)
		for {
			select {
			case <-tick.C:
			case <-end:
				c.rotate(ctx)
				return
			}
			now := c.run.since(time.Now())
			if now-c.last >= time.Second && (c.run.feeds == nil || now-c.last >= silence || c.run.feeds.complete(c.last)) {
				c.rotate(ctx)
			}
			s := c.snapshot(now)
			c.run.latest.Store(s)
			if f := c.run.cfg.Observe; f != nil && now-observed >= c.run.cfg.Every-10*time.Millisecond {
				observed = now
				f(s)
			}
		}
	})
	return func() { close(end); hush(); wg.Wait() }
}

func (c *coordinator) setState(s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = s
}

func (c *coordinator) drains() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state, c.sentAll = StateDraining, c.run.since(time.Now())
}

// drained reports whether most of a second that ends now is of the drain: the last
// one of the sending ends a moment after it.
func (c *coordinator) drained(length time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sentAll > 0 && c.sentAll-c.last < length/2
}

func (c *coordinator) enter(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase, c.began = i, c.run.since(time.Now())
}

func (c *coordinator) mark(m Marker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.markers = append(c.markers, m)
}

func (c *coordinator) faultBegan(name string) int {
	at := c.run.since(time.Now())
	c.mark(Marker{At: at, Kind: "fault", Text: name})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, FaultResult{Name: name, Began: at, Drained: -1})
	return len(c.faults) - 1
}

func (c *coordinator) faultEnded(n int, err error) {
	at := c.run.since(time.Now())
	c.mu.Lock()
	c.faults[n].Ended = at
	if err != nil {
		c.faults[n].Error = err.Error()
	}
	name := c.faults[n].Name
	c.mu.Unlock()
	c.mark(Marker{At: at, Kind: "heal", Text: name})
}

// live is what a step has counted so far.
func (s *stepRun) live() tally {
	t := s.total.tally
	for _, r := range s.recs {
		l := r.look()
		t.add(&l)
	}
	return t
}

// rotate ends a second: it takes the windows of all recorders.
func (c *coordinator) rotate(ctx context.Context) {
	now := c.run.elapsed()
	// At the end it may be no time at all since the last look, and yet something was
	// recorded in it.
	length := max(now-c.last, 1)
	c.nowHealth = c.health()
	all := newWindow()
	row := SecondRow{Second: c.second, Length: length, Health: c.nowHealth}
	var heat [HeatBuckets]int64
	var recent []recentStep
	workers := 0.0
	for _, s := range c.run.steps {
		s.second.reset()
		for _, r := range s.recs {
			w := r.swap()
			s.second.merge(w)
			r.giveBack(w)
		}
		d := s.second
		s.rates = Rates{Sent: PerSecond(d.sent, length), Acked: PerSecond(d.acked, length), Failed: PerSecond(d.failed+d.rejected, length)}
		if b := time.Duration(s.begin.Load()); b >= 0 && b < now {
			from := max(c.last, b)
			s.rates.Intended = PerSecond(s.intended(now)-s.intended(from), length)
			if end := time.Duration(s.ended.Load()); end == 0 || end > c.last {
				to := now
				if end > 0 {
					to = min(end, now)
				}
				workers += float64(s.Workers) * float64(to-from) / float64(length)
			}
		}
		if d.requests == 0 {
			s.row = SecondStep{Name: s.Name}
			continue
		}
		s.total.merge(d)
		s.row = SecondStep{Name: s.Name, Sent: d.sent, Acked: d.acked, Failed: d.failed + d.rejected, Response: brief(d.response), Service: brief(d.service)}
		row.Steps = append(row.Steps, s.row)
		all.merge(d)
		for i, n := range d.heat {
			heat[i] += n
		}
		c.keepInterval(s, d)
		if c.window > 0 {
			keep := newWindow()
			keep.merge(d)
			recent = append(recent, recentStep{s, keep})
		}
	}
	row.Draining = c.drained(length)
	evidence(c, all, workers, length, row.Draining)
	c.askOthers(ctx)
	intended := int64(0)
	for _, s := range c.run.steps {
		intended += s.intended(now)
	}
	row.Intended = intended - c.intended
	c.intended = intended
	row.Sent, row.Acked, row.Failed = all.sent, all.acked, all.failed+all.rejected
	row.Delivered = c.came.ids - c.lastCame
	c.lastCame = c.came.ids
	row.Backlog = c.backlog()
	row.Response, row.Lag, row.Service = brief(all.response), brief(all.lag), brief(all.service)
	row.Health = c.nowHealth
	c.rates = Rates{
		Intended: PerSecond(row.Intended, length), Sent: PerSecond(all.sent, length), Acked: PerSecond(all.acked, length),
		Delivered: PerSecond(row.Delivered, length), Failed: PerSecond(row.Failed, length),
	}
	c.mu.Lock()
	row.Phase = c.run.s.Phases[c.phase].Name
	c.followFaults(row.Backlog, now)
	c.mu.Unlock()
	c.seconds = append(c.seconds, row)
	c.heat = append(c.heat, HeatColumn{Second: c.second, Counts: heat})
	c.recent = append(c.recent, recent)
	if keep := int(c.window/time.Second) + 2; len(c.recent) > keep {
		c.recent = slices.Delete(c.recent, 0, len(c.recent)-keep)
	}
	c.second++
	c.last = now
	c.judge(now, false)
	if f := c.run.cfg.Report; f != nil {
		f(frameOf(c, now))
	}
}

// PerSecond returns the rate of n in d, 0 where d is below a millisecond.
func PerSecond(n int64, d time.Duration) float64 {
	if d < time.Millisecond {
		return 0
	}
	return float64(n) / d.Seconds()
}

func brief(h *hdrhistogram.Histogram) Brief {
	if h.TotalCount() == 0 {
		return Brief{}
	}
	v := h.ValueAtPercentiles([]float64{50, 99})
	return Brief{h.TotalCount(), v[50], v[99], h.Max()}
}

// askServer asks the server, beside the coordinator: one that hangs must not stand
// in its way.
func (c *coordinator) askServer(ctx context.Context, f func(context.Context, bool) (Server, error), last bool) {
	ctx, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	if s, err := f(ctx, last); err == nil { // callers without the scope learn nothing
		s.Known = true
		c.said.Store(&s)
	}
}

// askOthers asks the ledger, which may not hold the run up, and takes what the
// server said last.
func (c *coordinator) askOthers(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	if l := c.run.cfg.Ledger; l != nil {
		if got, err := l.came(ctx, false); err == nil {
			c.came = got
		}
		_ = l.times(ctx, &c.run.promised, c.took) // what failed is asked for again, at the latest in the end
	}
	if s := c.said.Load(); s != nil {
		c.server = *s
	}
	c.server.Backlog = c.backlog()
}

// delivered is what came. Of a segment it is what the others sent, too, until its
// own is known in the end.
func (c *coordinator) delivered() int64 {
	if c.run.cfg.Segment.N > 1 && c.settled.Checked {
		return c.settled.Delivered
	}
	return c.came.ids
}

// backlog is what was acknowledged and did not come.
func (c *coordinator) backlog() int64 {
	if c.run.cfg.Ledger == nil {
		return 0
	}
	return max(c.run.promised.total()-c.delivered(), 0)
}

// followFaults keeps the backlog's peak, and when it was back.
func (c *coordinator) followFaults(backlog int64, now time.Duration) {
	for i := range c.faults {
		f := &c.faults[i]
		if f.Began >= c.last && f.BacklogPeak == 0 {
			f.BacklogBefore = backlog
		}
		if f.Drained >= 0 {
			continue
		}
		f.BacklogPeak = max(f.BacklogPeak, backlog)
		if f.Ended > 0 && backlog <= f.BacklogBefore+f.BacklogPeak/100 {
			f.Drained = max(now-f.Ended, 0)
		}
	}
}

// judge looks at the thresholds.
func (c *coordinator) judge(now time.Duration, final bool) {
	steered := false
	if s := c.run.steer; s != nil {
		st, _ := s.state()
		steered = st.Changed
	}
	for _, w := range c.thresholds {
		if final && steered && !w.cond.ledger() { // of a rate that nobody planned
			w.state.Value, w.state.Known, w.state.OK = 0, false, false
			continue
		}
		if !w.look(c, now, final) {
			continue
		}
		text := w.Expr
		if w.state.OK {
			text += " holds again"
		} else {
			text += " is missed"
		}
		c.mark(Marker{At: now, Kind: "threshold", Text: text})
	}
	if final {
		return
	}
	for _, w := range c.thresholds {
		if w.Abort && !w.state.OK {
			c.abort()
		}
	}
}
