package main

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// cassandraStopped kills the only Cassandra node. While the node is down, notifyd refuses triggers
// and scheduled pushes, and accepts immediate pushes. When the node is back, every acknowledged
// message is delivered exactly once. Pushes and triggers that were scheduled before the fault are
// not early.
func cassandraStopped(ctx context.Context, c *cluster) (r outcome) {
	before := c.totals(ctx)
	name := prefix("cassandra")
	from := time.Now().Add(15 * time.Second)
	pushes := c.schedulePushes(ctx, name, 200, from, c.o.down)
	triggers := c.registerTriggers(ctx, 200, from, c.o.down)
	t := c.traffic(ctx, name, critical, rest)
	defer t.end()
	rig.Ok(rig.Pause(ctx, warm+max(time.Until(from), 0)))
	c.kill(ctx, "cassandra")
	killed := time.Now()
	var later counts
	for n := 0; time.Since(killed) < c.o.down; n++ {
		at := time.Now().Add(time.Hour)
		var err error
		if n%2 == 0 {
			_, err = c.cl.Trigger(ctx, api.Trigger{CallbackURL: c.urls + "/never", FireAt: &at}, "")
		} else {
			_, err = c.cl.Send(ctx, api.Notification{
				Channel: "push", Category: "alert", To: api.Receiver{UserID: name, Address: rig.Address("push", name)}, Content: api.Content{Body: "never"}, ScheduledAt: &at,
			}, "")
		}
		later.note(err)
		rig.Ok(rig.Pause(ctx, 250*time.Millisecond))
	}
	back := time.Now()
	c.start(ctx, "cassandra")
	ready := time.Now()
	at := ready.Add(time.Hour)
	rig.Ok(rig.Insist(ctx, func() error {
		_, err := c.cl.Trigger(ctx, api.Trigger{CallbackURL: c.urls + "/never", FireAt: &at}, "")
		return err
	}))
	again := time.Now()
	rig.Ok(rig.Pause(ctx, warm))
	t.end()
	ids := append(t.ids(), pushes.IDs()...)
	r.lost = c.waitDelivered(ctx, ids)
	calls := c.waitForCallbacks(ctx, triggers)
	drained := time.Since(ready)
	r.early = c.sentEarly(ctx, pushes)
	after := c.totals(ctx)
	r.accepted, r.lost, r.early = int64(len(ids)+len(triggers)), r.lost+calls.lost, r.early+calls.early
	r.duplicates = after.Duplicates - before.Duplicates
	kept, more := t.count("critical", killed, back), t.count("rest", killed, back)
	refused := kept.refused + more.refused + kept.other + more.other
	if later.example != nil {
		fmt.Printf("  an answer was neither 201 nor 503: %v\n", later.example)
	}
	r.ok = r.lost == 0 && r.early == 0 && r.duplicates == 0 && calls.twice == 0 && kept.accepted > 0 && more.accepted > 0 && refused == 0 &&
		later.accepted == 0 && later.refused > 0 && later.noRetry == 0 && later.other == 0
	r.line = fmt.Sprintf("down_s=%.0f later_refused=%d later_accepted=%d without_retry_after=%d other=%d immediate_accepted=%d immediate_refused=%d accepted=%d lost=%d duplicates=%d called_twice=%d early=%d start_s=%.1f resumed_s=%.1f drained_s=%.1f",
		back.Sub(killed).Seconds(), later.refused, later.accepted, later.noRetry, later.other, kept.accepted+more.accepted, refused, r.accepted, r.lost, r.duplicates, calls.twice, r.early,
		ready.Sub(back).Seconds(), again.Sub(ready).Seconds(), drained.Seconds())
	return r
}

// redisEmptied kills Redis, deletes its data and starts it again. This deletes the leases, the
// seen-filter and the delay queue. The schedulers acquire the shards again. They release timers
// again that they had released but not yet removed from the store. No message is sent twice to a
// provider, and no message is lost.
func redisEmptied(ctx context.Context, c *cluster) (r outcome) {
	before := c.totals(ctx)
	released := c.released(ctx)
	name := prefix("redis")
	from := time.Now().Add(15 * time.Second)
	pushes := c.schedulePushes(ctx, name, 400, from, c.o.down+20*time.Second)
	t := c.traffic(ctx, name, critical, rest)
	defer t.end()
	rig.Ok(rig.Pause(ctx, warm+max(time.Until(from), 0)))
	c.kill(ctx, "redis")
	killed := time.Now()
	rig.Ok(rig.Pause(ctx, c.o.down))
	emptyRedis()
	back := time.Now()
	c.start(ctx, "redis")
	ready := time.Now()
	c.waitOwned(ctx)
	owned := time.Since(ready)
	triggers := c.registerTriggers(ctx, 100, time.Now().Add(5*time.Second), 5*time.Second)
	t.end()
	ids := append(t.ids(), pushes.IDs()...)
	r.lost = c.waitDelivered(ctx, ids)
	calls := c.waitForCallbacks(ctx, triggers)
	r.early = c.sentEarly(ctx, pushes)
	now := c.released(ctx)
	after := c.totals(ctx)
	r.accepted, r.lost, r.early = int64(len(ids)+len(triggers)), r.lost+calls.lost, r.early+calls.early
	r.duplicates = after.Duplicates - before.Duplicates
	second := now - released - float64(len(pushes)+len(triggers))
	kept, more := t.count("critical", killed, back), t.count("rest", killed, back)
	refused := kept.refused + more.refused + kept.other + more.other
	r.ok = r.lost == 0 && r.early == 0 && r.duplicates == 0 && calls.twice == 0 && second > 0 && kept.accepted > 0 && more.accepted > 0
	r.line = fmt.Sprintf("down_s=%.0f emptied=yes released_again=%.0f immediate_accepted=%d immediate_refused=%d accepted=%d lost=%d duplicates=%d called_twice=%d early=%d owned_again_s=%.1f",
		back.Sub(killed).Seconds(), second, kept.accepted+more.accepted, refused, r.accepted, r.lost, r.duplicates, calls.twice, r.early, owned.Seconds())
	return r
}

