package cassandra

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

type status struct{ s *Store }

const (
	scopeMinutes = "chunks"

	// statusShards is the number of partitions of a minute. At 5M receivers a second in
	// fan-outs, a partition gets about 15,000 rows.
	statusShards = 16
)

const (
	insertRow  = `INSERT INTO chunks (minute, shard, base, part, block, epoch, attempt, deferrals, first, kind, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ? AND TIMESTAMP ?`
	selectRow  = `SELECT writetime(data), data FROM chunks WHERE minute = ? AND shard = ? AND base = ? AND part = ? AND block = ? AND epoch = ? AND attempt = ? AND deferrals = ? AND first = ? AND kind = ?`
	selectRows = `SELECT base, part, block, epoch, attempt, deferrals, first, kind, writetime(data), data FROM chunks WHERE minute = ? AND shard = ?`
)

// minuteShard is a partition of outcome rows. It contains the rows of some of the requests
// of one minute.
type minuteShard struct {
	minute int64
	shard  int16
}

// name returns the name of the partition in a table, for the combiner.
func (p minuteShard) name(table string) string { return fmt.Sprint(table, "/", p.minute, "/", p.shard) }

func shardOfMinute(b notify.Base) minuteShard {
	return minuteShard{b.Time().UnixMilli() / engine.MinuteMs, shardOfBase(b[:], statusShards)}
}

func keyArgs(k *notify.RowKey) []any {
	p := shardOfMinute(k.Chunk.Base)
	return []any{p.minute, p.shard, k.Chunk.Base[:], int(k.Chunk.Partition), int64(k.Chunk.Block), int(k.Epoch), int(k.Attempt), int(k.Deferrals), int64(k.First), int16(k.Kind)}
}

func (t status) Put(ctx context.Context, rows []notify.Row) error {
	if err := ctx.Err(); err != nil {
		return translate(err)
	}
	// Keep only one row for each key. If two rows with the same key had the same timestamp,
	// Cassandra would keep the row with the greater value.
	last := make(map[notify.RowKey]int, len(rows))
	for i := range rows {
		if err := store.CheckRow(&rows[i]); err != nil {
			return err
		}
		if was, ok := last[rows[i].Key]; !ok || rows[i].Stamp <= 0 || rows[i].Stamp >= rows[was].Stamp {
			last[rows[i].Key] = i
		}
	}
	now := t.s.clock.now()
	of := map[minuteShard]int{}
	var places []minuteShard
	var parts [][]stmt
	for i := range rows {
		r := &rows[i]
		if last[r.Key] != i {
			continue
		}
		p := shardOfMinute(r.Key.Chunk.Base)
		n, ok := of[p]
		if !ok {
			n = len(parts)
			of[p] = n
			places, parts = append(places, p), append(parts, nil)
		}
		at, err := t.timestamp(ctx, r, now)
		if err != nil {
			return err
		}
		parts[n] = append(parts[n], t.insert(r, store.AppendRow(nil, r), at))
	}
	if err := t.noteMinutes(ctx, places); err != nil {
		return err
	}
	return parallel(len(parts), func(i int) error { return t.s.combiner.submit(ctx, places[i].name("chunks"), parts[i]...) })
}

func (t status) insert(r *notify.Row, data []byte, at int64) stmt {
	return stmt{insertRow, append(keyArgs(&r.Key), data, int(t.s.cfg.StatusTTL/time.Second), at)}
}

// splitBatches splits statements into batches of at most maxBatch bytes, because Cassandra limits
// the size of a mutation. More than one batch is rare: it is needed only if one request or one minute
// of timers has more than 4 MiB of data.
func splitBatches(stmts []stmt) (out [][]stmt) {
	from, size := 0, 0
	for i := range stmts {
		n := stmts[i].size()
		if size+n > maxBatch && i > from {
			out, from, size = append(out, stmts[from:i]), i, 0
		}
		size += n
	}
	return append(out, stmts[from:])
}

// noteMinutes stores notes of the minutes of rows, so that Scan finds the rows. Put calls
// noteMinutes before it stores the rows.
func (t status) noteMinutes(ctx context.Context, places []minuteShard) error {
	keeps := keepUntil(0, t.s.cfg.StatusTTL+48*time.Hour)
	for _, p := range places {
		minute, day := p.minute, p.minute*engine.MinuteMs/engine.DayMs
		if err := noteBucket(ctx, t.s, scopeMinutes, day, keeps, true); err != nil {
			return err
		}
		if err := noteBucket(ctx, t.s, scopeOf(scopeMinutes, day), minute, keeps, true); err != nil {
			return err
		}
	}
	return nil
}

func scopeOf(scope string, n int64) string { return scope + "/" + itoa(int(n)) }

func (t status) Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
	return t.readRows(ctx, keys, false, func(*notify.Row, []byte, int64) error { return nil })
}

