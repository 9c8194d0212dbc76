package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// Settings of the worker that is stopped or cut off. It sends slowly, so that most of its fan-outs
// are not yet sent when the fault begins. It claims small windows of receivers, so that few calls
// can be repeated.
const (
	slowCalls  = 20 // workers.push.in_flight: largest number of receivers in calls at the same time
	slowWindow = 10 // workers.push.window
	slowAhead  = 2  // workers.push.ahead

	fanouts       = 60
	fanoutTargets = 200 // receivers of each fan-out
)

// workerPaused stops a worker with SIGSTOP while it sends fan-outs. The other worker takes over the
// partitions and finishes all requests. Then the first worker continues. At first it does not know
// that it has lost its partitions.
func workerPaused(ctx context.Context, c *cluster) outcome {
	return c.ownerFault(ctx, "paused", func(p *rig.Process, _ *enclosure) func() {
		rig.Ok(p.Signal(syscall.SIGSTOP))
		return func() { rig.Ok(p.Signal(syscall.SIGCONT)) }
	})
}

// workerCut cuts a worker off from Kafka, Cassandra, Redis and PostgreSQL, but not from the
// providers. The connections stay open. What the worker writes during the cut arrives when the
// network is back. By then the other worker has made all its writes.
func workerCut(ctx context.Context, c *cluster) outcome {
	return c.ownerFault(ctx, "cut", func(_ *rig.Process, e *enclosure) func() {
		e.log.shut()
		e.servers.shut()
		return func() { e.servers.open(); e.log.open() }
	})
}

// workerCutFromLog cuts a worker off from Kafka only. The worker still reaches the store and the
// providers. So it could claim and call receivers that it has already read, while the other worker
// calls the same receivers.
func workerCutFromLog(ctx context.Context, c *cluster) outcome {
	return c.ownerFault(ctx, "cut-log", func(_ *rig.Process, e *enclosure) func() {
		e.log.shut()
		return e.log.open
	})
}

// ownerFault tests a fault of the worker that owns partitions (the old owner). It calls the
// function interrupt, which stops the old owner or cuts it off. It waits until the other worker
// (the successor) has finished all requests. Then it calls the function that interrupt has returned
// (resume), and the old owner continues. These rules must hold:
//
//   - No message is lost or out of order.
//   - For each request, the number of receivers that the providers got twice is not larger than
//     the number of repeated receivers in the rows.
//   - No row that the successor has finished changes.
//   - After resume, at most slowCalls calls are repeated: the calls that the old owner had begun
//     before the fault.
func (c *cluster) ownerFault(ctx context.Context, name string, interrupt func(*rig.Process, *enclosure) (resume func())) (r outcome) {
	began := time.Now()
	before := c.totals(ctx)
	servers := append(strings.Split(c.o.Cassandra, ","), c.o.Redis, c.o.Postgres)
	e := newEnclosure(servers, strings.Split(c.o.Kafka, ","), rig.Must(c.v.Providers(ctx)))
	defer e.end()
	// Replace one of the workers with a slow worker that runs in the network e.
	c.endProcess(c.processesOf("worker")[0])
	p := c.run(ctx, e, "worker", fmt.Sprintf("workers.push.in_flight=%d", slowCalls), fmt.Sprintf("workers.push.window=%d", slowWindow), fmt.Sprintf("workers.push.ahead=%d", slowAhead))
	defer c.f.Remove(p) // kills the worker if this function panics before the worker has ended
	c.waitForMembers(ctx, 2)
	users := prefix(name)
	t := c.traffic(ctx, users, critical)
	defer t.end()
	rig.Ok(rig.Pause(ctx, warm))
	bases := c.sendFanOuts(ctx, users, fanouts)
	c.waitForCalls(ctx, bases, fanouts*fanoutTargets/2)

	gone := time.Now()
	resume := interrupt(p, e)
	c.waitForMembers(ctx, 1)
	took := time.Since(gone)
	// Wait until the calls that the worker had begun have ended. A call takes less than a second.
	rig.Ok(rig.Pause(ctx, 2*time.Second))
	quiet := e.sentBytes()
	rig.Ok(rig.Pause(ctx, c.o.down))
	t.end()
	ids := t.ids()
	r.lost = c.waitFinished(ctx, ids, bases)
	rows := c.doneRows(ctx, append(basesOf(ids), bases...))
	bytesAway := e.sentBytes() - quiet
	ended := c.totals(ctx)

	resume()
	awayFor := time.Since(gone)
	c.waitForMembers(ctx, 2)
	// The old owner must accept new work, and a graceful stop of it must succeed.
	more := c.sendFanOuts(ctx, users+"-more", 10)
	r.lost += c.waitFinished(ctx, nil, more)
	c.endProcess(p)
	overwritten := c.countChanged(ctx, rows)
	beyond := c.countUnrecorded(ctx, append(bases, more...))
	after := c.totals(ctx)
	// All requests had ended before the call of resume. So every repeated call to a provider after
	// that is from the old owner.
	late := after.Duplicates - ended.Duplicates
	bound := c.resent(ctx, began)
	r.accepted, r.duplicates = int64(len(ids)+(len(bases)+len(more))*fanoutTargets), after.Duplicates-before.Duplicates
	reordered := after.Reordered - before.Reordered
	r.ok = r.lost == 0 && reordered == 0 && overwritten == 0 && r.duplicates <= bound && beyond == 0 && late <= slowCalls && bytesAway <= quietBytes(awayFor)
	r.line = fmt.Sprintf("away_s=%.0f taken_over_s=%.1f accepted=%d lost=%d duplicates=%d bound=%d beyond_rows=%d late_calls=%d late_limit=%d bytes_to_providers=%d bytes_limit=%d rows=%d overwritten=%d reordered=%d",
		awayFor.Seconds(), took.Seconds(), r.accepted, r.lost, r.duplicates, bound, beyond, late, slowCalls, bytesAway, quietBytes(awayFor), len(rows), overwritten, reordered)
	return r
}

