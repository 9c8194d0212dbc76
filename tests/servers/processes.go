package main

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// standbyLimit is the longest time from the death of a shard's owner until the next owner releases
// a timer.
const standbyLimit = 6 * time.Second

// leaderKilled kills one of two schedulers while timers of its shards become due. The other
// scheduler must begin to release these timers within standbyLimit. No trigger is lost, and no
// trigger is called early.
func leaderKilled(ctx context.Context, c *cluster) (r outcome) {
	shards := c.shardCount(ctx)
	// Triggers become due so often that a shard of the leader always has a due timer.
	const each = 50 * time.Millisecond
	lead, span := 15*time.Second, 5*time.Second+c.o.down
	from := time.Now().Add(lead)
	due := c.registerTriggers(ctx, int(span/each), from, span)
	in := c.shardsOf(ctx, due, shards)
	if left := time.Until(from); left < 0 {
		panic(fmt.Errorf("the registration of %d triggers ended %s after the first trigger was due", len(due), -left))
	}
	rig.Ok(rig.Pause(ctx, time.Until(from.Add(5*time.Second))))
	states := c.shards(ctx, shards)
	leader := c.leader(states)
	was := ownedBy(leader, states)
	c.f.Remove(leader)
	killed := time.Now()
	calls := c.waitForCallbacks(ctx, due)
	first, worst := time.Duration(-1), time.Duration(0)
	orphans := 0
	for id, at := range due {
		called, there := calls.first[id]
		if !there || !was[in[id]] || at.Before(killed) {
			continue
		}
		orphans++
		if took := called.Sub(killed); first < 0 || took < first {
			first = took
		}
		worst = max(worst, called.Sub(at))
	}
	r.accepted, r.lost, r.early, r.duplicates = int64(len(due)), calls.lost, calls.early, calls.twice
	r.ok = r.lost == 0 && r.early == 0 && r.duplicates == 0 && len(was) > 0 && orphans > 0 && first <= standbyLimit
	r.line = fmt.Sprintf("shards=%d of_the_killed=%d triggers=%d due_after_the_kill=%d first_release_s=%.2f limit_s=%.0f latest_by_s=%.2f lost=%d early=%d called_twice=%d",
		shards, len(was), len(due), orphans, first.Seconds(), standbyLimit.Seconds(), worst.Seconds(), r.lost, r.early, r.duplicates)
	return r
}

// shardCount returns the number of timer shards.
func (c *cluster) shardCount(ctx context.Context) int {
	m, err := c.processesOf("scheduler")[0].Metrics(ctx)
	if err == nil && m["notifyd_timer_shards"] < 1 {
		err = fmt.Errorf("the metric notifyd_timer_shards of a scheduler must be 1 or more, but is %v", m["notifyd_timer_shards"])
	}
	rig.Ok(err)
	return int(m["notifyd_timer_shards"])
}

// leader returns the scheduler that owns the most shards.
func (c *cluster) leader(states []engine.ShardState) *rig.Process {
	return slices.MaxFunc(c.processesOf("scheduler"), func(a, b *rig.Process) int { return len(ownedBy(a, states)) - len(ownedBy(b, states)) })
}

// ownedBy returns the shards that a process owns.
func ownedBy(p *rig.Process, states []engine.ShardState) map[int]bool {
	out := map[int]bool{}
	for n, s := range states {
		if owns(p, s) {
			out[n] = true
		}
	}
	return out
}