// released returns the number of timers that all processes have released.
func (c *cluster) released(ctx context.Context) (n float64) {
	for _, p := range c.f.Processes() {
		m := rig.Must(p.Metrics(ctx))
		n += m["notifyd_timers_released_total"]
	}
	return n
}

// putUser stores the profile of a user, with the address that the load uses. optOut has the
// channels and categories in which the user wants no messages.
func (c *cluster) putUser(ctx context.Context, user string, optOut ...string) error {
	_, err := c.cl.PutUser(ctx, api.User{UserID: user, Addresses: map[string][]string{"push": {rig.Address("push", user)}}, OptOut: optOut})
	return err
}

// postgresStopped kills the PostgreSQL server. While it is down, workers use the profiles that they
// have read before, and notifyd refuses an opt-out. When the server is back, notifyd accepts the
// opt-out and sends no more pushes to that user.
func postgresStopped(ctx context.Context, c *cluster) (r outcome) {
	before := c.totals(ctx)
	name := prefix("postgres")
	known := stream{name: "known", categories: []string{"otp", "transactional"}, ordered: true, profiles: true}
	for u := range max(int(c.o.rate*perUser.Seconds()), 1) {
		user := fmt.Sprintf("%s-known-%d", name, u)
		rig.Ok(rig.Insist(ctx, func() error { return c.putUser(ctx, user) }))
	}
	one := name + "-known-0"
	t := c.traffic(ctx, name, known)
	defer t.end()
	rig.Ok(rig.Pause(ctx, warm))
	c.kill(ctx, "postgres")
	killed := time.Now()
	delivered := rig.Must(c.v.Delivered(ctx))
	var optOut counts
	for time.Since(killed) < c.o.down {
		optOut.note(c.putUser(ctx, one, "push"))
		rig.Ok(rig.Pause(ctx, 250*time.Millisecond))
	}
	back := time.Now()
	meanwhile := rig.Must(c.v.Delivered(ctx))
	c.start(ctx, "postgres")
	t.end()
	// First wait until all messages are delivered. Otherwise the opt-out would suppress some of
	// them.
	ids := t.ids()
	r.lost = c.waitDelivered(ctx, ids)
	ready := time.Now()
	rig.Ok(rig.Insist(ctx, func() error { return c.putUser(ctx, one, "push") }))
	again := time.Since(ready)
	// An opt-out must take effect within a second.
	rig.Ok(rig.Pause(ctx, time.Second))
	muted := c.send(ctx, stream{categories: []string{"transactional"}, profiles: true}, one, 0)
	rig.Ok(muted.err)
	status := ""
	until(ctx, "the push after the opt-out has a terminal state", func() bool {
		st, err := c.cl.Notification(ctx, muted.id)
		if k := notify.KindOf(err); err != nil && k != notify.KindUnavailable && k != notify.KindNotFound {
			panic(err)
		}
		status = st.Status
		return ended(status)
	})
	after := c.totals(ctx)
	r.accepted, r.duplicates = int64(len(ids)), after.Duplicates-before.Duplicates
	kept := t.count("known", killed, back)
	if optOut.example != nil {
		fmt.Printf("  an answer was neither 201 nor 503: %v\n", optOut.example)
	}
	r.ok = r.lost == 0 && r.duplicates == 0 && kept.accepted > 0 && kept.refused+kept.other == 0 && meanwhile > delivered &&
		optOut.accepted == 0 && optOut.refused > 0 && optOut.other == 0 && status == notify.Suppressed.String()
	r.line = fmt.Sprintf("down_s=%.0f known_accepted=%d known_refused=%d delivered_meanwhile=%d opt_out_refused=%d opt_out_accepted=%d accepted=%d lost=%d duplicates=%d opt_out_again_s=%.1f then=%s",
		back.Sub(killed).Seconds(), kept.accepted, kept.refused+kept.other, meanwhile-delivered, optOut.refused, optOut.accepted, r.accepted, r.lost, r.duplicates, again.Seconds(), status)
	return r
}
