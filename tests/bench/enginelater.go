package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// measureSchedules measures what is stored for a request of one scheduled notification: the row of
// the schedule, its three index rows and its timer. The peer also stores the row and the timer in a
// logged batch, so that either both are stored in the end, or none.
func (c *cassandraBench) measureSchedules(ctx context.Context) {
	const callers = 64
	make1 := func() (engine.Schedule, engine.Timer) {
		t := newTimer(time.Now().Add(time.Hour).UnixMilli() + rand.Int64N(600_000))
		return engine.Schedule{Base: t.Head, Caller: "shop", User: "u1", Channel: notify.Push, Category: notify.Transactional, FireAt: t.FireAt, Created: time.Now().UnixMilli(), Partitions: 18, BlockSize: 1, Receivers: 1, Accepted: 1}, t
	}
	ours := func(ctx context.Context, _ int) int {
		s, t := make1()
		return rig.Must(1, c.store.Schedules().PutScheduled(ctx, []engine.Schedule{s}, notify.SpreadOver(manyShards), []engine.Timer{t}))
	}
	theirs := func(ctx context.Context, _ int) int {
		s, t := make1()
		bucket, base := s.Base.Time().UnixMilli()/bareListLength, s.Base[:]
		shard := int16(base[15] % 16)
		c.writeEach(ctx, []insert{
			{bareListing + ` USING TTL ?`, []any{"purge/schedules_by_fire", s.FireAt / bareListLength, shard, bareTimed(s.FireAt, base), keepSeconds}},
			{bareListing + ` USING TTL ?`, []any{"schedules", bucket, shard, base, keepSeconds}},
			{bareListing + ` USING TTL ?`, []any{"schedules/" + s.Caller, bucket, shard, base, keepSeconds}},
		})
		rows := []insert{{`INSERT INTO timer_requests (base, at, data) VALUES (?, ?, ?) USING TTL ?`, []any{base, time.Now().UnixMicro(), noise(48), keepSeconds}}}
		for _, more := range bareTimers([]engine.Timer{t}) {
			rows = append(rows, more...)
		}
		c.writeBatch(ctx, gocql.LoggedBatch, rows)
		return 1
	}
	c.compareFloods(ctx, versus{
		key: "cassandra_schedules", work: fmt.Sprintf("single notifications scheduled, %d requests at a time", callers),
		unit: "requests/s", peer: "the driver alone", need: engineNeed, callers: callers,
	}, ours, theirs)
}

const triggersEach = 100

// measureTriggers measures how fast triggers are created, and then how fast they are fired. For
// each fired trigger there are two conditional writes: one claims the trigger, and one ends it.
func (c *cassandraBench) measureTriggers(ctx context.Context) {
	made := [2]*stock{{}, {}}
	contract := c.store.Triggers()
	c.compareWithDriver(ctx, "cassandra_create", "triggers made, a hundred a call: one compare-and-swap write and two index rows for each", "triggers/s",
		func(ctx context.Context, _ int) int {
			ts := newTriggers()
			allWon(rig.Must(contract.Create(ctx, ts)))
			return made[0].put(ts)
		},
		func(ctx context.Context, _ int) int {
			ts := newTriggers()
			manyOf(ctx, len(ts), cassandraAtOnce, func(i int) { c.bareCreate(ctx, &ts[i]) })
			return made[1].put(ts)
		})
	c.compareWithDriver(ctx, "cassandra_fire", "triggers claimed and ended: two compare-and-swap writes and three index rows for each", "triggers/s",
		func(ctx context.Context, _ int) int {
			return made[0].fireNext(func(ts []engine.Trigger, n uint64) {
				ss := make([]engine.TriggerSwap, len(ts))
				for i := range ts {
					step(&ts[i], n)
					ss[i] = engine.TriggerSwap{Old: n, New: ts[i]}
				}
				allWon(rig.Must(contract.Swap(ctx, ss)))
			})
		},
		func(ctx context.Context, _ int) int {
			return made[1].fireNext(func(ts []engine.Trigger, n uint64) {
				manyOf(ctx, len(ts), cassandraAtOnce, func(i int) { c.bareSwap(ctx, &ts[i], int64(n)) })
			})
		})
}

// stock has triggers that were created and not yet fired.
type stock struct {
	mu    sync.Mutex
	calls [][]engine.Trigger // each element has the triggers of one call
}

func (s *stock) put(ts []engine.Trigger) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, ts)
	return len(ts)
}

// fireNext takes the triggers of one call from the stock and fires them. It calls swap twice: first
// to claim the triggers, then to end them. version is the stored version that swap must replace: 1,
// then 2. fireNext returns the number of fired triggers, or -1 if the stock is empty.
func (s *stock) fireNext(swap func(ts []engine.Trigger, version uint64)) int {
	s.mu.Lock()
	if len(s.calls) == 0 {
		s.mu.Unlock()
		return -1
	}
	ts := s.calls[0]
	s.calls = s.calls[1:]
	s.mu.Unlock()
	swap(ts, 1)
	swap(ts, 2)
	return len(ts)
}

