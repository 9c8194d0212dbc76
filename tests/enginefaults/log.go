package main

import (
	"context"
	"fmt"
	"time"
)

// kafkaStopped: while the only broker is gone, otp and alert are accepted through
// the spill buffer and the rest is refused; when it is back, everything that was
// acknowledged is delivered, each user's critical pushes in their order. A worker that
// loses its partitions with the broker lets go of calls under way: those are made again,
// and no more than the rows say.
func kafkaStopped(ctx context.Context, c *cluster) (r outcome, err error) {
	began := time.Now()
	before, err := c.totals(ctx)
	if err != nil {
		return r, err
	}
	t := c.traffic(ctx, prefix("kafka"), critical, rest)
	defer t.end()
	if err := pause(ctx, warm); err != nil {
		return r, err
	}
	if err := c.kill(ctx, "kafka"); err != nil {
		return r, err
	}
	killed := time.Now()
	spilled := 0.0
	for time.Since(killed) < c.o.down {
		if m, err := c.apiMetrics(ctx); err == nil {
			spilled = max(spilled, m["notifyd_spill_records"])
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return r, err
		}
	}
	back := time.Now()
	if err := c.start(ctx, "kafka"); err != nil {
		return r, err
	}
	ready := time.Now()
	// Until the rest is taken again, and a little longer.
	if err := until(ctx, "the rest is accepted again", func() (bool, error) {
		return t.count("rest", ready, time.Now()).accepted > 10, nil
	}); err != nil {
		return r, err
	}
	again := time.Now()
	if err := pause(ctx, warm); err != nil {
		return r, err
	}
	t.end()
	ids := t.ids()
	if r.lost, err = c.delivered(ctx, ids); err != nil {
		return r, err
	}
	drained := time.Since(ready)
	after, err := c.totals(ctx)
	if err != nil {
		return r, err
	}
	bound, err := c.resent(ctx, began)
	if err != nil {
		return r, err
	}
	r.accepted, r.duplicates = int64(len(ids)), after.Duplicates-before.Duplicates
	reordered := after.Reordered - before.Reordered
	// What was sent just before the kill may have been acknowledged by the log.
	sure := killed.Add(time.Second)
	kept, rest := t.count("critical", killed, back), t.count("rest", sure, back)
	whole := t.count("critical", time.Time{}, time.Now())
	restAll := t.count("rest", time.Time{}, time.Now())
	for _, n := range []counts{whole, restAll} {
		if n.example != nil {
			fmt.Printf("  neither 201 nor 503: %v\n", n.example)
		}
	}
	noRetry, other := whole.noRetry+restAll.noRetry, whole.other+restAll.other
	r.ok = r.lost == 0 && r.duplicates <= bound && reordered == 0 && spilled > 0 && kept.accepted > 0 && kept.refused == 0 &&
		rest.accepted == 0 && rest.refused > 0 && noRetry == 0 && other == 0
	r.line = fmt.Sprintf("down_s=%.0f critical_kept=%d critical_refused=%d spilled_most=%.0f rest_refused=%d rest_accepted=%d without_retry_after=%d other=%d accepted=%d lost=%d duplicates=%d bound=%d reordered=%d start_s=%.1f resumed_s=%.1f drained_s=%.1f",
		back.Sub(killed).Seconds(), kept.accepted, kept.refused, spilled, rest.refused, rest.accepted, noRetry, other, r.accepted, r.lost, r.duplicates, bound, reordered,
		ready.Sub(back).Seconds(), again.Sub(ready).Seconds(), drained.Seconds())
	return r, nil
}
