package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	cassandraCallers = 4  // committers, schedulers and dispatchers that write at once
	cassandraAtOnce  = 64 // requests of one call, as many as the engine has
	manyShards       = 16 // the default
)

// cassandraFigures measures the stores of a cluster. The peer is the driver with
// the statements of its users' manual: prepared, token aware, unlogged batches of
// one partition, at the same consistency, into the same tables, values of the
// same size; it keeps no clock, makes sure of nothing and translates nothing.
func cassandraFigures(ctx context.Context, b *bench, at string) error {
	cfg := cassandra.Config{Hosts: []string{at}, Keyspace: fmt.Sprintf("bench_%08x", rand.Uint32()), Timeout: time.Minute}
	if _, err := cassandra.Migrate(ctx, cfg, cassandra.Up); err != nil {
		return err
	}
	store, err := cassandra.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer store.Close()
	c := &cassandraBench{bench: b, store: store}
	if err := c.connect(at, cfg.Keyspace); err != nil {
		return err
	}
	defer func() {
		if err := c.session.Query(`DROP KEYSPACE ` + cfg.Keyspace).ExecContext(context.WithoutCancel(ctx)); err != nil {
			b.notef("the keyspace %s is left behind: %v", cfg.Keyspace, err)
		}
		c.session.Close()
	}()
	for _, f := range []func(context.Context) error{c.singles, c.chunks, c.reads, c.timers, c.fires, c.schedules, c.triggers} {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}

type cassandraBench struct {
	*bench
	store   *cassandra.Store
	session *gocql.Session

	written [2][]notify.RowKey // by the engine and by the driver, for reads
	mu      sync.Mutex
}

func (c *cassandraBench) connect(at, keyspace string) (err error) {
	cl := gocql.NewCluster(at)
	cl.Keyspace = keyspace
	cl.Consistency, cl.SerialConsistency = gocql.LocalQuorum, gocql.LocalSerial
	cl.NumConns = 4 // the engine's default
	cl.Timeout, cl.WriteTimeout, cl.ConnectTimeout = time.Minute, time.Minute, time.Minute
	cl.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(gocql.RoundRobinHostPolicy())
	c.session, err = cl.CreateSession()
	return err
}

type insert struct {
	cql  string
	args []any
}

// batch writes rows of one partition.
func (c *cassandraBench) batch(ctx context.Context, rows []insert) error {
	if len(rows) == 1 {
		return c.session.Query(rows[0].cql, rows[0].args...).ExecContext(ctx)
	}
	b := c.session.Batch(gocql.UnloggedBatch)
	for _, r := range rows {
		b.Query(r.cql, r.args...)
	}
	return b.ExecContext(ctx)
}

// byPartition writes rows by partition.
func byPartition[K comparable](ctx context.Context, c *cassandraBench, parts map[K][]insert) error {
	all := make([][]insert, 0, len(parts))
	for _, p := range parts {
		all = append(all, p)
	}
	return manyOf(len(all), cassandraAtOnce, func(i int) error { return c.batch(ctx, all[i]) })
}

const (
	keepSeconds = 35 * 24 * 3600
	bareRow     = `INSERT INTO chunks (base, part, block, epoch, attempt, deferrals, first, kind, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?`
	bareIndex   = `INSERT INTO chunks_by_minute (minute, shard, base) VALUES (?, ?, ?) USING TTL ?`
)

// row is an outcome as a worker writes it.
func row(k notify.RowKey, receivers uint32) notify.Row {
	return notify.Row{
		Key: k, Count: receivers, Digest: rand.Uint64(), StartedUpTo: receivers, DoneUpTo: receivers, Done: true,
		Default: notify.Exception{State: notify.Sent, Class: notify.ClassAccepted, Provider: "apns", Receipt: "0f9d1c52-7a33-4b0e-9c6e-2f0d8f9a1b11"},
		Caller:  "shop", Channel: notify.Push, Category: notify.Transactional, Accepted: time.Now().UnixMilli(), Updated: time.Now().UnixMilli(),
		Topic: "notifications-push", LogPart: 3, Offset: 1 << 30,
	}
}

// rowBytes is about what such a row takes as the engine packs it.
const rowBytes = 128

func (c *cassandraBench) bareRow(k *notify.RowKey) insert {
	return insert{bareRow, []any{k.Chunk.Base[:], int(k.Chunk.Partition), int64(k.Chunk.Block), int(k.Epoch), int(k.Attempt), int(k.Deferrals), int64(k.First), int16(k.Kind), noise(rowBytes), keepSeconds}}
}

type minuteShard struct {
	minute int64
	shard  int16
}

func indexRow(parts map[minuteShard][]insert, b notify.Base) {
	p := minuteShard{b.Time().UnixMilli() / 60_000, int16(b[15] % 4)}
	base := append([]byte(nil), b[:]...)
	parts[p] = append(parts[p], insert{bareIndex, []any{p.minute, p.shard, base, keepSeconds}})
}

// singles are outcomes of single sends: a partition of one row each, written as a
// claim and then as an outcome, and found again by the minute.
func (c *cassandraBench) singles(ctx context.Context) error {
	const each = 512
	keys := func() []notify.RowKey {
		out := make([]notify.RowKey, each)
		for i := range out {
			out[i].Chunk.Base = notify.NewBase(time.Now())
		}
		return out
	}
	wrote := func(side int, ks []notify.RowKey) int {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.written[side]) < 1<<16 {
			c.written[side] = append(c.written[side], ks...)
		}
		return 2 * len(ks)
	}
	status := c.store.Status()
	ours := func(ctx context.Context, _ int) (int, error) {
		ks := keys()
		rows := make([]notify.Row, len(ks))
		for range 2 {
			for i := range ks {
				rows[i] = row(ks[i], 1)
			}
			if err := status.Put(ctx, rows); err != nil {
				return 0, err
			}
		}
		return wrote(0, ks), nil
	}
	theirs := func(ctx context.Context, _ int) (int, error) {
		ks := keys()
		index := map[minuteShard][]insert{}
		for i := range ks {
			indexRow(index, ks[i].Chunk.Base)
		}
		if err := byPartition(ctx, c, index); err != nil {
			return 0, err
		}
		for range 2 {
			err := manyOf(len(ks), cassandraAtOnce, func(i int) error { return c.batch(ctx, []insert{c.bareRow(&ks[i])}) })
			if err != nil {
				return 0, err
			}
		}
		return wrote(1, ks), nil
	}
	return c.turns(ctx, "cassandra_singles", "outcome rows of single sends, claim and end, indexed; calls of 512", "rows/s", ours, theirs)
}

