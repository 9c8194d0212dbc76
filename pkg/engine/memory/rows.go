package memory

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/notifyd/notifyd/pkg/rows"
)

// partRows implements rows.Rows with one sorted slice for each partition.
type partRows struct {
	// A writer holds this lock while it changes rows and then calls the functions that wait for
	// this write: the field Stored of a change, or the functions that Settled has registered. So
	// these functions run in the order of the writes.
	writing sync.Mutex

	mu    sync.Mutex // guards parts and their rows; a writer first locks the field writing, then mu
	parts map[rows.Partition]*part
}

type part struct {
	rows       []rows.Row // sorted by key; values are never changed in place
	lastNumber uint64     // the n of the last call of rows.Change.Number
}

// part returns the partition with this name. It creates the partition if it is missing. The
// caller must hold mu.
func (p *partRows) part(name rows.Partition) *part {
	if p.parts[name] == nil {
		p.parts[name] = &part{}
	}
	return p.parts[name]
}

// find returns the index of the row of a key and true. If the row is missing, it returns
// the index at which to insert the row, and false.
func (p *part) find(key string) (int, bool) {
	return slices.BinarySearchFunc(p.rows, key, func(r rows.Row, key string) int { return strings.Compare(r.Key, key) })
}

// get returns the stored value of a key; nil if the key has no row.
func (p *part) get(key string) []byte {
	if i, ok := p.find(key); ok {
		return p.rows[i].Value
	}
	return nil
}

// set stores copies of rows. It removes a row whose new value is nil.
func (p *part) set(rs []rows.Row) {
	for _, r := range rs {
		i, ok := p.find(r.Key)
		switch r.Value = bytes.Clone(r.Value); {
		case r.Value == nil && ok:
			p.rows = slices.Delete(p.rows, i, i+1)
		case r.Value == nil:
		case ok:
			p.rows[i] = r
		default:
			p.rows = slices.Insert(p.rows, i, r)
		}
	}
}

func (p *partRows) Get(ctx context.Context, name rows.Partition, keys ...string) ([][]byte, error) {
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([][]byte, len(keys))
	for i, key := range keys {
		out[i] = bytes.Clone(p.part(name).get(key))
	}
	return out, nil
}

func (p *partRows) Failed() <-chan struct{} { return nil }

func (p *partRows) Err() error { return nil }

// View returns a copy of the rows. The copy shares the values with p, because values are
// never changed in place.
func (p *partRows) View() rows.View {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := &partRows{parts: maps.Clone(p.parts)}
	for name, old := range v.parts {
		v.parts[name] = &part{rows: slices.Clone(old.rows)}
	}
	return v
}

func (p *partRows) Close() error { return nil }

func (p *partRows) Scan(ctx context.Context, name rows.Partition, r rows.Range, fn func(rows.Row) (bool, error)) error {
	p.mu.Lock()
	var selected []rows.Row
	for _, row := range p.part(name).rows {
		if strings.HasPrefix(row.Key, r.Prefix) && row.Key > r.After && (r.Before == "" || row.Key < r.Before) {
			selected = append(selected, row)
		}
	}
	p.mu.Unlock()
	if r.Back {
		slices.Reverse(selected)
	}
	for _, row := range selected {
		if err := checkContext(ctx); err != nil {
			return err
		}
		if more, err := fn(row); !more || err != nil {
			return err
		}
	}
	return checkContext(ctx)
}

func (p *partRows) Swap(ctx context.Context, cs ...rows.Change) (bool, error) {
	if err := checkContext(ctx); err != nil {
		return false, err
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if !p.applyChanges(cs) {
		return false, nil
	}
	for _, c := range cs {
		if c.Stored != nil {
			c.Stored()
		}
	}
	return true, nil
}

// applyChanges applies the changes cs and returns true if the stored rows are as expected: each
// row in Expect must be stored with exactly its value. Otherwise applyChanges changes nothing
// and returns false.
func (p *partRows) applyChanges(cs []rows.Change) (won bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range cs {
		for _, r := range c.Expect {
			if v := p.part(c.Part).get(r.Key); (v == nil) != (r.Value == nil) || !bytes.Equal(v, r.Value) {
				return false
			}
		}
	}
	for _, c := range cs {
		in := p.part(c.Part)
		for _, begin := range c.Clear {
			in.rows = slices.DeleteFunc(in.rows, func(r rows.Row) bool { return strings.HasPrefix(r.Key, begin) })
		}
		in.set(c.Set)
		for _, r := range c.Insert {
			if in.get(r.Key) == nil {
				in.set([]rows.Row{r})
			}
		}
		for i := range c.Numbers {
			in.lastNumber++
			in.set(c.Number(i, in.lastNumber))
		}
	}
	return true
}

// Turn implements rows.Partitions. It does not wait, because only this process uses the rows.
func (p *partRows) Turn(context.Context, rows.Partition) (func(), error) { return func() {}, nil }

func (p *partRows) Write(ctx context.Context, fill func(rows.Batch)) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	b := batch{store: p}
	p.mu.Lock()
	fill(&b)
	p.mu.Unlock()
	for _, fn := range b.settled {
		fn(nil)
	}
	return nil
}

func (p *partRows) Post(ctx context.Context, fill func(rows.Batch)) error { return p.Write(ctx, fill) }

// batch implements rows.Batch. Its methods change the stored rows at once. No reader sees
// half a batch, because Write holds mu while fill runs.
type batch struct {
	store   *partRows
	settled []func(error)
}

func (b *batch) Set(p rows.Partition, key, value []byte) {
	if value == nil {
		value = []byte{}
	}
	b.store.part(p).set([]rows.Row{{Key: string(key), Value: value}})
}

func (b *batch) Delete(p rows.Partition, key []byte) {
	b.store.part(p).set([]rows.Row{{Key: string(key)}})
}

func (b *batch) Settled(fn func(error)) { b.settled = append(b.settled, fn) }

func (p *partRows) GetMany(ctx context.Context, name rows.Partition, n int, key func([]byte, int) []byte, fn func(int, []byte) error) error {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = string(key(nil, i))
	}
	values, err := p.Get(ctx, name, keys...)
	for i := 0; i < len(values) && err == nil; i++ {
		err = fn(i, values[i])
	}
	return err
}
