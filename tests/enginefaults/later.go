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
	"github.com/notifyd/notifyd/tests/internal/fleet"
	"github.com/notifyd/notifyd/tests/internal/victim"
)

// dues are triggers or scheduled pushes that were acknowledged, by id, with the
// moment from which they may go.
type dues map[string]time.Time

// insist repeats what the server asks to have repeated.
func insist(ctx context.Context, f func() error) error {
	var waited endurance
	for {
		err := f()
		if k := notify.KindOf(err); err == nil || k != notify.KindUnavailable && k != notify.KindThrottled || waited.over() {
			return err
		}
		if err := fleet.Pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// spread is the moment of the i-th of n over a span.
func spread(from time.Time, span time.Duration, i, n int) time.Time {
	return from.Add(span * time.Duration(i) / time.Duration(n)).UTC().Truncate(time.Millisecond)
}

// triggers registers n triggers, due evenly over a span.
func (c *cluster) triggers(ctx context.Context, n int, from time.Time, span time.Duration) (dues, error) {
	out := dues{}
	const size = 100
	for first := 0; first < n; first += size {
		batch := make([]api.Trigger, min(size, n-first))
		for i := range batch {
			at := spread(from, span, first+i, n)
			batch[i] = api.Trigger{CallbackURL: fmt.Sprintf("%s/fault?due=%d", c.urls, at.UnixMilli()), FireAt: &at, Exact: true, Payload: []byte(`{"n":1}`)}
		}
		var made api.TriggerBatchResult
		if err := insist(ctx, func() (err error) { made, err = c.cl.TriggerBatch(ctx, batch, ""); return err }); err != nil {
			return nil, err
		}
		for i, one := range made.Results {
			if one.Error != nil {
				return nil, fmt.Errorf("%d of %d triggers were accepted, one not: %+v", made.Accepted, len(batch), *one.Error)
			}
			out[one.TriggerID] = *batch[i].FireAt
		}
	}
	return out, nil
}

// oneTrigger registers one, and does not insist.
func (c *cluster) oneTrigger(ctx context.Context, at time.Time) (dues, error) {
	at = at.UTC().Truncate(time.Millisecond)
	made, err := c.cl.Trigger(ctx, api.Trigger{CallbackURL: fmt.Sprintf("%s/fault?due=%d", c.urls, at.UnixMilli()), FireAt: &at, Exact: true, Payload: []byte(`{"n":1}`)}, "")
	if err != nil {
		return nil, err
	}
	return dues{made.TriggerID: at}, nil
}

// pushes schedules n pushes, due evenly over a span.
func (c *cluster) pushes(ctx context.Context, prefix string, n int, from time.Time, span time.Duration) (dues, error) {
	out := dues{}
	const size = 100
	for first := 0; first < n; first += size {
		batch := make([]api.Notification, min(size, n-first))
		for i := range batch {
			at := spread(from, span, first+i, n)
			user := fmt.Sprintf("%s-later-%d", prefix, first+i)
			batch[i] = api.Notification{
				Channel: "push", Category: "alert", To: api.Receiver{UserID: user, Address: address(user)},
				Content: api.Content{Body: "later"}, ScheduledAt: &at,
			}
		}
		var made api.BatchResult
		if err := insist(ctx, func() (err error) { made, err = c.cl.SendBatch(ctx, batch, ""); return err }); err != nil {
			return nil, err
		}
		for i, one := range made.Results {
			if one.Error != nil {
				return nil, fmt.Errorf("a scheduled push was refused: %s %s", one.Error.Code, one.Error.Detail)
			}
			out[one.NotificationID] = *batch[i].ScheduledAt
		}
	}
	return out, nil
}

// sentEarly counts pushes that a provider was sent before they were due.
func (c *cluster) sentEarly(ctx context.Context, d dues) (early int64, err error) {
	for id, due := range d {
		at, err := c.v.SentAt(ctx, id)
		if err != nil {
			return early, err
		}
		if !at.IsZero() && at.Before(due) {
			early++
			fmt.Printf("  early: %s was sent %s before it was due\n", id, due.Sub(at))
		}
	}
	return early, nil
}

func (d dues) ids() (out []string) {
	for id := range d {
		out = append(out, id)
	}
	return out
}

// fired is what the receiver of triggers saw.
type fired struct {
	first map[string]time.Time // the first call of each
	lost  int64                // that never came within patience
	twice int64                // calls beyond the first
	early int64
}

// callbacks waits until every trigger was called.
func (c *cluster) callbacks(ctx context.Context, d dues) (f fired, err error) {
	var waited endurance
	for {
		f = fired{first: map[string]time.Time{}}
		if err := c.v.Calls(ctx, func(call victim.Call) {
			due, ours := d[call.ID]
			if !ours {
				return
			}
			if call.At.Before(due) {
				f.early++
				fmt.Printf("  early: %s was called %s before it was due\n", call.ID, due.Sub(call.At))
			}
			if _, again := f.first[call.ID]; again {
				f.twice++
				return
			}
			if call.Taken {
				f.first[call.ID] = call.At
			}
		}); err != nil {
			return f, err
		}
		f.lost = int64(len(d) - len(f.first))
		if f.lost == 0 || waited.over() {
			break
		}
		if err := fleet.Pause(ctx, 200*time.Millisecond); err != nil {
			return f, err
		}
	}
	shown := 0
	for id := range d {
		if _, there := f.first[id]; !there && shown < 5 {
			shown++
			st, err := c.cl.TriggerStatus(ctx, id)
			fmt.Printf("  lost: %s %+v %v\n", id, st, err)
		}
	}
	return f, nil
}

// shardsOf says, from the rows in Cassandra, which shard each trigger is in.
func (c *cluster) shardsOf(ctx context.Context, d dues, shards int) (map[string]int, error) {
	ids, minutes := map[notify.Base]string{}, map[int64]bool{}
	for id, due := range d {
		base, err := notify.ParseBase(strings.TrimPrefix(id, "trg_"))
		if err != nil {
			return nil, err
		}
		ids[base] = id
		minutes[due.UnixMilli()/60_000] = true
	}
	out := map[string]int{}
	for minute := range minutes {
		for shard := range shards {
			rows, err := c.store.Timers().Scan(ctx, engine.TimerPartition{Minute: minute, Shard: uint16(shard)}, engine.TimerCursor{}, math.MaxInt64, 1_000_000)
			if err != nil {
				return nil, err
			}
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
		return nil, fmt.Errorf("of %d triggers that were acknowledged %d have a row", len(d), len(out))
	}
	return out, nil
}
