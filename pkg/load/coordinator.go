package load

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// coordinator collects the figures of the recorders once a second, and makes a snapshot ten times a
// second. Its method start begins a goroutine and returns a function that stops it. This goroutine
// owns the fields of the coordinator until that function has returned; after that the goroutine of
// Run.Run owns the fields. Other goroutines may use only serverSaid and the fields that a mutex
// guards.
type coordinator struct {
	run        *Run
	thresholds []*watchedThreshold
	health     func() Health
	abort      func()

	calibrated      map[*stepRun]float64 // messages/s that this machine generates without a server
	calibrationTook time.Duration

	mu      sync.Mutex // guards the fields up to sentAll
	phase   int
	began   time.Duration // start of the phase, since the run's start
	state   State
	markers []Marker
	faults  []FaultResult
	settled drainResult
	sentAll time.Duration // when the drain began, since the run's start; 0: it has not begun

	serverSaid      atomic.Pointer[Server] // latest answer of the server; the goroutine that asks the server stores it
	secondIndex     int
	secondEnd       time.Duration // end of the last complete second
	seconds         []SecondRow
	heat            []HeatColumn
	healthSums      HealthSummary
	nowHealth       Health
	came            arrivalCounts
	lastCame        int64
	rates           Rates
	intended        int64 // messages intended by the end of the last second
	server          Server
	recent          [][]recentStep // figures of each of the last seconds; filled only if a threshold has a window
	longestWindow   time.Duration  // longest window of the thresholds
	measuredSeconds int            // seconds that count as evidence: seconds of sending, not of the drain
	lateWakeSeconds int            // measured seconds in which the generator woke late
	queuedSeconds   int            // measured seconds in which the generator woke on time, but requests started late
	starvedSeconds  int            // measured seconds in which all CPUs of the process were busy
	worstWake       time.Duration  // highest p99 of wake-ups in a measured second
	probe           *recorder      // the goroutine of the function probe records into it
	endToEndMu      sync.Mutex     // guards endToEnd, because Run.settleLedger also records arrivals
	endToEnd        map[*stepRun]*endTimes
	intervals       []Interval
	intervalCounts  map[*stepRun]*window
	intervalStart   time.Duration
}

type recentStep struct {
	step *stepRun
	win  *window
}

func newCoordinator(r *Run) (*coordinator, error) {
	c := &coordinator{
		run: r, state: StateCalibrating, calibrated: map[*stepRun]float64{}, abort: func() {},
		probe: newRecorder(), endToEnd: map[*stepRun]*endTimes{}, intervalCounts: map[*stepRun]*window{},
	}
	var err error
	if c.thresholds, err = newWatched(r.s.Thresholds); err != nil {
		return nil, err
	}
	for _, w := range c.thresholds {
		for _, m := range []*metric{&w.cond.left, w.cond.right} {
			if m != nil {
				c.longestWindow = max(c.longestWindow, m.window)
			}
		}
	}
	if c.health = r.cfg.health; r.feeds != nil {
		c.health = func() Health { return r.feeds.health(c.secondEnd) }
	} else if c.health == nil {
		c.health = newSampler().sample
	}
	return c, nil
}

// start runs the coordinator in a new goroutine. The returned function stop ends this goroutine and
// waits until it has ended.
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
				c.endSecond(ctx)
				return
			}
			now := c.run.since(time.Now())
			if now-c.secondEnd >= time.Second && (c.run.feeds == nil || now-c.secondEnd >= silence || c.run.feeds.complete(c.secondEnd)) {
				c.endSecond(ctx)
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

func (c *coordinator) startDrain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state, c.sentAll = StateDraining, c.run.since(time.Now())
}

// isDrainSecond reports whether the second that ends now belongs mostly to the drain. The last
// second of sending ends shortly after the drain has begun, and does not belong to the drain.
func (c *coordinator) isDrainSecond(length time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sentAll > 0 && c.sentAll-c.secondEnd < length/2
}

