package cassandra

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

type status struct{ s *Store }

const (
	indexShards  = 4 // of a minute of chunks_by_minute
	scopeMinutes = "chunks"
)

const (
	rowColumns = `base, part, block, epoch, attempt, deferrals, first, kind, data`
	insertRow  = `INSERT INTO chunks (` + rowColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ? AND TIMESTAMP ?`
	selectRow  = `SELECT writetime(data), data FROM chunks WHERE base = ? AND part = ? AND block = ? AND epoch = ? AND attempt = ? AND deferrals = ? AND first = ? AND kind = ?`
	selectRows = `SELECT part, block, epoch, attempt, deferrals, first, kind, writetime(data), data FROM chunks WHERE base = ?`
)

func keyArgs(k *notify.RowKey) []any {
	return []any{k.Chunk.Base[:], int(k.Chunk.Partition), int64(k.Chunk.Block), int(k.Epoch), int(k.Attempt), int(k.Deferrals), int64(k.First), int16(k.Kind)}
}

func (t status) Put(ctx context.Context, rows []notify.Row) error {
	if err := ctx.Err(); err != nil {
		return translate(err)
	}
	// Of one key one row of the call counts: of two with one timestamp Cassandra
	// would choose by value.
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
	of := map[notify.Base]int{}
	var bases []notify.Base
	var parts [][]stmt
	for i := range rows {
		r := &rows[i]
		if last[r.Key] != i {
			continue
		}
		n, ok := of[r.Key.Chunk.Base]
		if !ok {
			n = len(parts)
			of[r.Key.Chunk.Base] = n
			bases, parts = append(bases, r.Key.Chunk.Base), append(parts, nil)
		}
		at, err := t.timestamp(ctx, r, now)
		if err != nil {
			return err
		}
		parts[n] = append(parts[n], t.insert(r, store.AppendRow(nil, r), at))
	}
	if err := t.index(ctx, bases); err != nil {
		return err
	}
	return parallel(len(parts), func(i int) error {
		for _, b := range split(parts[i]) {
			if err := t.s.write(ctx, now, b...); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t status) insert(r *notify.Row, data []byte, at int64) stmt {
	return stmt{insertRow, append(keyArgs(&r.Key), data, int(t.s.cfg.StatusTTL/time.Second), at)}
}

// split cuts statements that are too large for one mutation: more than 4 MiB of
// outcomes of a request, or of timers of a minute, in one call.
func split(stmts []stmt) (out [][]stmt) {
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

// index makes sure that Scan finds requests. It goes before their rows.
func (t status) index(ctx context.Context, bases []notify.Base) error {
	type part struct {
		minute int64
		shard  int16
	}
	of := map[part][]stmt{}
	var order []part
	keep := int((t.s.cfg.StatusTTL + 24*time.Hour) / time.Second)
	var fresh []notify.Base
	for _, b := range bases {
		if t.s.bases.has(b) {
			continue
		}
		fresh = append(fresh, b)
		p := part{b.Time().UnixMilli() / engine.MinuteMs, shardOfBase(b[:], indexShards)}
		if of[p] == nil {
			order = append(order, p)
		}
		of[p] = append(of[p], stmt{`INSERT INTO chunks_by_minute (minute, shard, base) VALUES (?, ?, ?) USING TTL ?`, []any{p.minute, p.shard, b[:], keep}})
	}
	err := parallel(len(order), func(i int) error {
		p := order[i]
		day := p.minute * engine.MinuteMs / engine.DayMs
		keeps := keepUntil(0, t.s.cfg.StatusTTL+48*time.Hour)
		if err := noteBucket(ctx, t.s, scopeMinutes, day, keeps, true); err != nil {
			return err
		}
		if err := noteBucket(ctx, t.s, scopeOf(scopeMinutes, day), p.minute, keeps, true); err != nil {
			return err
		}
		return t.s.write(ctx, t.s.clock.now(), of[p]...)
	})
	if err != nil {
		return err
	}
	for _, b := range fresh {
		t.s.bases.add(b)
	}
	return nil
}

func scopeOf(scope string, n int64) string { return scope + "/" + itoa(int(n)) }

func (t status) Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
	return t.read(ctx, keys, false, func(*notify.Row, []byte, int64) error { return nil })
}

// read calls seen with each row that is there, its bytes and its timestamp. Rows that
// cannot be decoded are returned with their bytes, if damaged is set, else an error.
func (t status) read(ctx context.Context, keys []notify.RowKey, damaged bool, seen func(*notify.Row, []byte, int64) error) ([]notify.Row, error) {
	out := make([]notify.Row, len(keys))
	err := parallel(len(keys), func(i int) error {
		var at int64
		var v []byte
		ok, err := t.s.get(ctx, selectRow, keyArgs(&keys[i]), &at, &v)
		if err != nil || !ok {
			return err
		}
		if err := t.decode(&out[i], keys[i], at, v); err != nil {
			if damaged && errors.Is(err, notify.ErrCorrupt) {
				out[i], err = notify.Row{Key: keys[i], Damaged: append([]byte{}, v...)}, nil
			}
			return err
		}
		return seen(&out[i], v, at)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (t status) decode(r *notify.Row, k notify.RowKey, at int64, v []byte) error {
	t.s.clock.see(at)
	r.Key = k
	if !store.ReadRow(v, r) {
		return notify.Unread("cassandra", "an outcome row of "+k.Chunk.Base.String(), v, store.RowVersion)
	}
	return nil
}

// each calls fn with the rows of a partition, or of one chunk of it, in order.
func (t status) each(ctx context.Context, base notify.Base, fn func(*notify.Row) error, where string, args ...any) error {
	return t.s.rows(ctx, func(scan func(...any) bool) error {
		var (
			part, epoch, attempt, deferrals int
			block, first, at                int64
			kind                            int16
			v                               []byte
		)
		for scan(&part, &block, &epoch, &attempt, &deferrals, &first, &kind, &at, &v) {
			r := new(notify.Row)
			k := notify.RowKey{
				Chunk: notify.Chunk{Base: base, Partition: uint16(part), Block: uint32(block)},
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
	}, selectRows+where, append([]any{base[:]}, args...)...)
}

func (t status) Chunk(ctx context.Context, c notify.Chunk) (rows []notify.Row, err error) {
	err = t.each(ctx, c.Base, func(r *notify.Row) error {
		rows = append(rows, *r)
		return nil
	}, ` AND part = ? AND block = ?`, int(c.Partition), int64(c.Block))
	if err != nil {
		return nil, err
	}
	return rows, nil
}

func (t status) Request(ctx context.Context, base notify.Base, fn func(*notify.Row) error) error {
	return t.each(ctx, base, fn, "")
}

func (t status) Scan(ctx context.Context, from, to int64, fn func(*notify.Row) error) error {
	const most = 1<<48 - 1 // a base has so many milliseconds
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
			bases, err := t.basesOf(ctx, minute)
			if err != nil {
				return err
			}
			for _, b := range bases {
				if ms := b.Time().UnixMilli(); ms < from || ms >= to {
					continue
				}
				if err := t.Request(ctx, b, fn); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// basesOf returns the requests of a minute that have rows, in order.
func (t status) basesOf(ctx context.Context, minute int64) ([]notify.Base, error) {
	var shards [indexShards][]notify.Base
	err := parallel(indexShards, func(i int) error {
		return t.s.rows(ctx, func(scan func(...any) bool) error {
			for b := []byte(nil); scan(&b); {
				if len(b) != len(notify.Base{}) {
					return corrupt("chunks_by_minute")
				}
				shards[i] = append(shards[i], notify.Base(b))
			}
			return nil
		}, `SELECT base FROM chunks_by_minute WHERE minute = ? AND shard = ?`, minute, int16(i))
	})
	if err != nil {
		return nil, err
	}
	all := slices.Concat(shards[:]...)
	slices.SortFunc(all, compareBases)
	return all, nil
}

func compareBases(a, b notify.Base) int {
	return bytes.Compare(a[:], b[:])
}