// turns is against with floods of the usual number of callers.
func (c *cassandraBench) turns(ctx context.Context, key, work, unit string, ours, theirs func(ctx context.Context, caller int) (int, error)) error {
	return c.floods(ctx, cassandraCallers, key, work, unit, "the driver alone", ratioOf(engineNeed), ours, theirs)
}

// chunks are outcomes of fan-outs: a hundred chunks of one request a call.
func (c *cassandraBench) chunks(ctx context.Context) error {
	const each = 100
	keys := func() []notify.RowKey {
		out, base := make([]notify.RowKey, each), notify.NewBase(time.Now())
		for i := range out {
			out[i].Chunk = notify.Chunk{Base: base, Partition: uint16(i % 18), Block: uint32(i)}
		}
		return out
	}
	status := c.store.Status()
	ours := func(ctx context.Context, _ int) (int, error) {
		ks := keys()
		rows := make([]notify.Row, each)
		for i := range ks {
			rows[i] = row(ks[i], 1000)
		}
		return each, status.Put(ctx, rows)
	}
	theirs := func(ctx context.Context, _ int) (int, error) {
		ks := keys()
		index := map[minuteShard][]insert{}
		indexRow(index, ks[0].Chunk.Base)
		if err := byPartition(ctx, c, index); err != nil {
			return 0, err
		}
		rows := make([]insert, each)
		for i := range ks {
			rows[i] = c.bareRow(&ks[i])
		}
		return each, c.batch(ctx, rows)
	}
	return c.turns(ctx, "cassandra_chunks", "outcome rows of fan-outs, a hundred of one request a call", "rows/s", ours, theirs)
}

// reads are what dedup asks for when its filter does not know.
func (c *cassandraBench) reads(ctx context.Context) error {
	const each = 512
	some := func(side int) []notify.RowKey {
		all := c.written[side]
		at := rand.IntN(max(len(all)-each, 1))
		return all[at:min(at+each, len(all))]
	}
	status := c.store.Status()
	ours := func(ctx context.Context, _ int) (int, error) {
		if len(c.written[0]) == 0 {
			return 0, errNoMore // -only left out who writes them
		}
		rows, err := status.Get(ctx, some(0))
		return len(rows), err
	}
	theirs := func(ctx context.Context, _ int) (int, error) {
		if len(c.written[1]) == 0 {
			return 0, errNoMore
		}
		ks := some(1)
		return len(ks), manyOf(len(ks), cassandraAtOnce, func(i int) error {
			k := &ks[i]
			var at int64
			var v []byte
			return c.session.Query(`SELECT writetime(data), data FROM chunks WHERE base = ? AND part = ? AND block = ? AND epoch = ? AND attempt = ? AND deferrals = ? AND first = ? AND kind = ?`,
				k.Chunk.Base[:], int(k.Chunk.Partition), int64(k.Chunk.Block), int(k.Epoch), int(k.Attempt), int(k.Deferrals), int64(k.First), int16(k.Kind)).ScanContext(ctx, &at, &v)
		})
	}
	return c.turns(ctx, "cassandra_reads", "outcome rows read by key, calls of 512", "rows/s", ours, theirs)
}

