package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// schedules are what a request of one notification for later stores: the row, its
// three indexes and its timer. The peer stores the row and the timer in a logged
// batch too: one without the other is what it is for.
func (c *cassandraBench) schedules(ctx context.Context) error {
	const callers = 64
	make1 := func() (engine.Schedule, engine.Timer) {
		t := c.timer(time.Now().Add(time.Hour).UnixMilli() + rand.Int64N(600_000))
		return engine.Schedule{Base: t.Head, Caller: "shop", User: "u1", Channel: notify.Push, Category: notify.Transactional, FireAt: t.FireAt, Created: time.Now().UnixMilli(), Partitions: 18, BlockSize: 1, Receivers: 1, Accepted: 1}, t
	}
	ours := func(ctx context.Context, _ int) (int, error) {
		s, t := make1()
		return 1, c.store.PutScheduled(ctx, []engine.Schedule{s}, manyShards, []engine.Timer{t})
	}
	theirs := func(ctx context.Context, _ int) (int, error) {
		s, t := make1()
		bucket, base := s.Base.Time().UnixMilli()/bareListLength, s.Base[:]
		shard := int16(base[15] % 16)
		indexes := []insert{
			{`INSERT INTO purges (index_name, hour, shard, at, id) VALUES ('schedules_by_fire', ?, ?, ?, ?) USING TTL ?`, []any{s.FireAt / 3_600_000, shard, s.FireAt, base, keepSeconds}},
			{bareListing + ` USING TTL ?`, []any{"schedules", bucket, shard, base, keepSeconds}},
			{bareListing + ` USING TTL ?`, []any{"schedules/" + s.Caller, bucket, shard, base, keepSeconds}},
		}
		if err := manyOf(len(indexes), cassandraAtOnce, func(i int) error { return c.batch(ctx, indexes[i:i+1]) }); err != nil {
			return 0, err
		}
		b := c.session.Batch(gocql.LoggedBatch)
		b.Query(`INSERT INTO timer_requests (base, at, data) VALUES (?, ?, ?) USING TTL ?`, base, time.Now().UnixMicro(), noise(48), keepSeconds)
		for _, rows := range c.bareTimers([]engine.Timer{t}) {
			for _, r := range rows {
				b.Query(r.cql, r.args...)
			}
		}
		return 1, b.ExecContext(ctx)
	}
	return c.floods(ctx, callers, "cassandra_schedules", fmt.Sprintf("single notifications scheduled, %d requests at a time", callers), "requests/s", "the driver alone", ratioOf(engineNeed), ours, theirs)
}

const triggersEach = 100

// triggers are made, and then fired: claimed and ended, each by a conditional
// write.
func (c *cassandraBench) triggers(ctx context.Context) error {
	made := [2]*stock{{}, {}}
	contract := c.store.Triggers()
	create := func(ctx context.Context, _ int) (int, error) {
		ts := make([]engine.Trigger, triggersEach)
		for i := range ts {
			ts[i] = newTrigger()
		}
		won, err := contract.Create(ctx, ts)
		if err == nil {
			err = all(won)
		}
		made[0].put(ts)
		return len(ts), err
	}
	bare := func(ctx context.Context, _ int) (int, error) {
		ts := make([]engine.Trigger, triggersEach)
		for i := range ts {
			ts[i] = newTrigger()
		}
		err := manyOf(len(ts), cassandraAtOnce, func(i int) error { return c.bareCreate(ctx, &ts[i]) })
		made[1].put(ts)
		return len(ts), err
	}
	if err := c.turns(ctx, "cassandra_create", "triggers made, a hundred a call: one conditional write each, two index rows", "triggers/s", create, bare); err != nil {
		return err
	}
	fire := func(ctx context.Context, _ int) (int, error) {
		ts := made[0].take()
		if ts == nil {
			return 0, errNoMore
		}
		for n := range uint64(2) {
			ss := make([]engine.TriggerSwap, len(ts))
			for i := range ts {
				step(&ts[i], n)
				ss[i] = engine.TriggerSwap{Old: n + 1, New: ts[i]}
			}
			won, err := contract.Swap(ctx, ss)
			if err == nil {
				err = all(won)
			}
			if err != nil {
				return 0, err
			}
		}
		return len(ts), nil
	}
	bareFire := func(ctx context.Context, _ int) (int, error) {
		ts := made[1].take()
		if ts == nil {
			return 0, errNoMore
		}
		for step := range int64(2) {
			err := manyOf(len(ts), cassandraAtOnce, func(i int) error { return c.bareSwap(ctx, &ts[i], step+1) })
			if err != nil {
				return 0, err
			}
		}
		return len(ts), nil
	}
	return c.turns(ctx, "cassandra_fire", "triggers claimed and ended: two conditional writes each, three index rows", "triggers/s", fire, bareFire)
}

