package load

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/term"
)

// snapshot makes the snapshot of the run. The parameter now is the current run time.
func (c *coordinator) snapshot(now time.Duration) *Snapshot {
	r := c.run
	for {
		select {
		case m := <-r.marks:
			m.At = now
			c.mark(m)
			continue
		default:
		}
		break
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &r.s.Phases[c.phase]
	s := &Snapshot{
		At: time.Now(), Elapsed: now, Planned: r.s.Length(), State: c.state, Scenario: r.s.Name,
		Phase: Phase{Name: p.Name, Index: c.phase, Of: len(r.s.Phases), Began: c.began},
		Rates: c.rates, Errors: c.errors(), Health: c.nowHealth, Server: c.server,
		Markers: slices.Clone(c.markers), Agents: r.feeds.list(),
		Seconds: slices.Clone(c.seconds[max(len(c.seconds)-KeepSeconds, 0):]),
		Heat:    slices.Clone(c.heat[max(len(c.heat)-KeepSeconds, 0):]),
	}
	if r.steer != nil {
		st, _ := r.steer.state()
		s.Steer = &st
	}
	if p.Duration > 0 {
		s.Phase.Ends = c.began + p.Duration.of()
	}
	for _, w := range c.thresholds {
		s.Thresholds = append(s.Thresholds, w.state)
	}
	for _, st := range r.steps {
		if st.begin.Load() >= 0 {
			s.Steps = append(s.Steps, c.stepSnapshot(st, min(now, r.elapsed())))
		}
	}
	s.Totals = c.totals(s.Steps)
	e := c.gatherEvidence(false)
	s.Verdict = Judge(&e).Code
	return s
}

// stepSnapshot describes one step. Its quantiles include all complete seconds.
func (c *coordinator) stepSnapshot(s *stepRun, now time.Duration) StepSnapshot {
	t := s.currentTally()
	out := StepSnapshot{
		Name: s.Name, Phase: s.phase.Name, Warmup: s.phase.Warmup, Target: s.Target,
		Channel: s.channel(), Category: s.category(), Arrival: s.Arrival.String(), Rates: s.rates,
		Totals: Totals{Intended: s.intended(now), Sent: t.sent, Acked: t.acked, Failed: t.failed, Rejected: t.rejected},
		Lag:    QuantilesOf(s.totalCounts.lag), Service: QuantilesOf(s.totalCounts.service), Response: QuantilesOf(s.totalCounts.response),
	}
	c.endToEndMu.Lock()
	defer c.endToEndMu.Unlock()
	if e := c.endToEnd[s]; e != nil {
		out.EndToEnd, out.Lateness = QuantilesOf(e.endToEnd), SignedQuantiles(e.late, e.early)
		out.Totals.Early, out.Totals.Late = e.early.TotalCount(), e.afterLimit
		out.Totals.Delivered = e.endToEnd.TotalCount() + e.late.TotalCount() + e.early.TotalCount()
	}
	if s.sink != nil {
		// The sink may have counted a message that the step has not yet counted as acknowledged. Do
		// not show more delivered than acknowledged messages.
		out.Totals.Delivered = min(s.sink.taken.Load(), t.acked)
		out.Totals.Lost = t.acked - out.Totals.Delivered
	}
	return out
}

func (c *coordinator) totals(steps []StepSnapshot) (t Totals) {
	for i := range steps {
		o := &steps[i].Totals
		t.Intended += o.Intended
		t.Sent += o.Sent
		t.Acked += o.Acked
		t.Failed += o.Failed
		t.Rejected += o.Rejected
		t.Early += o.Early
		t.Late += o.Late
		if steps[i].Target == Null {
			t.Lost += o.Lost
			t.Delivered += o.Delivered
		}
	}
	f := &c.settled
	t.Delivered += c.delivered()
	t.Duplicates, t.Reordered, t.Backlog = c.came.duplicates, c.came.reordered, c.backlog()
	t.Lost += f.Lost
	t.Unexpected, t.Unverified = f.Unexpected, f.Unverified
	return t
}

func (c *coordinator) errors() (out []ErrorCount) {
	for _, s := range c.run.steps {
		for _, e := range s.totalCounts.errs {
			one := *e
			one.Step = s.Name
			if i := slices.IndexFunc(out, func(o ErrorCount) bool { return o.Step == one.Step && o.Class == one.Class && o.Code == one.Code }); i >= 0 {
				out[i].Count += one.Count
				if one.Last.After(out[i].Last) {
					out[i].Last = one.Last
				}
				continue
			}
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b ErrorCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Step, b.Step), cmp.Compare(a.Code, b.Code))
	})
	return out
}

