package main

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// spread returns the time of event i of n events, which are spread evenly over the duration span.
// The parameter start is the time of event 0.
func spread(start time.Time, span time.Duration, i, n int) time.Time {
	return start.Add(span * time.Duration(i) / time.Duration(n)).UTC().Truncate(time.Millisecond)
}

// registerTriggers registers n triggers. The parameter start is the due time of the first, and the
// others are spread evenly over the duration span.
func (c *cluster) registerTriggers(ctx context.Context, n int, start time.Time, span time.Duration) rig.Dues {
	out := rig.Dues{}
	const size = 100
	for first := 0; first < n; first += size {
		batch := make([]api.Trigger, min(size, n-first))
		for i := range batch {
			batch[i] = rig.Due(c.urls+"/fault", spread(start, span, first+i, n))
		}
		var made api.TriggerBatchResult
		rig.Ok(rig.Insist(ctx, func() (err error) { made, err = c.cl.TriggerBatch(ctx, batch, ""); return err }))
		for i, one := range made.Results {
			if one.Error != nil {
				panic(fmt.Errorf("only %d of %d triggers were accepted; one was rejected: %+v", made.Accepted, len(batch), *one.Error))
			}
			out[one.TriggerID] = *batch[i].FireAt
		}
	}
	return out
}

// oneTrigger registers one trigger. If the request fails, it does not try again.
func (c *cluster) oneTrigger(ctx context.Context, at time.Time) (rig.Dues, error) {
	t := rig.Due(c.urls+"/fault", at)
	made, err := c.cl.Trigger(ctx, t, "")
	if err != nil {
		return nil, err
	}
	return rig.Dues{made.TriggerID: *t.FireAt}, nil
}

// schedulePushes schedules n pushes. The parameter start is the due time of the first, and the
// others are spread evenly over the duration span.
func (c *cluster) schedulePushes(ctx context.Context, prefix string, n int, start time.Time, span time.Duration) rig.Dues {
	out := rig.Dues{}
	const size = 100
	for first := 0; first < n; first += size {
		batch := make([]api.Notification, min(size, n-first))
		for i := range batch {
			at := spread(start, span, first+i, n)
			user := fmt.Sprintf("%s-later-%d", prefix, first+i)
			batch[i] = api.Notification{
				Channel: "push", Category: "alert", To: api.Receiver{UserID: user, Address: rig.Address("push", user)},
				Content: api.Content{Body: "later"}, ScheduledAt: &at,
			}
		}
		var made api.BatchResult
		rig.Ok(rig.Insist(ctx, func() (err error) { made, err = c.cl.SendBatch(ctx, batch, ""); return err }))
		for i, one := range made.Results {
			if one.Error != nil {
				panic(fmt.Errorf("a scheduled push was refused: %s %s", one.Error.Code, one.Error.Detail))
			}
			out[one.NotificationID] = *batch[i].ScheduledAt
		}
	}
	return out
}

// sentEarly counts the pushes that reached a provider before they were due.
func (c *cluster) sentEarly(ctx context.Context, d rig.Dues) int64 {
	early, _ := rig.Must2(c.v.SentEarly(ctx, d))
	for _, x := range early {
		fmt.Printf("  early: %s was sent %s before it was due\n", x.ID, x.By)
	}
	return int64(len(early))
}

// fired is a summary of the calls that the receiver of callbacks recorded.
type fired struct {
	first map[string]time.Time // time of the first call of each trigger, by id
	lost  int64                // triggers that were not called within rig.Patience
	twice int64                // repeated calls: all calls of a trigger except its first
	early int64                // triggers that were called before they were due
}

// waitForCallbacks waits until every trigger was called, but not longer than rig.Patience.
func (c *cluster) waitForCallbacks(ctx context.Context, d rig.Dues) fired {
	var waited rig.Endurance
	f := rig.Must(c.v.Fired(ctx, d))
	for ; len(f.Lost) > 0 && !waited.Over(); f = rig.Must(c.v.Fired(ctx, d)) {
		rig.Ok(rig.Pause(ctx, 200*time.Millisecond))
	}
	for _, x := range f.Early {
		fmt.Printf("  early: %s was called %s before it was due\n", x.ID, x.By)
	}
	for _, id := range f.Lost[:min(len(f.Lost), 5)] {
		st, err := c.cl.TriggerStatus(ctx, id)
		fmt.Printf("  lost: %s %+v %v\n", id, st, err)
	}
	return fired{f.First, int64(len(f.Lost)), f.Twice, int64(len(f.Early))}
}

// shardsOf returns the shard of each trigger. It reads the timer rows in Cassandra.
func (c *cluster) shardsOf(ctx context.Context, d rig.Dues, shards int) map[string]int {
	ids, minutes := map[notify.Base]string{}, map[int64]bool{}
	for id, due := range d {
		base := rig.Must(notify.ParseBase(strings.TrimPrefix(id, "trg_")))
		ids[base] = id
		minutes[due.UnixMilli()/60_000] = true
	}
	out := map[string]int{}
	for minute := range minutes {
		for shard := range shards {
			rows := rig.Must(c.store.Timers().Scan(ctx, engine.TimerPartition{Bucket: minute, Shard: uint16(shard)}, engine.TimerCursor{}, math.MaxInt64, 1_000_000))
			for i := range rows {
				if len(rows[i].ID) < len(notify.Base{}) {
					continue
				}
				if id, ours := ids[notify.Base(rows[i].ID[:len(notify.Base{})])]; ours {
					out[id] = shard
				}
			}
		}
	}
	if len(out) != len(d) {
		panic(fmt.Errorf("only %d of %d acknowledged triggers have a timer row", len(out), len(d)))
	}
	return out
}