func (c *coordinator) enterPhase(i int) {
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

// currentTally returns the counts of the step so far, including the current second.
func (s *stepRun) currentTally() tally {
	t := s.totalCounts.tally
	for _, r := range s.recs {
		l := r.currentTally()
		t.add(&l)
	}
	return t
}

// endSecond ends a second: it empties the windows of all recorders and adds up their figures.
func (c *coordinator) endSecond(ctx context.Context) {
	now := c.run.elapsed()
	// The last call may come immediately after the previous call, with new figures. The length must
	// not be 0 then, because rates are divided by it.
	length := max(now-c.secondEnd, 1)
	c.nowHealth = c.health()
	all := newWindow()
	row := SecondRow{Second: c.secondIndex, Length: length, Health: c.nowHealth}
	var heat [HeatBuckets]int64
	var recent []recentStep
	workers := 0.0
	for _, s := range c.run.steps {
		s.lastSecond.reset()
		for _, r := range s.recs {
			w := r.takeWindow()
			s.lastSecond.merge(w)
			r.giveBack(w)
		}
		d := s.lastSecond
		s.rates = Rates{Sent: PerSecond(d.sent, length), Acked: PerSecond(d.acked, length), Failed: PerSecond(d.failed+d.rejected, length)}
		if b := time.Duration(s.begin.Load()); b >= 0 && b < now {
			from := max(c.secondEnd, b)
			s.rates.Intended = PerSecond(s.intended(now)-s.intended(from), length)
			if end := time.Duration(s.ended.Load()); end == 0 || end > c.secondEnd {
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
		s.totalCounts.merge(d)
		s.row = SecondStep{Name: s.Name, Sent: d.sent, Acked: d.acked, Failed: d.failed + d.rejected, Response: brief(d.response), Service: brief(d.service)}
		row.Steps = append(row.Steps, s.row)
		all.merge(d)
		for i, n := range d.heat {
			heat[i] += n
		}
		c.keepInterval(s, d)
		if c.longestWindow > 0 {
			keep := newWindow()
			keep.merge(d)
			recent = append(recent, recentStep{s, keep})
		}
	}
	row.Draining = c.isDrainSecond(length)
	addEvidence(c, all, workers, length, row.Draining)
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
	c.heat = append(c.heat, HeatColumn{Second: c.secondIndex, Counts: heat})
	c.recent = append(c.recent, recent)
	if keep := int(c.longestWindow/time.Second) + 2; len(c.recent) > keep {
		c.recent = slices.Delete(c.recent, 0, len(c.recent)-keep)
	}
	c.secondIndex++
	c.secondEnd = now
	c.judgeThresholds(now, false)
	if f := c.run.cfg.Report; f != nil {
		f(frameOf(c, now))
	}
}

// PerSecond returns n per second over the time d. It returns 0 if d is less than a millisecond.
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

// askServer asks the server for its figures. It runs in another goroutine than the coordinator, so
// that a server that does not answer cannot delay the coordinator.
func (c *coordinator) askServer(ctx context.Context, f func(context.Context, bool) (Server, error), last bool) {
	ctx, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	// If the token lacks the scope "observe", the function f returns an error. Then the figures
	// stay unknown.
	if s, err := f(ctx, last); err == nil {
		s.Known = true
		c.serverSaid.Store(&s)
	}
}

// askOthers asks the ledger for new arrivals, for at most two seconds. It also copies the latest
// answer of the server, for which it does not wait.
func (c *coordinator) askOthers(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	if l := c.run.cfg.Ledger; l != nil {
		if got, err := l.countArrivals(ctx, false); err == nil {
			c.came = got
		}
		// After an error the next call reads the same arrivals again.
		_ = l.joinArrivals(ctx, &c.run.promised, c.recordArrival)
	}
	if s := c.serverSaid.Load(); s != nil {
		c.server = *s
	}
	c.server.Backlog = c.backlog()
}

// delivered returns how many messages arrived. If the run is one segment of several, the number
// includes the messages of the other segments until the final check of the ledger.
func (c *coordinator) delivered() int64 {
	if c.run.cfg.Segment.N > 1 && c.settled.Checked {
		return c.settled.Delivered
	}
	return c.came.ids
}

// backlog returns how many acknowledged messages have not arrived.
func (c *coordinator) backlog() int64 {
	if c.run.cfg.Ledger == nil {
		return 0
	}
	return max(c.run.promised.total()-c.delivered(), 0)
}

// followFaults updates the backlog figures of each fault at the end of a second. The parameter now
// is the end of this second, counted from the run's start. The caller holds mu.
func (c *coordinator) followFaults(backlog int64, now time.Duration) {
	for i := range c.faults {
		f := &c.faults[i]
		if f.Began >= c.secondEnd && f.BacklogPeak == 0 {
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

// judgeThresholds judges all thresholds and adds a marker for each threshold that changed. During
// the run (final is false) it ends the run if a threshold with Abort is missed.
func (c *coordinator) judgeThresholds(now time.Duration, final bool) {
	steered := false
	if s := c.run.steer; s != nil {
		st, _ := s.state()
		steered = st.Changed
	}
	for _, w := range c.thresholds {
		if final && steered && !w.cond.holdsAtAnyRate() { // the figures do not belong to a planned rate
			w.state.Value, w.state.Known, w.state.OK = 0, false, false
			continue
		}
		if !w.update(c, now, final) {
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
