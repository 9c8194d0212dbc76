package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

const (
	cassandraCallers = 4  // goroutines that call at the same time, as committers, schedulers and dispatchers do
	cassandraAtOnce  = 64 // requests under way for one call; the engine has the same limit
	manyShards       = 16 // shards of timers and of rows, as by default
)

// cassandraFigures measures the stores of the Cassandra engine. The peer is the Cassandra driver
// without the engine. It uses prepared statements, token-aware routing and unlogged batches of one
// partition, as the manual of the driver says. It writes values of the same size into the same
// tables at the same consistency. It has no clock, verifies nothing and translates no errors.
func cassandraFigures(ctx context.Context, b *bench, address string) {
	cfg := cassandra.Config{Hosts: []string{address}, Keyspace: fmt.Sprintf("bench_%08x", rand.Uint32()), Replication: 1, Timeout: time.Minute}
	rig.Must(cassandra.Migrate(ctx, cfg, engine.Up))
	store := rig.Must(cassandra.Open(ctx, cfg))
	defer store.Close()
	c := &cassandraBench{bench: b, store: store}
	c.connect(address, cfg.Keyspace)
	defer func() {
		if err := c.session.Query(`DROP KEYSPACE ` + cfg.Keyspace).ExecContext(context.WithoutCancel(ctx)); err != nil {
			b.notef("could not remove the keyspace %s: %v", cfg.Keyspace, err)
		}
		c.session.Close()
	}()
	for _, f := range []func(context.Context){c.measureSingles, c.measureChunks, c.measureReads, c.measureTimers, c.measureFires, c.measureSchedules, c.measureTriggers} {
		f(ctx)
	}
}

type cassandraBench struct {
	*bench
	store   *cassandra.Store
	session *gocql.Session

	// written has the keys of rows that are already stored and can be read: [0] rows written through
	// the engine, [1] rows written with the bare driver, without the engine.
	written [2][]notify.RowKey
	mu      sync.Mutex
}

func (c *cassandraBench) connect(at, keyspace string) {
	cl := gocql.NewCluster(at)
	cl.Keyspace = keyspace
	cl.Consistency, cl.SerialConsistency = gocql.LocalQuorum, gocql.LocalSerial
	cl.NumConns = 4 // the engine's default
	cl.Timeout, cl.WriteTimeout, cl.ConnectTimeout = time.Minute, time.Minute, time.Minute
	cl.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(gocql.RoundRobinHostPolicy())
	c.session = rig.Must(cl.CreateSession())
}

type insert struct {
	cql  string
	args []any
}

func (i insert) run(ctx context.Context, c *cassandraBench) {
	rig.Ok(c.session.Query(i.cql, i.args...).ExecContext(ctx))
}

// writeBatch writes the rows in one batch, or without a batch if there is only one row. All rows of
// an unlogged batch should be in one partition.
func (c *cassandraBench) writeBatch(ctx context.Context, kind gocql.BatchType, rows []insert) {
	if len(rows) == 1 {
		rows[0].run(ctx, c)
		return
	}
	b := c.session.Batch(kind)
	for _, r := range rows {
		b.Query(r.cql, r.args...)
	}
	rig.Ok(b.ExecContext(ctx))
}

// writeEach writes every row with its own request, up to cassandraAtOnce at the same time.
func (c *cassandraBench) writeEach(ctx context.Context, rows []insert) {
	manyOf(ctx, len(rows), cassandraAtOnce, func(i int) { rows[i].run(ctx, c) })
}

// writeByPartition writes one unlogged batch for each partition.
func (c *cassandraBench) writeByPartition(ctx context.Context, parts map[minuteShard][]insert) {
	all := slices.Collect(maps.Values(parts))
	manyOf(ctx, len(all), cassandraAtOnce, func(i int) { c.writeBatch(ctx, gocql.UnloggedBatch, all[i]) })
}

const (
	keepSeconds = 35 * 24 * 3600
	insertRow   = `INSERT INTO chunks (minute, shard, base, part, block, epoch, attempt, deferrals, first, kind, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?`
	selectRow   = `SELECT writetime(data), data FROM chunks WHERE minute = ? AND shard = ? AND base = ? AND part = ? AND block = ? AND epoch = ? AND attempt = ? AND deferrals = ? AND first = ? AND kind = ?`
)

// row returns the row that a worker writes when all receivers of a chunk are done.
func row(k notify.RowKey, receivers uint32) notify.Row {
	return notify.Row{
		Key: k, Count: receivers, Digest: rand.Uint64(), StartedUpTo: receivers, DoneUpTo: receivers, Done: true,
		Default: notify.Exception{State: notify.Sent, Class: notify.ClassAccepted, Provider: "apns", Receipt: "0f9d1c52-7a33-4b0e-9c6e-2f0d8f9a1b11"},
		Caller:  "shop", Channel: notify.Push, Category: notify.Transactional, Accepted: time.Now().UnixMilli(), Updated: time.Now().UnixMilli(),
		Topic: "notifications-push", LogPart: 3, Offset: 1 << 30,
	}
}

