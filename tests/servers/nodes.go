package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	kafka "github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// gapLimit is the longest time without an accepted push, or without a call of a provider, after one
// of three nodes was killed. Brokers need some seconds to elect leaders, and a consumer group must
// wait for a session time-out. The limit also allows for a machine on which six servers share two
// cores.
const gapLimit = time.Minute

// brokerLost kills one of three brokers and leaves it dead.
func brokerLost(ctx context.Context, c *cluster) outcome { return c.oneLost(ctx, "kafka") }

// nodeLost kills one of three Cassandra nodes and leaves it dead.
func nodeLost(ctx context.Context, c *cluster) outcome { return c.oneLost(ctx, "cassandra") }

// oneLost kills one node of a server under load and does not start it again. All messages that were
// acknowledged before or after the kill must be delivered, in order. The remaining copies of the
// data must have a terminal state for each of these messages. The time without accepted or sent
// pushes is at most gapLimit.
func (c *cluster) oneLost(ctx context.Context, server string) (r outcome) {
	if c.forGood[server] { // an earlier run of this fault has killed the node
		delete(c.forGood, server)
		c.startServers(ctx)
	}
	began := time.Now()
	before := c.totals(ctx)
	name := prefix(server)
	from := time.Now().Add(15 * time.Second)
	pushes := c.schedulePushes(ctx, name, 200, from, c.o.down)
	triggers := c.registerTriggers(ctx, 200, from, c.o.down)
	t := c.traffic(ctx, name, critical, rest)
	defer t.end()
	rig.Ok(rig.Pause(ctx, warm+max(time.Until(from), 0)))
	c.forGood[server] = true
	gone := time.Now()
	c.kill(ctx, server)
	// While the node is dead, register triggers that become due 10 s later.
	var later counts
	meanwhile := rig.Dues{}
	for time.Since(gone) < c.o.down {
		due, err := c.oneTrigger(ctx, time.Now().Add(10*time.Second))
		later.note(err)
		for id, at := range due {
			meanwhile[id] = at
		}
		rig.Ok(rig.Pause(ctx, 100*time.Millisecond))
	}
	// From now on the service must work without interruption.
	steady := time.Now()
	until(ctx, "more than 50 requests of the stream rest are accepted", func() bool {
		return t.count("rest", steady, time.Now()).accepted > 50
	})
	t.end()
	over := time.Now()
	for id, at := range meanwhile {
		triggers[id] = at
	}
	ids := append(t.ids(), pushes.IDs()...)
	r.lost = c.waitDelivered(ctx, ids)
	calls := c.waitForCallbacks(ctx, triggers)
	r.early = c.sentEarly(ctx, pushes)
	open := c.countUnended(ctx, ids)
	sent := c.deliveries(ctx, ids)
	after := c.totals(ctx)
	bound := c.resent(ctx, began)
	r.accepted, r.lost, r.early = int64(len(ids)+len(triggers)), r.lost+calls.lost, r.early+calls.early
	r.duplicates = after.Duplicates - before.Duplicates
	reordered := after.Reordered - before.Reordered
	kept, more := t.count("critical", gone, over), t.count("rest", gone, over)
	for _, err := range []error{kept.example, more.example, later.example} {
		if err != nil {
			fmt.Printf("  an answer was neither 201 nor 503: %v\n", err)
		}
	}
	other, noRetry := kept.other+more.other+later.other, kept.noRetry+more.noRetry+later.noRetry
	acceptGap, sendGap := longestGap(t.accepted(), gone, over), longestGap(sent, gone, over)
	criticalGap := longestGap(t.accepted("critical"), gone, over)
	restGap := longestGap(t.accepted("rest"), gone, over)
	r.ok = r.lost == 0 && r.early == 0 && open == 0 && reordered == 0 && calls.twice == 0 && r.duplicates <= bound && other == 0 && noRetry == 0 &&
		later.accepted > 0 && max(criticalGap, restGap, sendGap) <= gapLimit
	r.line = fmt.Sprintf("away_s=%.0f accept_gap_s=%.1f critical_gap_s=%.1f rest_gap_s=%.1f delivery_gap_s=%.1f limit_s=%.0f critical_refused=%d rest_refused=%d later_accepted=%d later_refused=%d without_retry_after=%d other=%d accepted=%d lost=%d without_end=%d duplicates=%d bound=%d called_twice=%d early=%d reordered=%d",
		over.Sub(gone).Seconds(), acceptGap.Seconds(), criticalGap.Seconds(), restGap.Seconds(), sendGap.Seconds(), gapLimit.Seconds(), kept.refused, more.refused, later.accepted, later.refused,
		noRetry, other, r.accepted, r.lost, open, r.duplicates, bound, calls.twice, r.early, reordered)
	return r
}

