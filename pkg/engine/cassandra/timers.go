package cassandra

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

// timers implements engine.Timers: the rows of the hot table and the states of shards.
type timers struct{ timerRows }

// timerRows implements engine.TimerTable with one table.
type timerRows struct {
	s *Store
	t *timerTable
}

// timerTable describes the table "timers" or the table "timers_cold". Both tables have the
// same columns, but buckets of different length.
type timerTable struct {
	name   string
	length int64 // length of a bucket, ms
	insert string
}

func newTimerTable(name string, length int64) *timerTable {
	return &timerTable{name, length, `INSERT INTO ` + name + ` (bucket, shard, fire_at, id, at, data, payload) VALUES (?, ?, ?, ?, ?, ?, ?) USING TTL ? AND TIMESTAMP ?`}
}

var (
	hotTimers  = newTimerTable("timers", engine.MinuteMs)
	coldTimers = newTimerTable("timers_cold", engine.DayMs)
)

const timerBatch = 200 // rows of one batch; after an error the caller writes all rows again

// timerPart is one partition of a table.
type timerPart struct {
	bucket int64
	shard  int
}

func (p timerPart) name(t *timerTable) string { return fmt.Sprint(t.name, "/", p.bucket, "/", p.shard) }

// timerStmts returns the partitions of timers, in the order of ts, and the inserts for each
// partition. The parameter timestamp is the timestamp of these writes. It is also stored in the
// column "at" of the rows: the owner of the shard reads this column and calls clock.observe with
// its value. So the owner's later delete of the partition has a greater timestamp, even if the
// clocks differ.
func timerStmts(s *Store, t *timerTable, shards notify.Spread, ts []engine.Timer, timestamp int64) (parts []timerPart, of map[timerPart][]stmt) {
	of = map[timerPart][]stmt{}
	type key struct {
		fire int64
		id   string
	}
	seen := make(map[key]bool, len(ts))
	for i := range ts {
		x := &ts[i]
		k := key{x.FireAt, string(x.ID)}
		if seen[k] {
			continue
		}
		seen[k] = true
		p := timerPart{x.FireAt / t.length, int(engine.ShardOf(x.ID, shards))}
		if of[p] == nil {
			parts = append(parts, p)
		}
		// The column "at" is part of the key. If a timer is stored again, its second row comes
		// after its first row, and readers use the first row.
		of[p] = append(of[p], stmt{t.insert, []any{
			p.bucket, p.shard, x.FireAt, x.ID, timestamp,
			codec.Pack(store.TimerVersion, func(c *codec.Codec) { store.TimerFields(c, x) }), payloadOf(x), ttl(keepUntil(x.FireAt, s.cfg.TimerGrace)), timestamp,
		}})
	}
	return parts, of
}

// payloadOf returns the payload of a timer, but never nil, because a null in an insert
// would be a tombstone.
func payloadOf(x *engine.Timer) []byte {
	if x.Payload == nil {
		return []byte{}
	}
	return x.Payload
}

func putTimers(ctx context.Context, s *Store, t *timerTable, shards notify.Spread, ts []engine.Timer) error {
	if err := engine.CheckTimers(shards, ts); err != nil {
		return err
	}
	at := s.clock.now()
	parts, of := timerStmts(s, t, shards, ts, at)
	return parallel(len(parts), func(i int) error {
		p := parts[i]
		if err := noteTimers(ctx, s, t, p); err != nil {
			return err
		}
		for rows := range slices.Chunk(of[p], timerBatch) {
			if err := s.combiner.submit(ctx, p.name(t), rows...); err != nil {
				return err
			}
		}
		return nil
	})
}

// noteTimers stores the note of a partition, so that Buckets finds the partition. In the hot table
// it also stores the note of the partition's day. It is called before the partition gets rows. For
// the note of the partition it uses the cache only in the hot table, and only if the partition's
// minute begins more than two minutes from now. No process removes such a note while rows are added.
func noteTimers(ctx context.Context, s *Store, t *timerTable, p timerPart) error {
	ms := p.bucket * t.length
	keeps := keepUntil(ms+t.length, s.cfg.TimerGrace+24*time.Hour)
	ahead := t == hotTimers && ms > time.Now().UnixMilli()+2*engine.MinuteMs
	scope := scopeOf(t.name, int64(p.shard))
	if t == coldTimers {
		return noteBucket(ctx, s, scope, p.bucket, keeps, false)
	}
	day := ms / engine.DayMs
	if err := noteBucket(ctx, s, scope, day, keepUntil((day+1)*engine.DayMs, s.cfg.TimerGrace+48*time.Hour), true); err != nil {
		return err
	}
	return noteBucket(ctx, s, scopeOf(scope, day), p.bucket, keeps, ahead)
}

func (t timerRows) Put(ctx context.Context, shards notify.Spread, ts []engine.Timer) error {
	return putTimers(ctx, t.s, t.t, shards, ts)
}

func (t timerRows) Scan(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	return t.scan(ctx, p, after, until, max, true)
}