func allWon(won []bool) {
	if slices.Contains(won, false) {
		panic(errors.New("a conditional write was not applied, although no other client writes the row"))
	}
}

func newTriggers() []engine.Trigger {
	ts := make([]engine.Trigger, triggersEach)
	for i := range ts {
		now := time.Now()
		ts[i] = engine.Trigger{
			ID: "trg_" + notify.NewBase(now).String(), Caller: "shop", URL: "https://example.com/hooks/orders/4711", Payload: noise(200),
			Created: now.UnixMilli(), FireAt: now.Add(time.Hour).UnixMilli(), NextAt: now.Add(time.Hour).UnixMilli(), State: engine.TriggerPending, Version: 1,
		}
	}
	return ts
}

// step changes t to the state that the next conditional write stores. n is the stored version that
// the write replaces: the claim replaces version 1, and the end replaces version 2.
func step(t *engine.Trigger, n uint64) {
	now := time.Now().UnixMilli()
	if n == 1 {
		t.State, t.Epoch, t.LeaseUntil = engine.TriggerInFlight, 1, now+60_000
		return
	}
	t.State, t.Attempts, t.Ended, t.LeaseUntil = engine.TriggerFired, 1, now, 0
	t.Log = []engine.Attempt{{N: 1, At: now, Took: 12 * time.Millisecond, Status: 200, Class: "ok", Body: []byte(`{"ok":true}`), Address: "192.0.2.1:443"}}
}

const (
	bareRequest = 250 // bytes of a trigger's request
	bareState   = 30  // bytes of the state of an open trigger, which has no attempts yet
	bareEnd     = 80  // bytes of the state of an ended trigger, with its log of attempts

	bareListLength = 6 * 3_600_000 // ms in one bucket of a list
	bareListing    = `INSERT INTO listings (list, bucket, shard, id) VALUES (?, ?, ?, ?)`
)

// bareLists returns the four lists that contain an open trigger, and the bucket and shard of its
// entries. When the trigger ends, it is removed from the last two lists.
func bareLists(t *engine.Trigger) (lists [4]string, bucket int64, shard int16) {
	return [4]string{"triggers", "triggers/" + t.Caller, "triggers_open", "triggers_open/" + t.Caller}, t.Created / bareListLength, int16(t.ID[len(t.ID)-1] % 16)
}

func (c *cassandraBench) bareCreate(ctx context.Context, t *engine.Trigger) {
	lists, bucket, shard := bareLists(t)
	indexes := make([]insert, len(lists))
	for i, list := range lists {
		indexes[i] = insert{bareListing, []any{list, bucket, shard, []byte(t.ID)}}
	}
	c.writeEach(ctx, indexes)
	c.condition(ctx, `INSERT INTO triggers (id, version, writer, at, state, ended, digest, request, data) VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS`,
		t.ID, int64(1), time.Now().UnixMicro(), int16(t.State), t.Ended, int64(0), noise(bareRequest), noise(bareState))
}

// bareTimed returns the id of an entry in a purge list: first the time in ms, and then the id of
// the trigger or schedule. So the entries of a list are in the order of time.
func bareTimed(ms int64, id []byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(ms)^1<<63), id...)
}

func (c *cassandraBench) bareSwap(ctx context.Context, t *engine.Trigger, old int64) {
	now := time.Now().UnixMilli()
	lists, bucket, shard := bareLists(t)
	state, data := engine.TriggerInFlight, noise(bareState)
	if old == 2 {
		state, data = engine.TriggerFired, noise(bareEnd)
		insert{bareListing, []any{"purge/triggers_by_end", now / bareListLength, shard, bareTimed(now, []byte(t.ID))}}.run(ctx, c)
	}
	c.condition(ctx, `UPDATE triggers SET version = ?, writer = ?, at = ?, state = ?, ended = ?, data = ? WHERE id = ? IF version = ?`,
		old+1, int64(1), time.Now().UnixMicro(), int16(state), now, data, t.ID, old)
	if old == 1 {
		return
	}
	var indexes []insert
	for _, list := range lists[2:] {
		indexes = append(indexes, insert{`DELETE FROM listings WHERE list = ? AND bucket = ? AND shard = ? AND id = ?`, []any{list, bucket, shard, []byte(t.ID)}})
	}
	c.writeEach(ctx, indexes)
}

// condition runs a conditional write. It panics if the write was not applied.
func (c *cassandraBench) condition(ctx context.Context, cql string, args ...any) {
	allWon([]bool{rig.Must(c.session.Query(cql, args...).MapScanCASContext(ctx, map[string]any{}))})
}