// quietBytes returns the number of bytes that an interrupted worker may send to providers during a
// fault of the given length. It may finish slowCalls calls, of a little more than 100 bytes each,
// and send pings on its connections. If it began new calls, it would send many times more.
func quietBytes(away time.Duration) int64 { return 100 * (slowCalls + int64(away.Seconds())) }

// waitForMembers waits until the consumer group of pushes has n members and each of them has
// partitions.
func (c *cluster) waitForMembers(ctx context.Context, n int) {
	cl := rig.Must(kgo.NewClient(kgo.SeedBrokers(strings.Split(c.o.Kafka, ",")...)))
	defer cl.Close()
	group := notify.Lane{Channel: notify.Push}.Group()
	until(ctx, fmt.Sprintf("%d members of %s have partitions", n, group), func() bool {
		all, err := kadm.NewClient(cl).DescribeGroups(ctx, group)
		g := all[group]
		if err = errors.Join(err, g.Err); err != nil || g.State != "Stable" || len(g.Members) != n {
			return false // the function until tries again, also after an error
		}
		for i := range g.Members {
			a, ok := g.Members[i].Assigned.AsConsumer()
			if !ok || len(a.Topics) == 0 {
				return false
			}
		}
		return true
	})
}

// sendFanOuts sends n fan-outs of fanoutTargets receivers each.
func (c *cluster) sendFanOuts(ctx context.Context, users string, n int) (bases []notify.Base) {
	for i := range n {
		f := api.Fanout{Channel: "push", Category: "transactional", Content: api.Content{Title: "Fault", Body: "to many"}}
		for k := range fanoutTargets {
			user := fmt.Sprintf("%s-fan-%d-%d", users, i, k)
			f.Receivers = append(f.Receivers, api.Receiver{UserID: user, Address: rig.Address("push", user)})
		}
		var made api.FanoutResult
		rig.Ok(rig.Insist(ctx, func() (err error) { made, err = c.cl.Fanout(ctx, f, ""); return err }))
		if made.Accepted != fanoutTargets {
			panic(fmt.Errorf("only %d of %d receivers of a fan-out were accepted", made.Accepted, fanoutTargets))
		}
		id := rig.Must(notify.ParseID(made.FirstID))
		bases = append(bases, id.Base)
	}
	return bases
}

// waitForCalls waits until providers have accepted at least n receivers of the fan-outs.
func (c *cluster) waitForCalls(ctx context.Context, bases []notify.Base, n int64) {
	until(ctx, fmt.Sprintf("%d receivers were called", n), func() bool {
		fans := rig.Must(c.v.Fans(ctx))
		sum := int64(0)
		for _, b := range bases {
			sum += fans[b].IDs
		}
		return sum >= n
	})
}