// longestGap returns the longest time without an event between the times start and end. The slice
// events has the times of the events.
func longestGap(events []time.Time, start, end time.Time) (gap time.Duration) {
	events = slices.DeleteFunc(slices.Clone(events), func(t time.Time) bool { return !t.After(start) || !t.Before(end) })
	events = append(events, start, end)
	slices.SortFunc(events, time.Time.Compare)
	for i := 1; i < len(events); i++ {
		gap = max(gap, events[i].Sub(events[i-1]))
	}
	return gap
}

// deliveries returns the times of the first calls to a provider, one for each id.
func (c *cluster) deliveries(ctx context.Context, ids []string) []time.Time {
	out := make([]time.Time, len(ids))
	rig.InSteps(ctx, len(ids), 1, 8, func(ctx context.Context, i, _ int) { out[i] = rig.Must(c.v.SentAt(ctx, ids[i])) })
	return out
}

// countUnended returns the number of ids whose notification has no terminal state after
// rig.Patience. The API reads the state from the remaining copies.
func (c *cluster) countUnended(ctx context.Context, ids []string) (n int64) {
	states := make([]string, len(ids))
	rig.InSteps(ctx, len(ids), 1, 8, func(ctx context.Context, i, _ int) {
		var waited rig.Endurance
		for {
			st, err := c.cl.Notification(ctx, ids[i])
			if k := notify.KindOf(err); k != notify.KindUnavailable && k != notify.KindNotFound {
				rig.Ok(err)
			}
			if states[i] = st.Status; ended(st.Status) || waited.Over() {
				return
			}
			rig.Ok(rig.Pause(ctx, 100*time.Millisecond))
		}
	})
	for i, s := range states {
		if ended(s) {
			continue
		}
		if n++; n <= 5 {
			fmt.Printf("  no terminal state: %s is %q\n", ids[i], s)
		}
	}
	return n
}

func ended(status string) bool {
	s, ok := notify.ParseState(status)
	return ok && s.Terminal()
}

// checkCopies panics if a topic or the keyspace has too few copies: there must be one on each node.
// With fewer copies, the loss of one node could lose data, and notifyd could not prevent it.
func (c *cluster) checkCopies(ctx context.Context) {
	o := c.o
	cfg := kafka.AdminConfig{Conn: kafka.Conn{Brokers: strings.Split(o.Kafka, ",")}, Replication: o.Nodes, MinInSync: o.InSync()}
	a := rig.Must(kafka.NewAdmin(cfg))
	defer a.Close()
	want := kafka.Topics(nil)
	for name := range want {
		want[name] = 1 // every topic may have any number of partitions
	}
	seen := rig.Must(a.Describe(ctx, slices.Collect(maps.Keys(want))...))
	replicas, insync := o.Nodes, ""
	for i := range seen.Topics {
		t := &seen.Topics[i]
		replicas = min(replicas, t.Replication)
		if m := t.Settings["min.insync.replicas"]; insync == "" || m < insync {
			insync = m
		}
	}
	fmt.Printf("kafka: %d brokers, %d topics, %d copies or more, min.insync.replicas=%s\n", len(seen.Brokers), len(seen.Topics), replicas, insync)
	for _, f := range seen.Check(cfg, want) {
		if f.Wrong {
			panic(fmt.Errorf("kafka: %s: %s", f.Topic, f.Msg))
		}
	}
	if len(seen.Brokers) != o.Nodes || insync != fmt.Sprint(cfg.MinInSync) {
		panic(fmt.Errorf("kafka must have %d brokers and min.insync.replicas=%d, but has %d brokers and min.insync.replicas=%s", o.Nodes, cfg.MinInSync, len(seen.Brokers), insync))
	}
	found := rig.Must(cassandra.Doctor(ctx, o.CassandraConfig(cassandraTimeout)))
	want3 := fmt.Sprintf("%d replicas on %d nodes", o.Nodes, o.Nodes)
	replication := ""
	for _, f := range found {
		if f.Check == "replication" || f.Check == "consistency" {
			fmt.Printf("cassandra: %s\n", f.Detail)
		}
		if f.Level == "fail" {
			panic(fmt.Errorf("cassandra: %s: %s", f.Check, f.Detail))
		}
		if f.Check == "replication" && replication != want3 {
			replication = f.Detail
		}
	}
	if replication != want3 {
		panic(fmt.Errorf("cassandra must have %s, but has %q", want3, replication))
	}
}
