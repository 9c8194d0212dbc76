package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// noticedLimit is how long a frozen broker may pass for a living one, where an append
// has a second. The promise is about that second; the rest is for a busy machine. A
// producer with its library's settings reports nothing for the whole outage.
const noticedLimit = 5 * time.Second

// kafkaStopped: while the only broker is gone, otp and alert are accepted through
// the spill buffer and the rest is refused; when it is back, everything that was
// acknowledged is delivered, each user's critical pushes in their order. A worker that
// loses its partitions with the broker lets go of calls under way: those are made again,
// and no more than the rows say.
func kafkaStopped(ctx context.Context, c *cluster) outcome {
	return c.logAway(ctx, "kafka", c.o.down,
		func() { c.kill(ctx, "kafka") },
		func() { c.start(ctx, "kafka") })
}

// kafkaFrozen: the only broker does not die but stands still (SIGSTOP): its
// connections stay open, and nothing refuses anything. It must be noticed by the
// clock, and then all is as when it is gone. Appends have their default time.
func kafkaFrozen(ctx context.Context, c *cluster) (r outcome) {
	pid := c.pid("kafka")
	c.restartAPI(ctx, time.Second)
	// Whatever goes wrong: nothing else can work with it before it goes on.
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	r = c.logAway(ctx, "frozen", noticedLimit,
		func() { rig.Ok(syscall.Kill(pid, syscall.SIGSTOP)) },
		func() { rig.Ok(syscall.Kill(pid, syscall.SIGCONT)) })
	c.restartAPI(ctx, appendTimeout)
	return r
}

// logAway takes the log away under load and brings it back. That it is away must be
// answered to somebody within limit.
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
	// Until the rest is taken again, and a little longer.
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
	// What was sent just before may have been acknowledged by the log, and what waits
	// for a frozen one when it goes on is.
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
