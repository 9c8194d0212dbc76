package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// status stores outcome rows. It keeps tenures only in memory, because only one process uses the
// store, and a tenure ends with that process.
type status struct {
	rows rows.Rows

	mu      sync.Mutex
	tenures map[topicPartition]tenure
}

type topicPartition struct {
	topic string
	n     int32
}

type tenure struct {
	latestStart int64 // Start of the tenure of the latest TakeOver
	// fenced is the Start of the latest tenure that has called Resume. Rows of tenures with an
	// earlier Start are dropped. A tenure that has not called Resume yet has no effect on the rows
	// of earlier tenures. fenced is increased in the fill function of a Write, so that its order
	// relative to the writes of rows is defined.
	fenced int64
	// fenceVisible gets the value of fenced as soon as all rows of earlier Writes are visible.
	fenceVisible int64
}

func newStatus(r rows.Rows) *status {
	return &status{rows: r, tenures: map[topicPartition]tenure{}}
}

func (s *status) Put(ctx context.Context, in []notify.Row) error {
	if len(in) == 0 {
		return nil
	}
	// Pack the rows before the Write. Its fill function runs under a lock, so it should only copy.
	p := newPacked()
	defer packedPool.Put(p)
	for i := range in {
		if err := CheckRow(&in[i]); err != nil {
			return err
		}
		p.b = AppendRow(appendRowKey(p.b, &in[i].Key), &in[i])
		p.endPart()
	}
	return s.rows.Write(ctx, func(b rows.Batch) {
		for i := range in {
			if row := p.part(i); !s.isFenced(&in[i]) {
				b.Set(tableStatus, row[:rowKeyLen], row[rowKeyLen:])
			}
		}
	})
}

// Get implements engine.Status. Most keys have no row, because a worker calls Get for the envelopes
// that it is about to claim.
func (s *status) Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
	return s.getRows(ctx, keys, false)
}