// stock are triggers that wait to be fired.
type stock struct {
	mu    sync.Mutex
	calls [][]engine.Trigger
}

func (s *stock) put(ts []engine.Trigger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, ts)
}

func (s *stock) take() (ts []engine.Trigger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) > 0 {
		ts, s.calls = s.calls[0], s.calls[1:]
	}
	return ts
}

func all(won []bool) error {
	for _, w := range won {
		if !w {
			return errors.New("a conditional write that nobody competes for was lost")
		}
	}
	return nil
}

func newTrigger() engine.Trigger {
	now := time.Now()
	id := "trg_" + notify.NewBase(now).String()
	return engine.Trigger{
		ID: id, Caller: "shop", URL: "https://example.com/hooks/orders/4711", Payload: noise(200),
		Created: now.UnixMilli(), FireAt: now.Add(time.Hour).UnixMilli(), NextAt: now.Add(time.Hour).UnixMilli(), State: engine.TriggerPending, Version: 1,
	}
}

// step makes the claim (step 0) or the end of a trigger.
func step(t *engine.Trigger, n uint64) {
	now := time.Now().UnixMilli()
	if n == 0 {
		t.State, t.Epoch, t.LeaseUntil = engine.TriggerInFlight, 1, now+60_000
		return
	}
	t.State, t.Attempts, t.Ended, t.LeaseUntil = engine.TriggerFired, 1, now, 0
	t.Log = []engine.Attempt{{N: 1, At: now, Took: 12 * time.Millisecond, Status: 200, Class: "ok", Body: []byte(`{"ok":true}`), Address: "192.0.2.1:443"}}
}

const (
	bareRequest = 250 // bytes of what a trigger is asked to do
	bareState   = 30  // and of where it stands; its log comes with its end
	bareEnd     = 80

	bareListLength = 6 * 3_600_000
	bareListing    = `INSERT INTO listings (list, bucket, shard, id) VALUES (?, ?, ?, ?)`
)

// bareLists are the lists that name a trigger while it is open; all but the first
// two lose it when it ends.
func bareLists(t *engine.Trigger) (lists [4]string, bucket int64, shard int16) {
	return [4]string{"triggers", "triggers/" + t.Caller, "triggers_open", "triggers_open/" + t.Caller}, t.Created / bareListLength, int16(t.ID[len(t.ID)-1] % 16)
}

func (c *cassandraBench) bareCreate(ctx context.Context, t *engine.Trigger) error {
	lists, bucket, shard := bareLists(t)
	indexes := make([]insert, len(lists))
	for i, list := range lists {
		indexes[i] = insert{bareListing, []any{list, bucket, shard, []byte(t.ID)}}
	}
	if err := manyOf(len(indexes), len(indexes), func(i int) error { return c.batch(ctx, indexes[i:i+1]) }); err != nil {
		return err
	}
	return c.condition(ctx, `INSERT INTO triggers (id, version, writer, at, state, ended, digest, request, data) VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS`,
		t.ID, int64(1), time.Now().UnixMicro(), int16(t.State), t.Ended, int64(0), noise(bareRequest), noise(bareState))
}

func (c *cassandraBench) bareSwap(ctx context.Context, t *engine.Trigger, old int64) error {
	now := time.Now().UnixMilli()
	lists, bucket, shard := bareLists(t)
	state, data := engine.TriggerInFlight, noise(bareState)
	if old == 2 {
		state, data = engine.TriggerFired, noise(bareEnd)
		if err := c.batch(ctx, []insert{{`INSERT INTO purges (index_name, hour, shard, at, id) VALUES ('triggers_by_end', ?, ?, ?, ?)`, []any{now / 3_600_000, shard, now, []byte(t.ID)}}}); err != nil {
			return err
		}
	}
	err := c.condition(ctx, `UPDATE triggers SET version = ?, writer = ?, at = ?, state = ?, ended = ?, data = ? WHERE id = ? IF version = ?`,
		old+1, int64(1), time.Now().UnixMicro(), int16(state), now, data, t.ID, old)
	if err != nil || old == 1 {
		return err
	}
	var indexes []insert
	for _, list := range lists[2:] {
		indexes = append(indexes, insert{`DELETE FROM listings WHERE list = ? AND bucket = ? AND shard = ? AND id = ?`, []any{list, bucket, shard, []byte(t.ID)}})
	}
	return manyOf(len(indexes), 2, func(i int) error { return c.batch(ctx, indexes[i:i+1]) })
}

// condition runs a conditional write that must be applied.
func (c *cassandraBench) condition(ctx context.Context, cql string, args ...any) error {
	applied, err := c.session.Query(cql, args...).MapScanCASContext(ctx, map[string]any{})
	if err == nil && !applied {
		err = all([]bool{false})
	}
	return err
}