func (t timerRows) ScanWithoutPayload(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	return t.scan(ctx, p, after, until, max, false)
}

func (t timerRows) scan(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, maxRows int, whole bool) (out []engine.Timer, err error) {
	// All rows of a bucket have a fire time inside the bucket, so limit the query to these
	// times.
	s := t.s
	from, to := p.Bucket*t.t.length, (p.Bucket+1)*t.t.length-1
	if after.FireAt < from {
		after = engine.TimerCursor{FireAt: from}
	}
	until = min(until, to)
	if maxRows <= 0 || after.FireAt > until {
		return nil, nil
	}
	columns := `fire_at, id, at, data`
	if whole {
		columns += `, payload`
	}
	cql := `SELECT ` + columns + ` FROM ` + t.t.name + ` WHERE bucket = ? AND shard = ? AND (fire_at, id) > (?, ?) AND (fire_at) <= (?)`
	if len(after.ID) == 0 {
		after.ID = []byte{}
	}
	s.counts.reads.Add(1)
	// Do not prefetch. With prefetch, the driver requests the next page before this page is read,
	// and normally the next page is not needed. A minute with 2,000 rows took 5.2 to 6.2 us of CPU
	// for each row with prefetch, and 3.4 to 5.6 us without (make bench-engines, cassandra_fires,
	// at a load of 25 to 40).
	q := s.query(cql, p.Bucket, int(p.Shard), after.FireAt, after.ID, until).PageSize(min(maxRows+1, pageSize)).Prefetch(0)
	err = s.iterate(ctx, q, func(scan func(...any) bool) error {
		for {
			var x engine.Timer
			var at int64
			var v []byte
			dest := []any{&x.FireAt, &x.ID, &at, &v, &x.Payload}
			if !whole {
				dest = dest[:4]
			}
			if !scan(dest...) {
				return nil
			}
			s.clock.observe(at)
			if n := len(out); n > 0 && out[n-1].FireAt == x.FireAt && bytes.Equal(out[n-1].ID, x.ID) {
				continue // the same timer was stored again
			}
			if err := readTimer(&x, v); err != nil {
				return err
			}
			if out = append(out, x); len(out) == maxRows {
				return nil
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func readTimer(x *engine.Timer, v []byte) error {
	if !codec.Unpack(v, store.TimerVersion, func(c *codec.Codec) { store.TimerFields(c, x) }) {
		return notify.Unread("cassandra", "a timer", v, store.TimerVersion)
	}
	if len(x.Payload) == 0 {
		x.Payload = nil
	}
	return nil
}

func (t timerRows) Buckets(ctx context.Context, shard uint16, from, to int64) (out []int64, err error) {
	from, to = max(from, 0), min(to, math.MaxInt64/engine.MinuteMs-1)
	if from > to {
		return nil, nil
	}
	scope := scopeOf(t.t.name, int64(shard))
	if t.t == coldTimers {
		return readBuckets(ctx, t.s, scope, from, to)
	}
	days, err := readBuckets(ctx, t.s, scope, from*engine.MinuteMs/engine.DayMs, to*engine.MinuteMs/engine.DayMs)
	if err != nil {
		return nil, err
	}
	each, err := readEach(days, func(day int64) ([]int64, error) { return readBuckets(ctx, t.s, scopeOf(scope, day), from, to) })
	if err != nil {
		return nil, err
	}
	return slices.Concat(each...), nil
}

// Drop removes the rows, then the hints, then the note of the bucket. So if a Drop is
// interrupted, Buckets still finds the bucket, and the caller drops it again.
func (t timerRows) Drop(ctx context.Context, p engine.TimerPartition) error {
	at, scope, tables := t.s.clock.now(), scopeOf(t.t.name, int64(p.Shard)), []string{t.t.name}
	if t.t == hotTimers {
		scope, tables = scopeOf(scope, p.Bucket*engine.MinuteMs/engine.DayMs), append(tables, "timer_hints")
	}
	for _, table := range tables {
		if err := t.s.write(ctx, at, stmt{`DELETE FROM ` + table + ` WHERE bucket = ? AND shard = ?`, []any{p.Bucket, int(p.Shard)}}); err != nil {
			return err
		}
	}
	return forgetBucket(ctx, t.s, scope, p.Bucket)
}

// Pending reads the whole table, partition by partition. It is for audits.
func (t timerRows) Pending(ctx context.Context, fn func(*engine.Timer) error) error {
	return t.s.rows(ctx, func(scan func(...any) bool) error {
		var last engine.Timer
		for {
			x := new(engine.Timer)
			var at int64
			var v []byte
			if !scan(&x.FireAt, &x.ID, &at, &v, &x.Payload) {
				return nil
			}
			if last.FireAt == x.FireAt && bytes.Equal(last.ID, x.ID) {
				continue
			}
			last = *x
			if err := readTimer(x, v); err != nil {
				return err
			}
			if err := fn(x); err != nil {
				return err
			}
		}
	}, `SELECT fire_at, id, at, data, payload FROM `+t.t.name)
}

// Shard reads with the consistency SERIAL, so it sees every TakeOver and Advance that returned
// before the call.
func (t timers) Shard(ctx context.Context, shard uint16) (engine.ShardState, error) {
	st, _, err := t.readShard(ctx, shard)
	return st, err
}

// Closed reads at Config.Consistency, not at SERIAL. This is enough: when an Advance has returned,
// its swap is committed on a quorum of replicas, so every later read of a quorum sees it.
func (t timers) Closed(ctx context.Context, shard uint16) (closed int64, err error) {
	_, err = t.s.get(ctx, `SELECT closed FROM timer_shards WHERE shard = ?`, []any{int(shard)}, &closed)
	return closed, err
}

// readShard reads the state of a shard with the consistency SERIAL. The result ok is false if the
// shard has no row.
func (t timers) readShard(ctx context.Context, shard uint16) (st engine.ShardState, ok bool, err error) {
	var term int64
	ok, err = t.s.getSerial(ctx, `SELECT term, owner, closed, watermark FROM timer_shards WHERE shard = ?`, []any{int(shard)}, &term, &st.Owner, &st.Closed, &st.Watermark)
	st.Term = uint64(term)
	return st, ok, err
}

func (t timers) TakeOver(ctx context.Context, shard uint16, term uint64, owner string) (engine.ShardState, error) {
	unlock, err := t.s.locks.lock(ctx, scopeOf("shard", int64(shard)))
	if err != nil {
		return engine.ShardState{}, err
	}
	defer unlock()
	was, ok, err := t.readShard(ctx, shard)
	if err != nil {
		return engine.ShardState{}, err
	}
	if was.Term != term {
		return engine.ShardState{}, engine.StaleTerm()
	}
	next := engine.ShardState{Term: term + 1, Owner: owner, Closed: was.Closed, Watermark: was.Watermark}
	write := stmt{`UPDATE timer_shards SET term = ?, owner = ? WHERE shard = ? IF term = ?`, []any{int64(next.Term), owner, int(shard), int64(term)}}
	if !ok {
		write = stmt{`INSERT INTO timer_shards (shard, term, owner, closed, watermark) VALUES (?, ?, ?, 0, 0) IF NOT EXISTS`, []any{int(shard), int64(next.Term), owner}}
	}
	won, err := t.s.runConditional(ctx, fmt.Sprint("the take-over of shard ", shard), func() (swapOutcome, error) {
		now, _, err := t.readShard(ctx, shard)
		switch {
		case err != nil:
			return 0, err
		case now.Term == term:
			return swapUndone, nil
		case now.Term == next.Term && now.Owner == owner: // an owner begins each term at most once
			return swapDone, nil
		}
		return swapLost, nil
	}, write)
	switch {
	case err != nil:
		return engine.ShardState{}, err
	case !won:
		return engine.ShardState{}, engine.StaleTerm()
	}
	// The owner of the old term may have advanced the shard between the read and the swap.
	now, _, err := t.readShard(ctx, shard)
	switch {
	case err != nil:
		return engine.ShardState{}, err
	case now.Term != next.Term:
		return engine.ShardState{}, engine.StaleTerm()
	}
	return now, nil
}

func (t timers) Advance(ctx context.Context, shard uint16, st engine.ShardState) error {
	unlock, err := t.s.locks.lock(ctx, scopeOf("shard", int64(shard)))
	if err != nil {
		return err
	}
	defer unlock()
	for try := 0; ; try++ {
		now, ok, err := t.readShard(ctx, shard)
		switch {
		case err != nil:
			return err
		case now.Term != st.Term:
			return engine.StaleTerm()
		case !ok:
			// The shard never had an owner and st.Term is 0. Create the row of the shard,
			// as the other engines do.
			_, err := t.s.runConditional(ctx, fmt.Sprint("the first state of shard ", shard), func() (swapOutcome, error) { return swapUndone, nil },
				stmt{`INSERT INTO timer_shards (shard, term, owner, closed, watermark) VALUES (?, 0, '', ?, ?) IF NOT EXISTS`, []any{int(shard), max(st.Closed, 0), max(st.Watermark, 0)}})
			if err != nil {
				return err
			}
			continue
		}
		closed, mark := max(now.Closed, st.Closed), max(now.Watermark, st.Watermark)
		if closed == now.Closed && mark == now.Watermark {
			return nil
		}
		if try == swapTries {
			return unknownOutcome(fmt.Sprint("the new state of shard ", shard))
		}
		// The answer is ignored, because the next read shows whether the swap was applied.
		_, _, err = t.s.casOnce(ctx, stmt{
			`UPDATE timer_shards SET closed = ?, watermark = ? WHERE shard = ? IF term = ? AND closed = ? AND watermark = ?`,
			[]any{closed, mark, int(shard), int64(st.Term), now.Closed, now.Watermark},
		})
		if err != nil && (refused(err) || ctx.Err() != nil) {
			return translate(err)
		}
	}
}