// getRows reads rows. If a row cannot be unpacked, getRows returns an error. But if the parameter
// damaged is true and the row is corrupt, getRows returns the bytes of the row in Row.Damaged.
func (s *status) getRows(ctx context.Context, keys []notify.RowKey, damaged bool) ([]notify.Row, error) {
	out := make([]notify.Row, len(keys))
	key := func(b []byte, i int) []byte { return appendRowKey(b, &keys[i]) }
	err := s.rows.GetMany(ctx, tableStatus, len(keys), key, func(i int, v []byte) error {
		if v == nil {
			return nil
		}
		if out[i].Key = keys[i]; ReadRow(v, &out[i]) {
			return nil
		}
		err := unreadRow(string(key(nil, i)), v)
		if damaged && errors.Is(err, notify.ErrCorrupt) {
			out[i], err = notify.Row{Key: keys[i], Damaged: append([]byte{}, v...)}, nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *status) Chunk(ctx context.Context, c notify.Chunk) (out []notify.Row, err error) {
	err = s.scanRows(ctx, rows.Range{Prefix: string(appendChunkKey(nil, c))}, func(r *notify.Row) error {
		out = append(out, *r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *status) Request(ctx context.Context, base notify.Base, fn func(*notify.Row) error) error {
	return s.scanRows(ctx, rows.Range{Prefix: string(base[:])}, fn)
}

func (s *status) Scan(ctx context.Context, from, to int64, fn func(*notify.Row) error) error {
	if from >= to {
		return nil
	}
	in := rows.Range{After: timeKey(from)}
	if to < 1<<48 { // the time of a base has 48 bits
		in.Before = timeKey(to)
	}
	return s.scanRows(ctx, in, fn)
}

func (s *status) scanRows(ctx context.Context, in rows.Range, fn func(*notify.Row) error) error {
	return s.rows.Scan(ctx, tableStatus, in, func(stored rows.Row) (bool, error) {
		row := new(notify.Row)
		if !readRowKey(stored.Key, &row.Key) || !ReadRow(stored.Value, row) {
			return false, unreadRow(stored.Key, stored.Value)
		}
		return true, fn(row)
	})
}

// updateTenure calls f with the tenure of a partition and stores the tenure that f has changed. It
// holds the lock during this.
func (s *status) updateTenure(p topicPartition, f func(*tenure)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenures[p]
	f(&t)
	s.tenures[p] = t
}

// isFenced returns true if r must be dropped because a later tenure has resumed the partition.
// r.Stamp is the Start of the tenure that wrote r. isFenced must be called in the fill function of
// a Write.
func (s *status) isFenced(r *notify.Row) bool {
	if r.Stamp <= 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.Stamp < s.tenures[topicPartition{r.Topic, r.LogPart}].fenced
}

// TakeOver implements engine.Status.
func (s *status) TakeOver(ctx context.Context, topic string, n int32) (next engine.Tenure, err error) {
	if ctx.Err() != nil {
		return next, contextEnded(ctx)
	}
	s.updateTenure(topicPartition{topic, n}, func(t *tenure) {
		next = engine.NextTenure(topic, n, t.latestStart, time.Now().UnixMicro())
		t.latestStart = next.Start
	})
	return next, nil
}

// Resume implements engine.Status. First it fences earlier tenures: from now on the store drops
// their new rows. Then it waits until the rows that they have already written are visible, and
// reads the rows with the given keys. For this the first Resume of a tenure makes an empty Write:
// its fill function sets the fence, and when the Write returns, the earlier rows are visible.
func (s *status) Resume(ctx context.Context, of engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	p, ready := topicPartition{of.Topic, of.Partition}, false
	s.updateTenure(p, func(t *tenure) { ready = t.fenceVisible >= of.Start })
	if !ready {
		err := s.rows.Write(ctx, func(rows.Batch) {
			s.updateTenure(p, func(t *tenure) { t.fenced = max(t.fenced, of.Start) })
		})
		if err != nil {
			return nil, err
		}
		s.updateTenure(p, func(t *tenure) { t.fenceVisible = max(t.fenceVisible, of.Start) })
	}
	return s.getRows(ctx, keys, true)
}

// PurgeOutcomes removes old rows. It removes done rows that were last updated before doneBefore,
// and claims (rows that are not done) that were last updated before claimBefore. Both times are in
// ms since 1970. The log may still contain the record for which a claim was made. So the caller
// must choose the times so that no process needs the removed rows any more. PurgeOutcomes returns
// how many rows it removed, also with an error. The next call removes the rest.
//
// PurgeOutcomes deletes single rows and not a range of keys, because at the same time a worker may
// write a claim of an old request in this range. For example, a schedule that was made last year
// may fire now.
//
// Keys begin with the time of the request, and a row is never older than its request. So the scan
// ends at the later of the two times, and does not read younger rows.
func (c *Contracts) PurgeOutcomes(ctx context.Context, doneBefore, claimBefore int64) (total int, err error) {
	in := rows.Range{Before: timeKey(max(doneBefore, claimBefore))}
	for more := true; more; {
		var old []string
		more = false
		err := c.rows.Scan(ctx, tableStatus, in, func(stored rows.Row) (bool, error) {
			var row notify.Row
			if !ReadRow(stored.Value, &row) {
				return false, unreadRow(stored.Key, stored.Value)
			}
			if row.Done && row.Updated < doneBefore || !row.Done && row.Updated < claimBefore {
				old = append(old, stored.Key)
			}
			in.After, more = stored.Key, len(old) == manyAtOnce
			return !more, nil
		})
		if err != nil || len(old) == 0 {
			return total, err
		}
		err = c.rows.Write(ctx, func(b rows.Batch) {
			for _, key := range old {
				b.Delete(tableStatus, []byte(key))
			}
		})
		if err != nil {
			return total, err
		}
		total += len(old)
	}
	return total, nil
}