// gatherEvidence collects the evidence for the verdict. The parameter partial is true if the run was
// stopped early.
func (c *coordinator) gatherEvidence(partial bool) Evidence {
	e := Evidence{
		Late: c.lateWakeSeconds, Queued: c.queuedSeconds, Seconds: c.measuredSeconds, WakeP99: c.worstWake, Waiting: 1, Share: c.healthSums.GeneratorShare,
		Starved: c.starvedSeconds, Embedded: c.run.cfg.Embedded, Partial: partial, Closed: true, LedgerLost: c.settled.Lost,
	}
	response := NewHistogram()
	now := c.run.elapsed()
	from, to := time.Duration(math.MaxInt64), time.Duration(0)
	var busy, own time.Duration
	for _, s := range c.run.steps {
		begin := time.Duration(s.begin.Load())
		if begin < 0 || s.phase.Warmup {
			continue
		}
		e.Closed = e.Closed && s.sched == nil
		end := cmp.Or(time.Duration(s.ended.Load()), now)
		from, to = min(from, begin), max(to, end)
		t := s.currentTally()
		if s.sched == nil {
			e.Intended += t.sent // in a closed loop exactly the sent messages are intended
		} else {
			// Do not count the messages of the last 50 ms, because workers may be sending them now.
			e.Intended += s.intended(min(now, end+time.Hour) - 50*time.Millisecond)
		}
		e.Sent += t.sent
		e.Failed += t.failed + t.rejected
		response.Merge(s.totalCounts.response)
		if s.sched != nil { // a closed loop has no due times, so its requests are never late
			busy += s.totalCounts.busy
			own += s.totalCounts.own
		}
	}
	if to > from {
		e.Sending = to - from
	}
	e.Messages = response.TotalCount()
	e.ResponseP99 = time.Duration(response.ValueAtQuantile(99))
	if busy+own > 0 { // the sum is 0 if no request has been answered yet
		e.Waiting = float64(busy) / float64(busy+own)
	}
	if c.measuredSeconds > 0 {
		e.Steal = c.healthSums.Steal / float64(c.measuredSeconds)
	}
	if st := c.run.steer; st != nil {
		e.Steered = steeredText(st.changes(), now)
	}
	if v, ok := c.backlogSlope(c.defaultSlopeWindow()); ok && c.run.cfg.Ledger != nil && !e.Closed {
		e.BacklogSlope = v
	}
	if c.run.feeds != nil {
		c.run.feeds.replaceEvidence(&e)
	}
	return e
}

// publishSnapshot makes a snapshot, stores it for Run.Snapshot and sends it to Config.Observe.
func (c *coordinator) publishSnapshot(now time.Duration) *Snapshot {
	s := c.snapshot(now)
	c.run.latest.Store(s)
	if f := c.run.cfg.Observe; f != nil {
		f(s)
	}
	return s
}