// schedulerPaused stops one of two schedulers with SIGSTOP until its leases have expired. Then the
// scheduler continues. At first it does not know that it has lost its shards. The store must refuse
// every write with an old term. schedulerPaused itself tries such a write for every shard of the
// paused scheduler.
func schedulerPaused(ctx context.Context, c *cluster) (r outcome) {
	shards := c.shardCount(ctx)
	const paused = 15 * time.Second // three times the length of a lease
	lead, span := 15*time.Second, 30*time.Second
	from := time.Now().Add(lead)
	due := c.registerTriggers(ctx, 300, from, span)
	rig.Ok(rig.Pause(ctx, time.Until(from.Add(3*time.Second))))
	states := c.shards(ctx, shards)
	leader := c.leader(states)
	was := ownedBy(leader, states)
	rig.Ok(leader.Signal(syscall.SIGSTOP))
	rig.Ok(rig.Pause(ctx, paused))
	var now []engine.ShardState
	until(ctx, "the other scheduler has taken over all shards of the paused scheduler", func() bool {
		now = c.shards(ctx, shards)
		return len(ownedBy(leader, now)) == 0
	})
	tried, stale := 0, 0
	for n := range was {
		s := states[n]
		s.Closed++
		tried++
		switch err := c.store.Timers().Advance(ctx, uint16(n), s); {
		case err == nil:
			stale++
		case notify.KindOf(err) != notify.KindConflict:
			panic(err)
		}
	}
	rig.Ok(leader.Signal(syscall.SIGCONT))
	calls := c.waitForCallbacks(ctx, due)
	// The scheduler must notice that it has lost the shards. Later it acquires its part of the
	// shards again, with new terms.
	lost := 0.0
	until(ctx, "the paused scheduler has noticed that it has lost its shards", func() bool {
		m, err := leader.Metrics(ctx)
		if err != nil {
			return false // the process has only just continued
		}
		lost = m["notifyd_timer_shards_lost_total"]
		return lost >= float64(len(was))
	})
	for n, s := range now {
		later := rig.Must(c.store.Timers().Shard(ctx, uint16(n)))
		if was[n] && (later.Term < s.Term || s.Term <= states[n].Term) {
			stale++
		}
	}
	r.accepted, r.lost, r.early, r.duplicates = int64(len(due)), calls.lost, calls.early, calls.twice
	r.ok = r.lost == 0 && r.early == 0 && r.duplicates == 0 && stale == 0 && tried > 0
	r.line = fmt.Sprintf("paused_s=%.0f shards=%d of_the_paused=%d stale_writes_tried=%d stale_writes_accepted=%d given_up=%.0f triggers=%d lost=%d early=%d called_twice=%d",
		paused.Seconds(), shards, len(was), tried, stale, lost, len(due), r.lost, r.early, r.duplicates)
	return r
}

// workerKilled kills one of two workers under load. The other worker takes over the partitions. No
// message is lost. Receivers may be sent twice, but not more than the rows record.
func workerKilled(ctx context.Context, c *cluster) (r outcome) {
	began := time.Now()
	before := c.totals(ctx)
	t := c.traffic(ctx, prefix("worker"), critical, rest, stream{name: "more", categories: []string{"transactional"}})
	defer t.end()
	rig.Ok(rig.Pause(ctx, warm))
	c.f.Remove(c.processesOf("worker")[0])
	killed := time.Now()
	rig.Ok(rig.Pause(ctx, c.o.down))
	t.end()
	ids := t.ids()
	r.lost = c.waitDelivered(ctx, ids)
	gap := c.slowest(ctx, t, killed)
	after := c.totals(ctx)
	bound := c.resent(ctx, began)
	r.accepted, r.duplicates = int64(len(ids)), after.Duplicates-before.Duplicates
	reordered := after.Reordered - before.Reordered
	r.ok = r.lost == 0 && r.duplicates <= bound && reordered == 0
	r.line = fmt.Sprintf("accepted=%d lost=%d duplicates=%d bound=%d reordered=%d longest_wait_s=%.1f", r.accepted, r.lost, r.duplicates, bound, reordered, gap.Seconds())
	return r
}

// resent returns the largest allowed number of duplicates: the number of receivers that the rows
// record as sent again, for requests that were accepted at the given time or later.
func (c *cluster) resent(ctx context.Context, since time.Time) int64 {
	return rig.Must(rig.Resent(ctx, c.store, since))
}

// slowest returns the longest time from the answer 201 to the call of the provider. Only requests
// that were accepted within 3 s before or after the given moment count.
func (c *cluster) slowest(ctx context.Context, t *traffic, moment time.Time) (worst time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.answers {
		a := &t.answers[i]
		if a.id == "" || a.at.Sub(moment).Abs() > 3*time.Second {
			continue
		}
		at := rig.Must(c.v.SentAt(ctx, a.id))
		worst = max(worst, at.Sub(a.at))
	}
	return worst
}