// rowBytes is the approximate size of a row after the engine has encoded it.
const rowBytes = 128

// bareKey returns the values of a row's primary key columns.
func bareKey(p minuteShard, k *notify.RowKey) []any {
	return []any{p.minute, p.shard, k.Chunk.Base[:], int(k.Chunk.Partition), int64(k.Chunk.Block), int(k.Epoch), int(k.Attempt), int(k.Deferrals), int64(k.First), int16(k.Kind)}
}

// bareRows returns an insert for each key, grouped by partition.
func bareRows(ks []notify.RowKey, data []byte) map[minuteShard][]insert {
	parts := map[minuteShard][]insert{}
	for i := range ks {
		p := rowShard(ks[i].Chunk.Base)
		parts[p] = append(parts[p], insert{insertRow, append(bareKey(p, &ks[i]), data, keepSeconds)})
	}
	return parts
}

type minuteShard struct {
	minute int64
	shard  int16
}

func rowShard(b notify.Base) minuteShard {
	return minuteShard{b.Time().UnixMilli() / 60_000, int16(b[15] % manyShards)}
}

// measureSingles measures how fast the rows of single sends are written. Each row is written twice:
// first as a claim, and then as an outcome. The keys of some rows are kept for reads.
func (c *cassandraBench) measureSingles(ctx context.Context) {
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
	ours := func(ctx context.Context, _ int) int {
		ks := keys()
		rows := make([]notify.Row, len(ks))
		for range 2 {
			for i := range ks {
				rows[i] = row(ks[i], 1)
			}
			rig.Ok(status.Put(ctx, rows))
		}
		return wrote(0, ks)
	}
	theirs := func(ctx context.Context, _ int) int {
		ks := keys()
		for range 2 {
			c.writeByPartition(ctx, bareRows(ks, noise(rowBytes)))
		}
		return wrote(1, ks)
	}
	c.compareWithDriver(ctx, "cassandra_singles", "outcome rows of single sends, written at the claim and at the end, 512 a call", "rows/s", ours, theirs)
}

// compareWithDriver calls compareFloods with cassandraCallers callers. The peer is the driver
// alone.
func (c *cassandraBench) compareWithDriver(ctx context.Context, key, work, unit string, ours, theirs job) {
	c.compareFloods(ctx, versus{key: key, work: work, unit: unit, peer: "the driver alone", need: engineNeed, callers: cassandraCallers}, ours, theirs)
}

// measureChunks measures the rows of fan-outs. Each call writes the rows of a hundred chunks of one
// request.
func (c *cassandraBench) measureChunks(ctx context.Context) {
	const each = 100
	keys := func() []notify.RowKey {
		out, base := make([]notify.RowKey, each), notify.NewBase(time.Now())
		for i := range out {
			out[i].Chunk = notify.Chunk{Base: base, Partition: uint16(i % 18), Block: uint32(i)}
		}
		return out
	}
	status := c.store.Status()
	ours := func(ctx context.Context, _ int) int {
		ks := keys()
		rows := make([]notify.Row, each)
		for i := range ks {
			rows[i] = row(ks[i], 1000)
		}
		return rig.Must(each, status.Put(ctx, rows))
	}
	theirs := func(ctx context.Context, _ int) int {
		c.writeByPartition(ctx, bareRows(keys(), noise(rowBytes)))
		return each
	}
	c.compareWithDriver(ctx, "cassandra_chunks", "outcome rows of fan-outs, a hundred rows of one request in each call", "rows/s", ours, theirs)
}

// measureReads measures reads of rows by key. The product reads such a row if its filter says that a
// message may have been processed before.
func (c *cassandraBench) measureReads(ctx context.Context) {
	const each = 512
	some := func(side int) []notify.RowKey {
		all := c.written[side]
		at := rand.IntN(max(len(all)-each, 1))
		return all[at:min(at+each, len(all))]
	}
	status := c.store.Status()
	ours := func(ctx context.Context, _ int) int {
		if len(c.written[0]) == 0 {
			return -1 // no rows: -only does not contain cassandra_singles
		}
		return len(rig.Must(status.Get(ctx, some(0))))
	}
	theirs := func(ctx context.Context, _ int) int {
		if len(c.written[1]) == 0 {
			return -1
		}
		ks := some(1)
		manyOf(ctx, len(ks), cassandraAtOnce, func(i int) {
			k := &ks[i]
			var at int64
			var v []byte
			rig.Ok(c.session.Query(selectRow, bareKey(rowShard(k.Chunk.Base), k)...).ScanContext(ctx, &at, &v))
		})
		return len(ks)
	}
	c.compareWithDriver(ctx, "cassandra_reads", "outcome rows read by key, 512 a call", "rows/s", ours, theirs)
}

