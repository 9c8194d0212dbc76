package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// noticedLimit is the longest time until notifyd must notice that a broker is frozen. An append
// fails after one second; the other four seconds are for a busy machine. With the default settings
// of the Kafka client library, an append would not fail during the whole outage.
const noticedLimit = 5 * time.Second

// kafkaStopped kills the only broker. While the broker is down, notifyd accepts messages of the
// categories otp and alert through the spill buffer, and refuses all other messages. When the
// broker is back, every acknowledged message is delivered, and the critical pushes of each user are
// in order. A worker that loses its partitions does not wait for the answers of its calls. These
// calls are repeated, but not more often than the rows record.
func kafkaStopped(ctx context.Context, c *cluster) outcome {
	return c.logOutage(ctx, "kafka", c.o.down,
		func() { c.kill(ctx, "kafka") },
		func() { c.start(ctx, "kafka") })
}

// kafkaFrozen stops the only broker with SIGSTOP. The connections stay open and return no errors,
// so only a time-out can notice the fault. After that, the rules of kafkaStopped must hold. During
// this fault, an append of the API process fails after one second, the default.
func kafkaFrozen(ctx context.Context, c *cluster) (r outcome) {
	pid := c.pid("kafka")
	c.restartAPI(ctx, time.Second)
	// Let the broker continue in any case. Otherwise no later fault could run.
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	r = c.logOutage(ctx, "frozen", noticedLimit,
		func() { rig.Ok(syscall.Kill(pid, syscall.SIGSTOP)) },
		func() { rig.Ok(syscall.Kill(pid, syscall.SIGCONT)) })
	c.restartAPI(ctx, appendTimeout)
	return r
}

// logOutage stops the log for the time c.o.down under load, with the functions stopLog and
// startLog. It fails if notifyd has not refused a request within the limit after the stop, or if a
// rule of kafkaStopped is broken.
func (c *cluster) logOutage(ctx context.Context, name string, limit time.Duration, stopLog, startLog func()) (r outcome) {
	began := time.Now()
	before := c.totals(ctx)
	t := c.traffic(ctx, prefix(name), critical, rest)
	defer t.end()
	rig.Ok(rig.Pause(ctx, warm))
	gone := time.Now()
	stopLog()
	killed := time.Now()
	spilled := 0.0
	for time.Since(killed) < c.o.down {
		if m, err := c.apiMetrics(ctx); err == nil {
			spilled = max(spilled, m["notifyd_spill_records"])
		}
		rig.Ok(rig.Pause(ctx, 500*time.Millisecond))
	}
	back := time.Now()
	startLog()
	ready := time.Now()
	// Continue the load until notifyd accepts the stream "rest" again, and for a few seconds more.
	until(ctx, "more than 10 requests of the stream rest are accepted again", func() bool {
		return t.count("rest", ready, time.Now()).accepted > 10
	})
	resumed := time.Now()
	rig.Ok(rig.Pause(ctx, warm))
	t.end()
	ids := t.ids()
	r.lost = c.waitDelivered(ctx, ids)
	drained := time.Since(ready)
	after := c.totals(ctx)
	bound := c.resent(ctx, began)
	r.accepted, r.duplicates = int64(len(ids)), after.Duplicates-before.Duplicates
	reordered := after.Reordered - before.Reordered
	// Do not count requests of the stream "rest" in the first and the last second of the outage. The
	// log may still acknowledge a request that was sent just before the stop. A request of the last
	// second may wait until the log is back, and is then acknowledged.
	kept, rest := t.count("critical", killed, back), t.count("rest", killed.Add(time.Second), back.Add(-time.Second))
	noticed, there := t.firstRefusal(gone)
	whole := t.count("critical", time.Time{}, time.Now())
	restAll := t.count("rest", time.Time{}, time.Now())
	for _, n := range []counts{whole, restAll} {
		if n.example != nil {
			fmt.Printf("  an answer was neither 201 nor 503: %v\n", n.example)
		}
	}
	if kept.refusal != nil {
		fmt.Printf("  a critical push was refused: %v\n", kept.refusal)
	}
	noRetry, other := whole.noRetry+restAll.noRetry, whole.other+restAll.other
	r.ok = r.lost == 0 && r.duplicates <= bound && reordered == 0 && spilled > 0 && kept.accepted > 0 && kept.refused == 0 &&
		rest.accepted == 0 && rest.refused > 0 && noRetry == 0 && other == 0 && there && noticed <= limit
	r.line = fmt.Sprintf("down_s=%.0f noticed_s=%.2f critical_slowest_s=%.2f critical_kept=%d critical_refused=%d spilled_most=%.0f rest_refused=%d rest_accepted=%d without_retry_after=%d other=%d accepted=%d lost=%d duplicates=%d bound=%d reordered=%d start_s=%.1f resumed_s=%.1f drained_s=%.1f",
		back.Sub(killed).Seconds(), noticed.Seconds(), kept.slowest.Seconds(), kept.accepted, kept.refused, spilled, rest.refused, rest.accepted, noRetry, other, r.accepted, r.lost, r.duplicates, bound, reordered,
		ready.Sub(back).Seconds(), resumed.Sub(ready).Seconds(), drained.Seconds())
	return r
}