// waitFinished waits until every id and every receiver of the fan-outs was sent to a provider, and
// the API reports the fan-outs as finished. It waits for rig.Patience at most, and returns the
// number of ids and receivers that are missing then.
func (c *cluster) waitFinished(ctx context.Context, ids []string, bases []notify.Base) (lost int64) {
	lost = c.waitDelivered(ctx, ids)
	var waited rig.Endurance
	for _, b := range bases {
		for {
			sum, err := c.cl.Summary(ctx, notify.ID{Base: b}.String(), api.Page{Limit: fanoutTargets})
			if err != nil && notify.KindOf(err) != notify.KindUnavailable {
				panic(err)
			}
			fans := rig.Must(c.v.Fans(ctx))
			open := fanoutTargets - min(int64(sum.Counts[notify.Sent.String()]+sum.Counts[notify.Delivered.String()]), fans[b].IDs)
			if open == 0 {
				break
			}
			if waited.Over() {
				fmt.Printf("  lost: providers accepted %[2]d receivers of the fan-out %[1]s; the API reports the states %[3]v\n", b, fans[b].IDs, sum.Counts)
				lost += open
				break
			}
			rig.Ok(rig.Pause(ctx, 200*time.Millisecond))
		}
	}
	return lost
}

func basesOf(ids []string) (out []notify.Base) {
	for _, text := range ids {
		if id, err := notify.ParseID(text); err == nil {
			out = append(out, id.Base)
		}
	}
	return out
}

// rowsOf reads the outcome rows of requests from Cassandra.
func (c *cluster) rowsOf(ctx context.Context, bases []notify.Base) map[notify.RowKey]notify.Row {
	out := map[notify.RowKey]notify.Row{}
	for _, b := range bases {
		rig.Ok(c.store.Status().Request(ctx, b, func(row *notify.Row) error {
			if row.Key.Kind == notify.RowOutcome {
				out[row.Key] = *row
			}
			return nil
		}))
	}
	return out
}

// doneRows waits until every outcome row of the requests is finished, and returns the rows.
func (c *cluster) doneRows(ctx context.Context, bases []notify.Base) (rows map[notify.RowKey]notify.Row) {
	until(ctx, "every outcome row is done", func() bool {
		rows = c.rowsOf(ctx, bases)
		for _, row := range rows {
			if !row.Done {
				return false
			}
		}
		return len(rows) > 0
	})
	return rows
}

// countChanged reads again the rows that the map before contains, and returns how many of them have
// changed.
func (c *cluster) countChanged(ctx context.Context, before map[notify.RowKey]notify.Row) (n int64) {
	seen := map[notify.Base]bool{}
	var bases []notify.Base
	for k := range before {
		if !seen[k.Chunk.Base] {
			seen[k.Chunk.Base] = true
			bases = append(bases, k.Chunk.Base)
		}
	}
	now := c.rowsOf(ctx, bases)
	for k, row := range before {
		if current := now[k]; !reflect.DeepEqual(row, current) {
			if n++; n <= 5 {
				fmt.Printf("  overwritten: %+v: done to %d, started to %d, starts=%d resent=%d done=%v; it was done to %d, started to %d, starts=%d resent=%d done=%v\n",
					k, current.DoneUpTo, current.StartedUpTo, current.Starts, current.Resent, current.Done, row.DoneUpTo, row.StartedUpTo, row.Starts, row.Resent, row.Done)
			}
		}
	}
	return n
}

// countUnrecorded returns the number of receivers that were sent twice although no row of their
// request records it. It compares the numbers of each request. Totals would not be enough, because
// one row may record more receivers than were really sent twice: in the totals, this surplus would
// hide a record that is missing for another request.
func (c *cluster) countUnrecorded(ctx context.Context, bases []notify.Base) (n int64) {
	fans := rig.Must(c.v.Fans(ctx))
	for _, base := range bases {
		resent := int64(0)
		rig.Ok(c.store.Status().Request(ctx, base, func(row *notify.Row) error {
			resent += int64(row.Resent)
			return nil
		}))
		n += max(0, fans[base].Duplicates-resent)
	}
	return n
}