func (c *cassandraBench) timer(fireAt int64) engine.Timer {
	base := notify.NewBase(time.Now())
	return engine.Timer{FireAt: fireAt, ID: binary.BigEndian.AppendUint32(append([]byte(nil), base[:]...), rand.Uint32()), Target: "notifications-push", Payload: noise(200), Head: base, Weight: 1}
}

const bareTimer = `INSERT INTO timers (bucket, shard, fire_at, id, at, data) VALUES (?, ?, ?, ?, ?, ?) USING TTL ?`

func (c *cassandraBench) bareTimers(ts []engine.Timer) map[minuteShard][]insert {
	parts := map[minuteShard][]insert{}
	for i := range ts {
		t := &ts[i]
		p := minuteShard{t.FireAt / 60_000, int16(engine.ShardOf(t.ID, manyShards))}
		parts[p] = append(parts[p], insert{bareTimer, []any{p.minute, int(p.shard), t.FireAt, t.ID, time.Now().UnixMicro(), append(noise(45), t.Payload...), keepSeconds}})
	}
	return parts
}

// timers are parked: a thousand a call, over four minutes.
func (c *cassandraBench) timers(ctx context.Context) error {
	const each = 1000
	ahead := func(side int64) []engine.Timer {
		out := make([]engine.Timer, each)
		from := (time.Now().UnixMilli()/60_000 + 60 + 10*side) * 60_000
		for i := range out {
			out[i] = c.timer(from + rand.Int64N(4*60_000))
		}
		return out
	}
	contract := c.store.Timers()
	ours := func(ctx context.Context, _ int) (int, error) { return each, contract.Put(ctx, manyShards, ahead(0)) }
	theirs := func(ctx context.Context, _ int) (int, error) {
		return each, byPartition(ctx, c, c.bareTimers(ahead(1)))
	}
	return c.turns(ctx, "cassandra_timers", "timers stored, a thousand a call, 4 minutes of 16 shards", "timers/s", ours, theirs)
}

// fires reads a full minute, as the sweeper does before it releases it, and then
// moves the shard's mark by a conditional write.
func (c *cassandraBench) fires(ctx context.Context) error {
	minute := time.Now().UnixMilli()/60_000 + 120
	perShard := 2000
	if c.short {
		perShard = 500
	}
	for from := range perShard * manyShards / 1000 {
		ts := make([]engine.Timer, 1000)
		for i := range ts {
			ts[i] = c.timer(minute*60_000 + int64(from*1000+i)%60_000)
		}
		if err := c.store.Timers().Put(ctx, manyShards, ts); err != nil {
			return err
		}
	}
	contract := c.store.Timers()
	var terms [cassandraCallers]uint64
	for i := range cassandraCallers {
		st, err := contract.TakeOver(ctx, uint16(i), 0, "bench")
		if err != nil {
			return err
		}
		terms[i] = st.Term
	}
	var closed [2 * cassandraCallers]int64
	const page = 1000
	ours := func(ctx context.Context, caller int) (n int, err error) {
		p, after := engine.TimerPartition{Minute: minute, Shard: uint16(caller)}, engine.TimerCursor{}
		for {
			ts, err := contract.Scan(ctx, p, after, (minute+1)*60_000, page)
			if err != nil {
				return 0, err
			}
			if n += len(ts); len(ts) < page {
				break
			}
			after = engine.TimerCursor{FireAt: ts[page-1].FireAt, ID: ts[page-1].ID}
		}
		closed[caller]++
		return n, contract.Advance(ctx, uint16(caller), engine.ShardState{Term: terms[caller], Closed: closed[caller], Watermark: closed[caller]})
	}
	bare := func(caller int) int { return 100 + caller }
	for i := range cassandraCallers {
		err := c.session.Query(`INSERT INTO timer_shards (shard, term, owner, closed, watermark) VALUES (?, 1, 'bench', 0, 0)`, bare(i)).ExecContext(ctx)
		if err != nil {
			return err
		}
	}
	theirs := func(ctx context.Context, caller int) (n int, err error) {
		it := c.session.Query(`SELECT fire_at, id, at, data FROM timers WHERE bucket = ? AND shard = ?`, minute, caller).PageSize(500).IterContext(ctx)
		var fire, at int64
		var id, data []byte
		for it.Scan(&fire, &id, &at, &data) {
			n++
		}
		if err := it.Close(); err != nil {
			return 0, err
		}
		was := closed[cassandraCallers+caller]
		closed[cassandraCallers+caller]++
		applied, err := c.session.Query(`UPDATE timer_shards SET closed = ?, watermark = ? WHERE shard = ? IF term = 1 AND closed = ? AND watermark = ?`, was+1, was+1, bare(caller), was, was).
			MapScanCASContext(ctx, map[string]any{})
		if err == nil && !applied {
			err = fmt.Errorf("a mark that nobody else moves was not moved")
		}
		return n, err
	}
	return c.turns(ctx, "cassandra_fires", fmt.Sprintf("timers read for release, minutes of %d in a shard, and its mark moved", perShard), "timers/s", ours, theirs)
}
