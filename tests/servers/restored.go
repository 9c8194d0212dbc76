package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// checkpointGap is the longest time between two checkpoints of the consumer groups.
const checkpointGap = 65 * time.Second

// restored deletes all data of Cassandra, PostgreSQL and Redis. Kafka keeps its log. Then it
// restores Cassandra and PostgreSQL from backups that were made under load, and starts Redis empty.
// These rules must hold:
//
//   - Every immediate message reaches a terminal state, even if it was accepted after the backups.
//   - Every schedule or trigger from before the Cassandra backup is executed. It may be late, but
//     never early. Triggers from after the backup are lost.
//   - Only messages sent after the start of the Cassandra backup are repeated.
func restored(ctx context.Context, c *cluster) (r outcome) {
	began := time.Now()
	before := c.totals(ctx)
	name := prefix("restored")
	t := c.traffic(ctx, name, critical, rest)
	defer t.end()
	rig.Ok(rig.Pause(ctx, checkpointGap))
	// The due times begin before the backups and end long after the loss of the data.
	from := time.Now().Add(5 * time.Second)
	pushes := c.schedulePushes(ctx, name, 200, from, 3*c.o.down)
	triggers := c.registerTriggers(ctx, 200, from, 3*c.o.down)
	rig.Ok(rig.Pause(ctx, 10*time.Second))

	taken := time.Now()
	c.script(ctx, "cassandra", "snapshot", name)
	dump := filepath.Join(c.dir, name+".sql")
	c.postgres(ctx, "pg_dump", "--file", dump)
	// From now on the provider rejects some pushes. Each of these waits for its next attempt as a
	// timer in Cassandra. The backup does not have these timers.
	rig.Ok(c.v.Rule(ctx, fmt.Sprintf(`{"provider":"apns","rate":0.1,"for":%q,"do":"error","code":"TooManyRequests","retry_after":"10m"}`, c.o.down)))
	forgotten := c.registerTriggers(ctx, 20, time.Now().Add(time.Hour), time.Minute)
	rig.Ok(rig.Pause(ctx, c.o.down))
	t.end()
	answer, running := c.restoreServers(ctx, taken)
	if running == nil || !strings.Contains(answer, "cluster_running") {
		panic(errors.Join(fmt.Errorf("restore-servers must refuse with cluster_running while processes run, but it printed:\n%s", answer), running))
	}

	lost := time.Now()
	for _, p := range c.f.Processes() {
		c.f.Remove(p)
	}
	rig.Must(c.v.Die(ctx, "", 0))
	for _, server := range []string{"cassandra", "redis"} {
		c.kill(ctx, server)
	}
	c.script(ctx, "cassandra", "restore", name)
	emptyRedis()
	c.startServers(ctx)
	c.postgres(ctx, "psql", "--quiet", "--command", "DROP SCHEMA public CASCADE")
	c.postgres(ctx, "psql", "--quiet", "--command", "CREATE SCHEMA public AUTHORIZATION pg_database_owner")
	c.postgres(ctx, "psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--output", os.DevNull, "--file", dump)
	// Try again, because for a while killed processes still count as running.
	until(ctx, "the servers are prepared", func() bool {
		answer, running = c.restoreServers(ctx, taken)
		if running != nil && !strings.Contains(answer, "cluster_running") {
			panic(fmt.Errorf("restore-servers: %w\n%s", running, answer))
		}
		return running == nil
	})
	fmt.Printf("  %s\n", strings.ReplaceAll(strings.TrimSpace(answer), "\n", "\n  "))
	back := time.Now()
	rig.Ok(c.v.Restart(ctx, ""))
	c.repair(ctx)
	ready := time.Now()

	ids := append(t.ids(), pushes.IDs()...)
	missing := c.waitDelivered(ctx, ids)
	open := int64(0)
	if missing == 0 { // otherwise countUnended would wait rig.Patience for the missing ids
		open = c.countUnended(ctx, ids)
	}
	calls := c.waitForCallbacks(ctx, triggers)
	drained := time.Since(ready)
	early := c.sentEarly(ctx, pushes) + calls.early
	// Count calls from 5 s before the backup: a call that had begun when the backup started has no
	// outcome in the backup, so it may be repeated.
	since := taken.Add(-5 * time.Second)
	within := func(at []time.Time) (n int64) {
		for _, one := range at {
			if one.After(since) && one.Before(lost) {
				n++
			}
		}
		return n
	}
	bound := within(c.deliveries(ctx, ids))
	twiceBound := int64(0)
	for _, at := range calls.first {
		twiceBound += within([]time.Time{at})
	}
	gone := int64(0)
	for id := range forgotten {
		if _, err := c.cl.TriggerStatus(ctx, id); err != nil {
			gone++
		}
	}
	rep := rig.Must(c.v.AuditSince(ctx, began))
	after := c.totals(ctx)
	r.accepted, r.lost, r.early = int64(len(ids)+len(triggers)), missing+open+calls.lost, early
	r.duplicates = after.Duplicates - before.Duplicates
	r.ok = r.lost == 0 && r.early == 0 && rep.Drift == 0 && r.duplicates <= bound && calls.twice <= twiceBound && bound > 0 && gone == int64(len(forgotten))
	r.line = fmt.Sprintf("copy_to_loss_s=%.0f restore_s=%.1f drained_s=%.1f accepted=%d lost=%d never_sent=%d without_end=%d repeated=%d bound=%d called_twice=%d called_bound=%d early=%d forgotten=%d drift=%d",
		lost.Sub(taken).Seconds(), back.Sub(lost).Seconds(), drained.Seconds(), r.accepted, r.lost, missing, open, r.duplicates, bound, calls.twice, twiceBound, r.early, gone, rep.Drift)
	return r
}

// restoreServers runs the command "notifyd restore-servers" with the time of the backup.
func (c *cluster) restoreServers(ctx context.Context, backupTime time.Time) (string, error) {
	return c.f.Command(ctx, nil, "restore-servers", "--taken", backupTime.UTC().Format(time.RFC3339Nano), "--config", c.f.Engines())
}

// postgres runs a command-line tool of PostgreSQL on the database that notifyd uses.
func (c *cluster) postgres(ctx context.Context, tool string, args ...string) {
	dsn := "postgres://notifyd@" + c.o.Postgres + "/postgres?sslmode=disable"
	if out, err := exec.CommandContext(ctx, tool, append(args, dsn)...).CombinedOutput(); err != nil {
		panic(fmt.Errorf("%s: %w\n%s", tool, err, out))
	}
}