// result makes the result at the end of a run. The coordinator's goroutine has ended, so the caller
// owns the fields of c. result returns an error if the ledger cannot be read.
func (c *coordinator) result(sending time.Duration, found drainResult) (*Result, error) {
	r := c.run
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	// All times use this value of now, because reading the ledger below does not belong to the run.
	now := r.since(time.Now())
	c.endIntervals()
	if r.cfg.Ledger != nil {
		c.setState(StateReading)
		c.publishSnapshot(now)
		if err := r.join(ctx); err != nil {
			return nil, err
		}
		if err := r.cfg.Ledger.joinTriggerCalls(ctx, &r.promised, c.recordArrival); err != nil {
			return nil, err
		}
		got, err := r.cfg.Ledger.countArrivals(ctx, false)
		if err != nil {
			return nil, err
		}
		c.came = got
	}
	for _, e := range c.endToEnd {
		found.Early += e.early.TotalCount()
		found.Late += e.afterLimit
	}
	c.settled = found
	if f := r.cfg.Server; f != nil {
		c.askServer(ctx, f, true)
		if s := c.serverSaid.Load(); s != nil {
			c.server = *s
			c.server.Backlog = c.backlog()
		}
	}
	c.setState(StateDone)
	why := r.stopped.Load()
	c.judgeThresholds(now, true)
	s := c.publishSnapshot(now)
	env := readEnvironment()
	env.Version, env.Server, env.Labels = r.cfg.Version, r.cfg.ServerName, r.cfg.Labels
	res := &Result{
		Schema: SchemaVersion, Scenario: r.source, Started: r.began.UTC(), Ended: time.Now().UTC(), Environment: env, Segment: r.cfg.Segment,
		Sending: sending, DrainTime: found.drainTook, Totals: s.Totals, Seconds: c.seconds, Heat: c.heat, Intervals: c.intervals,
		Errors: s.Errors, Thresholds: s.Thresholds, Faults: c.faults, Markers: s.Markers, Server: c.server, Ledger: found.LedgerResult, Agents: s.Agents,
	}
	e := c.gatherEvidence(why != nil)
	res.Verdict = Judge(&e)
	res.Rates = Rates{
		Intended: PerSecond(s.Totals.Intended, sending), Sent: PerSecond(s.Totals.Sent, sending), Acked: PerSecond(s.Totals.Acked, sending),
		Failed: PerSecond(s.Totals.Failed+s.Totals.Rejected, sending), Delivered: PerSecond(s.Totals.Delivered, sending+found.drainTook),
	}
	for _, st := range r.steps {
		if st.begin.Load() < 0 {
			continue
		}
		// s.Steps contains only steps that have begun, in the order of r.steps.
		one := StepResult{StepSnapshot: s.Steps[len(res.Steps)]}
		var err error
		if one.Histograms, err = c.histograms(st); err != nil {
			return nil, err
		}
		if e := c.endToEnd[st]; e != nil {
			one.EndToEndParts = e.briefs()
		}
		res.Steps = append(res.Steps, one)
	}
	res.Health = c.healthSummary(s.Totals.Sent)
	if r.steer != nil {
		res.Steered = r.steer.changes()
	}
	if why != nil {
		res.Partial, res.Stopped = true, *why
	}
	res.Exit = exitOf(res, *cmp.Or(why, new(string)), slices.Contains(r.s.Expect, expectDuplicates))
	return res, nil
}

func (c *coordinator) histograms(s *stepRun) (out Histograms, err error) {
	enc := func(to *string, h *hdrhistogram.Histogram) {
		if err == nil {
			*to, err = EncodeHistogram(h)
		}
	}
	enc(&out.Lag, s.totalCounts.lag)
	enc(&out.Service, s.totalCounts.service)
	enc(&out.Response, s.totalCounts.response)
	if e := c.endToEnd[s]; e != nil {
		enc(&out.EndToEnd, e.endToEnd)
		enc(&out.Late, e.late)
		enc(&out.Early, e.early)
	}
	return out, err
}

func (c *coordinator) healthSummary(sent int64) HealthSummary {
	h := c.healthSums
	if n := float64(c.measuredSeconds); n > 0 {
		h.CPU /= n
		h.GCCPU /= n
		h.Steal /= n
		h.MachineCPU /= n
		h.Busy = min(h.Busy/n, 1)
	}
	if sent > 0 {
		h.NsPerMessage = h.CPUSeconds * 1e9 / float64(sent)
	}
	h.CalibrationTook = c.calibrationTook.Seconds()
	return h
}

// exitOf returns the exit code of the command. The parameter why is the reason why the run ended
// early, or "". The parameter repeats is true if the scenario expects duplicates. If several exit
// codes fit, exitOf returns the code of the first of these reasons: all agents were lost, the run
// was interrupted, a threshold was missed, the ledger shows lost or other wrong messages, the
// ledger shows pending messages, no message was accepted.
func exitOf(r *Result, why string, repeats bool) int {
	missed := slices.ContainsFunc(r.Thresholds, func(t ThresholdState) bool { return !t.OK })
	l := &r.Ledger
	switch {
	case why == ErrNoAgents.Error():
		return term.ExitError
	case why != "" && why != errAborted.Error():
		return term.ExitInterrupt
	case missed || why != "":
		return term.ExitSLO
	case l.Lost > 0 || l.Duplicates > 0 && !repeats || l.Early > 0 || l.Unexpected > 0:
		return term.ExitPartial
	case l.Pending > 0 || l.Unverified > 0:
		return term.ExitPending
	case r.Totals.Acked == 0 && r.Totals.Sent > 0:
		return term.ExitError
	}
	return term.ExitOK
}
