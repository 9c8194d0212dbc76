package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// noticedLimit bounds the time until notifyd notices that a broker is frozen. An append has a
// time-out of one second; the rest allows for a busy machine. A producer with the default
// settings of its library reports nothing for the whole outage.
const noticedLimit = 5 * time.Second

// kafkaStopped kills the only broker. Meanwhile otp and alert are accepted through the spill
// buffer and everything else is refused. When the broker is back, everything acknowledged is
// delivered, each user's critical pushes in order. A worker that loses its partitions with the
// broker gives up its calls under way. These are made again, but no more of them than the rows
// record.
func kafkaStopped(ctx context.Context, c *cluster) outcome {
	return c.logAway(ctx, "kafka", c.o.down,
		func() { c.kill(ctx, "kafka") },
		func() { c.start(ctx, "kafka") })
}

// kafkaFrozen stops the only broker with SIGSTOP. Its connections stay open and return no
// errors, so only a time-out can notice it. After that, everything is as with a dead broker.
// Appends have their default time-out.
func kafkaFrozen(ctx context.Context, c *cluster) (r outcome) {
	pid := c.pid("kafka")
	c.restartAPI(ctx, time.Second)
	// Always let the broker go on: no later fault can run with a frozen broker.
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	r = c.logAway(ctx, "frozen", noticedLimit,
		func() { rig.Ok(syscall.Kill(pid, syscall.SIGSTOP)) },
		func() { rig.Ok(syscall.Kill(pid, syscall.SIGCONT)) })
	c.restartAPI(ctx, appendTimeout)
	return r
}

// logAway calls away under load, which takes the log away, and later again, which brings it
// back. Some request must be refused because of it within limit.
func (c *cluster) logAway(ctx context.Context, name string, limit time.Duration, away, again func()) (r outcome) {
	began := time.Now()
	before := c.totals(ctx)
	t := c.traffic(ctx, prefix(name), critical, rest)
	defer t.end()
	rig.Ok(rig.Pause(ctx, warm))
	gone := time.Now()
	away()
	killed := time.Now()
	spilled := 0.0
	for time.Since(killed) < c.o.down {
		if m, err := c.apiMetrics(ctx); err == nil {
			spilled = max(spilled, m["notifyd_spill_records"])
		}
		rig.Ok(rig.Pause(ctx, 500*time.Millisecond))
	}
	back := time.Now()
	again()
	ready := time.Now()
	// Load until other categories are accepted again, and a little longer.
	until(ctx, "the rest is accepted again", func() bool {
		return t.count("rest", ready, time.Now()).accepted > 10
	})
	resumed := time.Now()
	rig.Ok(rig.Pause(ctx, warm))
	t.end()
	ids := t.ids()
	r.lost = c.delivered(ctx, ids)
	drained := time.Since(ready)
	after := c.totals(ctx)
	bound := c.resent(ctx, began)
	r.accepted, r.duplicates = int64(len(ids)), after.Duplicates-before.Duplicates
	reordered := after.Reordered - before.Reordered
	// Do not count the first and last second: the log may have acknowledged requests sent just
	// before it went away, and it acknowledges those that wait when it comes back.
	kept, rest := t.count("critical", killed, back), t.count("rest", killed.Add(time.Second), back.Add(-time.Second))
	noticed, there := t.firstRefusal(gone)
	whole := t.count("critical", time.Time{}, time.Now())
	restAll := t.count("rest", time.Time{}, time.Now())
	for _, n := range []counts{whole, restAll} {
		if n.example != nil {
			fmt.Printf("  neither 201 nor 503: %v\n", n.example)
		}
	}
	if kept.refusal != nil {
		fmt.Printf("  critical and refused: %v\n", kept.refusal)
	}
	noRetry, other := whole.noRetry+restAll.noRetry, whole.other+restAll.other
	r.ok = r.lost == 0 && r.duplicates <= bound && reordered == 0 && spilled > 0 && kept.accepted > 0 && kept.refused == 0 &&
		rest.accepted == 0 && rest.refused > 0 && noRetry == 0 && other == 0 && there && noticed <= limit
	r.line = fmt.Sprintf("down_s=%.0f noticed_s=%.2f critical_slowest_s=%.2f critical_kept=%d critical_refused=%d spilled_most=%.0f rest_refused=%d rest_accepted=%d without_retry_after=%d other=%d accepted=%d lost=%d duplicates=%d bound=%d reordered=%d start_s=%.1f resumed_s=%.1f drained_s=%.1f",
		back.Sub(killed).Seconds(), noticed.Seconds(), kept.slowest.Seconds(), kept.accepted, kept.refused, spilled, rest.refused, rest.accepted, noRetry, other, r.accepted, r.lost, r.duplicates, bound, reordered,
		ready.Sub(back).Seconds(), resumed.Sub(ready).Seconds(), drained.Seconds())
	return r
}
