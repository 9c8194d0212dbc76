package store

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// Spill is the queue of records that could not be appended to the log. The size of a record is the
// length of its topic, key and value together. Spill keeps the number and the size of all records in
// memory, because every request of the fast lanes reads these totals and the queue is nearly always
// empty.
type Spill struct {
	rows rows.Rows

	mu      sync.Mutex
	counted bool   // true: the totals were read from the rows
	dropped uint64 // all records up to this seq were dropped; scans start after this seq, to skip tombstones
	records int64  // includes the records of running pushes
	bytes   int64
}

var spilledRecord = Record[engine.Spilled]{"a spilled record", 1, func(c *codec.Codec, r *engine.Spilled) {
	codec.Num(c, &r.At)
	codec.Num(c, &r.Part)
	c.Str(&r.Topic)
	c.Bytes(&r.Key)
	c.Bytes(&r.Value)
}}

func readSpilled(row rows.Row) (r engine.Spilled, err error) {
	r.Seq = numberAt(row.Key)
	err = spilledRecord.Unpack(row.Value, &r)
	return r, err
}

func spilledSize(r *engine.Spilled) int64 { return int64(len(r.Topic) + len(r.Key) + len(r.Value)) }

// count computes the totals from the rows, unless an earlier call has done so.
func (p *Spill) count(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counted {
		return nil
	}
	p.records, p.bytes = 0, 0
	err := p.rows.Scan(ctx, tableSpill, rows.Range{}, func(row rows.Row) (bool, error) {
		r, err := readSpilled(row)
		p.records++
		p.bytes += spilledSize(&r)
		return true, err
	})
	p.counted = err == nil
	return err
}

// Push implements intake.Spill.
func (p *Spill) Push(ctx context.Context, recs []engine.Spilled, limit int64) error {
	if len(recs) == 0 {
		return nil
	}
	if err := p.count(ctx); err != nil {
		return err
	}
	values := make([][]byte, len(recs))
	n, size := int64(len(recs)), int64(0)
	for i := range recs {
		size += spilledSize(&recs[i])
		values[i] = spilledRecord.Pack(&recs[i])
	}
	p.mu.Lock()
	full := size > 0 && p.bytes+size > limit
	if !full {
		p.records += n
		p.bytes += size
	}
	p.mu.Unlock()
	if full {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "spill_full", Msg: "the spill buffer is full", RetryAfter: 5 * time.Second}
	}
	var stored, failed bool // guarded by p.mu
	_, err := p.rows.Swap(ctx, rows.Change{
		Part: tableSpill, Numbers: len(recs),
		Number: func(i int, seq uint64) []rows.Row { return []rows.Row{{Key: num(seq), Value: values[i]}} },
		Stored: func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if stored = true; failed { // Push has already returned an error and has subtracted the records
				p.records += n
				p.bytes += size
			}
		},
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if failed = err != nil; failed && !stored {
		p.records -= n
		p.bytes -= size
	}
	return err
}

// waiting returns the range of the records that were not dropped.
func (p *Spill) waiting() rows.Range {
	p.mu.Lock()
	defer p.mu.Unlock()
	return rows.Range{After: num(p.dropped)}
}

// Peek implements intake.Spill.
func (p *Spill) Peek(ctx context.Context, max int) ([]engine.Spilled, error) {
	return scanList(ctx, p.rows, tableSpill, p.waiting(), max, readSpilled)
}

// Drop removes the records up to the number seq, oldest first, at most manyAtOnce in each swap. A
// swap succeeds only if its first record still exists. So if two Drops run at the same time, each
// record is subtracted from the totals only once.
func (p *Spill) Drop(ctx context.Context, seq uint64) error {
	if err := p.count(ctx); err != nil {
		return err
	}
	for {
		c := rows.Change{Part: tableSpill}
		var last uint64
		var size int64
		err := p.rows.Scan(ctx, tableSpill, p.waiting(), func(row rows.Row) (bool, error) {
			r, err := readSpilled(row)
			if err != nil || r.Seq > seq {
				return false, err
			}
			if c.Expect == nil {
				c.Expect = []rows.Row{{Key: row.Key, Value: bytes.Clone(row.Value)}}
			}
			c.Set = append(c.Set, rows.Row{Key: row.Key})
			last = r.Seq
			size += spilledSize(&r)
			return len(c.Set) < manyAtOnce, nil
		})
		if err != nil || len(c.Set) == 0 {
			return err
		}
		c.Stored = func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.records -= int64(len(c.Set))
			p.bytes -= size
			p.dropped = max(p.dropped, last)
		}
		if _, err := p.rows.Swap(ctx, c); err != nil {
			return err
		}
	}
}

// Stats implements intake.Spill.
func (p *Spill) Stats(ctx context.Context) (records, bytes, oldest int64, err error) {
	if err := p.count(ctx); err != nil {
		return 0, 0, 0, err
	}
	p.mu.Lock()
	records = p.records
	p.mu.Unlock()
	if records == 0 { // saves the cost of a scan
		return 0, 0, 0, nil
	}
	first, err := p.Peek(ctx, 1)
	if err != nil {
		return 0, 0, 0, err
	}
	if len(first) > 0 {
		oldest = first[0].At
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.records, p.bytes, oldest, nil
}