// readRows returns the rows with the given keys. It calls fn with each row that it can
// decode, with the bytes of the row and with its timestamp. If a row cannot be decoded and
// allowDamaged is true, readRows returns the bytes of the row in Row.Damaged. If
// allowDamaged is false, it returns an error instead.
func (t status) readRows(ctx context.Context, keys []notify.RowKey, allowDamaged bool, fn func(*notify.Row, []byte, int64) error) ([]notify.Row, error) {
	out := make([]notify.Row, len(keys))
	err := parallel(len(keys), func(i int) error {
		var at int64
		var v []byte
		ok, err := t.s.get(ctx, selectRow, keyArgs(&keys[i]), &at, &v)
		if err != nil || !ok {
			return err
		}
		if err := t.decode(&out[i], keys[i], at, v); err != nil {
			if allowDamaged && errors.Is(err, notify.ErrCorrupt) {
				out[i], err = notify.Row{Key: keys[i], Damaged: append([]byte{}, v...)}, nil
			}
			return err
		}
		return fn(&out[i], v, at)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (t status) decode(r *notify.Row, k notify.RowKey, at int64, v []byte) error {
	t.s.clock.observe(at)
	r.Key = k
	if !store.ReadRow(v, r) {
		return notify.Unread("cassandra", "an outcome row of "+k.Chunk.Base.String(), v, store.RowVersion)
	}
	return nil
}

// eachRow calls fn with the rows of a partition that match a condition in CQL, in order of
// their keys. The parameter args contains the arguments of the condition.
func (t status) eachRow(ctx context.Context, p minuteShard, fn func(*notify.Row) error, condition string, args ...any) error {
	return t.s.rows(ctx, func(scan func(...any) bool) error {
		var (
			base, v                         []byte
			part, epoch, attempt, deferrals int
			block, first, at                int64
			kind                            int16
		)
		for scan(&base, &part, &block, &epoch, &attempt, &deferrals, &first, &kind, &at, &v) {
			if len(base) != len(notify.Base{}) {
				return corrupt("a row of the table chunks")
			}
			r := new(notify.Row)
			k := notify.RowKey{
				Chunk: notify.Chunk{Base: notify.Base(base), Partition: uint16(part), Block: uint32(block)},
				Epoch: uint16(epoch), Attempt: uint16(attempt), Deferrals: uint16(deferrals), First: uint32(first), Kind: notify.RowKind(kind),
			}
			if err := t.decode(r, k, at, v); err != nil {
				return err
			}
			if err := fn(r); err != nil {
				return err
			}
		}
		return nil
	}, selectRows+condition, append([]any{p.minute, p.shard}, args...)...)
}

func (t status) Chunk(ctx context.Context, c notify.Chunk) (rows []notify.Row, err error) {
	err = t.eachRow(ctx, shardOfMinute(c.Base), func(r *notify.Row) error {
		rows = append(rows, *r)
		return nil
	}, ` AND base = ? AND part = ? AND block = ?`, c.Base[:], int(c.Partition), int64(c.Block))
	if err != nil {
		return nil, err
	}
	return rows, nil
}

func (t status) Request(ctx context.Context, base notify.Base, fn func(*notify.Row) error) error {
	return t.eachRow(ctx, shardOfMinute(base), fn, ` AND base = ?`, base[:])
}

func (t status) Scan(ctx context.Context, from, to int64, fn func(*notify.Row) error) error {
	const most = 1<<48 - 1 // the greatest time of a base, ms
	from, to = max(from, 0), min(to, most+1)
	if from >= to {
		return nil
	}
	last := to - 1
	days, err := readBuckets(ctx, t.s, scopeMinutes, from/engine.DayMs, last/engine.DayMs)
	if err != nil {
		return err
	}
	for _, day := range days {
		minutes, err := readBuckets(ctx, t.s, scopeOf(scopeMinutes, day), from/engine.MinuteMs, last/engine.MinuteMs)
		if err != nil {
			return err
		}
		for _, minute := range minutes {
			if err := t.scanMinute(ctx, minute, from, to, fn); err != nil {
				return err
			}
		}
	}
	return nil
}

// scanMinute merges the partitions of a minute. It calls fn with the rows of requests that
// were made in the period [from, to), in ms since 1970.
func (t status) scanMinute(ctx context.Context, minute, from, to int64, fn func(*notify.Row) error) error {
	errEnough := errors.New("enough") // stops the read of a partition early
	var next [statusShards]func() (*notify.Row, error, bool)
	var heads [statusShards]*notify.Row
	var stops [statusShards]func()
	defer func() {
		for _, stop := range stops {
			if stop != nil {
				stop()
			}
		}
	}()
	advance := func(i int) (err error) {
		heads[i], err, _ = next[i]()
		return err
	}
	for i := range next {
		rows := func(yield func(*notify.Row, error) bool) {
			err := t.eachRow(ctx, minuteShard{minute, int16(i)}, func(r *notify.Row) error {
				if !yield(r, nil) {
					return errEnough
				}
				return nil
			}, ` AND base >= ? AND base < ?`, prefixOf(from), prefixOf(to))
			if err != nil && !errors.Is(err, errEnough) {
				yield(nil, err)
			}
		}
		next[i], stops[i] = iter.Pull2(rows)
		if err := advance(i); err != nil {
			return err
		}
	}
	for {
		least := -1
		for i, r := range heads {
			if r != nil && (least < 0 || bytes.Compare(r.Key.Chunk.Base[:], heads[least].Key.Chunk.Base[:]) < 0) {
				least = i
			}
		}
		if least < 0 {
			return nil
		}
		if err := fn(heads[least]); err != nil {
			return err
		}
		if err := advance(least); err != nil {
			return err
		}
	}
}

// prefixOf returns the first bytes of all bases that are created at a time (ms since
// 1970). If the time is later than the latest time that a base can contain, it returns a
// value that is greater than all bases.
func prefixOf(ms int64) []byte {
	if ms >= 1<<48 {
		return bytes.Repeat([]byte{0xff}, len(notify.Base{})+1)
	}
	return binary.BigEndian.AppendUint64(nil, uint64(ms))[2:]
}