func newTimer(fireAt int64) engine.Timer {
	base := notify.NewBase(time.Now())
	return engine.Timer{FireAt: fireAt, ID: binary.BigEndian.AppendUint32(append([]byte(nil), base[:]...), rand.Uint32()), Target: "notifications-push", Payload: noise(200), Head: base, Weight: 1}
}

const bareTimer = `INSERT INTO timers (bucket, shard, fire_at, id, at, data) VALUES (?, ?, ?, ?, ?, ?) USING TTL ?`

func bareTimers(ts []engine.Timer) map[minuteShard][]insert {
	parts := map[minuteShard][]insert{}
	for i := range ts {
		t := &ts[i]
		p := minuteShard{t.FireAt / 60_000, int16(engine.ShardOf(t.ID, notify.SpreadOver(manyShards)))}
		parts[p] = append(parts[p], insert{bareTimer, []any{p.minute, int(p.shard), t.FireAt, t.ID, time.Now().UnixMicro(), append(noise(45), t.Payload...), keepSeconds}})
	}
	return parts
}

// measureTimers measures how fast timers are stored. Each call stores a thousand timers that are due
// within four minutes.
func (c *cassandraBench) measureTimers(ctx context.Context) {
	const each = 1000
	ahead := func(side int64) []engine.Timer {
		out := make([]engine.Timer, each)
		from := (time.Now().UnixMilli()/60_000 + 60 + 10*side) * 60_000
		for i := range out {
			out[i] = newTimer(from + rand.Int64N(4*60_000))
		}
		return out
	}
	contract := c.store.Timers()
	ours := func(ctx context.Context, _ int) int {
		return rig.Must(each, contract.Put(ctx, notify.SpreadOver(manyShards), ahead(0)))
	}
	theirs := func(ctx context.Context, _ int) int {
		c.writeByPartition(ctx, bareTimers(ahead(1)))
		return each
	}
	c.compareWithDriver(ctx, "cassandra_timers", "timers stored in 4 minutes of 16 shards, a thousand a call", "timers/s", ours, theirs)
}

// measureFires measures the store work for the release of timers. Each call reads all timers of one
// shard that are due within one minute, as the sweeper does. Then one conditional write raises the
// closed minute and the watermark of the shard.
func (c *cassandraBench) measureFires(ctx context.Context) {
	minute := time.Now().UnixMilli()/60_000 + 120
	perShard := 2000
	if c.short {
		perShard = 500
	}
	for from := range perShard * manyShards / 1000 {
		ts := make([]engine.Timer, 1000)
		for i := range ts {
			ts[i] = newTimer(minute*60_000 + int64(from*1000+i)%60_000)
		}
		rig.Ok(c.store.Timers().Put(ctx, notify.SpreadOver(manyShards), ts))
	}
	contract := c.store.Timers()
	var terms [cassandraCallers]uint64
	for i := range cassandraCallers {
		terms[i] = rig.Must(contract.TakeOver(ctx, uint16(i), 0, "bench")).Term
	}
	var closed [2 * cassandraCallers]int64
	const page = 1000
	ours := func(ctx context.Context, caller int) (n int) {
		p, after := engine.TimerPartition{Bucket: minute, Shard: uint16(caller)}, engine.TimerCursor{}
		for {
			ts := rig.Must(contract.Scan(ctx, p, after, (minute+1)*60_000, page))
			if n += len(ts); len(ts) < page {
				break
			}
			after = engine.TimerCursor{FireAt: ts[page-1].FireAt, ID: ts[page-1].ID}
		}
		closed[caller]++
		return rig.Must(n, contract.Advance(ctx, uint16(caller), engine.ShardState{Term: terms[caller], Closed: closed[caller], Watermark: closed[caller]}))
	}
	bare := func(caller int) int { return 100 + caller }
	for i := range cassandraCallers {
		rig.Ok(c.session.Query(`INSERT INTO timer_shards (shard, term, owner, closed, watermark) VALUES (?, 1, 'bench', 0, 0)`, bare(i)).ExecContext(ctx))
	}
	theirs := func(ctx context.Context, caller int) (n int) {
		it := c.session.Query(`SELECT fire_at, id, at, data FROM timers WHERE bucket = ? AND shard = ?`, minute, caller).PageSize(500).IterContext(ctx)
		var fire, at int64
		var id, data []byte
		for it.Scan(&fire, &id, &at, &data) {
			n++
		}
		rig.Ok(it.Close())
		was := closed[cassandraCallers+caller]
		closed[cassandraCallers+caller]++
		c.condition(ctx, `UPDATE timer_shards SET closed = ?, watermark = ? WHERE shard = ? IF term = 1 AND closed = ? AND watermark = ?`, was+1, was+1, bare(caller), was, was)
		return n
	}
	c.compareWithDriver(ctx, "cassandra_fires", fmt.Sprintf("timers read for release, %d in each minute of a shard; then the watermark of the shard is raised", perShard), "timers/s", ours, theirs)
}
