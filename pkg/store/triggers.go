package store

import (
	"context"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/rows"
)

// triggers keeps a row per trigger (triggerrow.go), and two indexes written with
// it: by state and caller, and of terminal rows by their end. Of those IN_FLIGHT
// flights knows (triggerflight.go).
//
// Unlike the other contracts it does not swap rows for rows: a swap here decides about
// each trigger for itself, and reads its header, mostly from memory (triggercache.go),
// where a rows.Swap would read it all. So a swap locks its rows, reads their headers,
// and writes the triggers that it wins in one batch. The locks are held until the batch is
// durable: a caller that lost a swap lost it to a row that survives a loss of power.
type triggers struct {
	rows      rows.Rows
	locks     *rows.Locks // by id
	splitFrom int         // splitFrom, or a test's
	heads     triggerHeads
	flights   flights
	purge     sync.Mutex
}

func newTriggers(r rows.Rows) *triggers {
	return &triggers{
		rows: r, locks: rows.NewLocks(r.Failed(), r.Err, ended), splitFrom: splitFrom,
		flights: flights{of: map[string]*flight{}},
	}
}

// headers calls fn with the header of each trigger that there is.
func (t *triggers) headers(ctx context.Context, ids []string, fn func(id string, h triggerHeader)) error {
	var split []string
	read := func(id string, v []byte) error {
		if v == nil {
			return nil
		}
		h, err := readHeader(id, v)
		fn(id, h)
		if h.split {
			split = append(split, id)
		}
		return err
	}
	err := look(ctx, t.rows, tableTriggers, ids, read)
	if heads := split; err == nil && len(heads) > 0 { // which replace what fn has got
		err = look(ctx, t.rows, tableTriggerHeads, heads, read)
	}
	return err
}

// look calls fn with the values of rows.
func look(ctx context.Context, from rows.Reader, p rows.Part, keys []string, fn func(key string, v []byte) error) error {
	return from.Look(ctx, p, len(keys),
		func(b []byte, i int) []byte { return append(b, keys[i]...) },
		func(i int, v []byte) error { return fn(keys[i], v) })
}

// row reads a row with its head and returns its header; one that is not there leaves
// out as it is.
func (t *triggers) row(ctx context.Context, from rows.Reader, id string, out *engine.Trigger) (h triggerHeader, err error) {
	err = look(ctx, from, tableTriggers, []string{id}, func(_ string, v []byte) (err error) {
		if v != nil {
			h, err = t.parts(ctx, from, id, v, out)
		}
		return err
	})
	return h, err
}

// parts reads a row whose first part is v, and its head if there is one.
func (t *triggers) parts(ctx context.Context, from rows.Reader, id string, v []byte, out *engine.Trigger) (h triggerHeader, err error) {
	h, err = readTrigger(id, v, out, false)
	if err != nil || !h.split {
		return h, err
	}
	request := h.request
	err = t.head(ctx, from, id, out, &h)
	if err == nil && h.request != request {
		return t.row(ctx, from, id, out) // a swap has replaced both parts in between
	}
	return h, err
}

// head reads the head of a split row, once that was swapped.
func (t *triggers) head(ctx context.Context, from rows.Reader, id string, out *engine.Trigger, h *triggerHeader) error {
	return look(ctx, from, tableTriggerHeads, []string{id}, func(_ string, v []byte) (err error) {
		if v != nil {
			*h, err = readTrigger(id, v, out, true)
		}
		return err
	})
}

// triggerWrite is a row that replaces another, or is the first of its id.
type triggerWrite struct {
	id       string
	row      *engine.Trigger // the caller's, until the call returns
	old, new triggerHeader
	first    bool
	request  bool // everything is written, not only the head of a split row
}

// partsOfWrite is how many parts pack appends: the key, the row, and the head.
const partsOfWrite = 3

// pack appends the key and the values that are written, a part each.
func (w *triggerWrite) pack(p *packed) {
	p.b = append(p.b, w.id...)
	p.mark()
	if w.request {
		p.b = appendTrigger(p.b, w.row, &w.new, false)
	}
	p.mark()
	if w.new.split && !w.first {
		p.b = appendTrigger(p.b, w.row, &w.new, true)
	}
	p.mark()
}

// fill writes the row and what changes in the indexes.
func (w *triggerWrite) fill(b rows.Batch, key, row, head []byte) {
	if len(row) > 0 {
		b.Set(tableTriggers, key, row)
	}
	if len(head) > 0 {
		b.Set(tableTriggerHeads, key, head)
	}
	id := w.id
	if w.first || !w.new.sameList(&w.old) {
		if !w.first {
			b.Delete(tableTriggerList, w.old.listKey(id))
		}
		b.Set(tableTriggerList, w.new.listKey(id), nil)
	}
	ended, over := !w.first && w.old.state.Terminal(), w.new.state.Terminal()
	if ended && (!over || w.old.ended != w.new.ended) {
		b.Delete(tableTriggerEnds, w.old.endedKey(id))
	}
	if over && (!ended || w.old.ended != w.new.ended) {
		b.Set(tableTriggerEnds, w.new.endedKey(id), nil)
	}
}

// plan makes the write that replaces stored.
func (t *triggers) plan(x *engine.Trigger, stored triggerHeader, first bool, version uint64) triggerWrite {
	w := triggerWrite{id: x.ID, row: x, old: stored, new: headerOf(x), first: first, request: true}
	w.new.version = version
	switch {
	case first:
		if w.new.split = len(x.URL)+len(x.Payload) >= t.splitFrom; w.new.split {
			w.new.request = digestOf(x)
		}
	case stored.split:
		w.new.split, w.new.request = true, digestOf(x)
		w.request = w.new.request != stored.request
	}
	return w
}

// stored returns the headers of the rows that exist. The caller holds their locks.
func (t *triggers) stored(ctx context.Context, ids []string) (map[string]triggerHeader, error) {
	all := make(map[string]triggerHeader, len(ids))
	var unknown []string
	for _, id := range ids {
		if h, ok := t.heads.get(id); ok {
			all[id] = h
		} else {
			unknown = append(unknown, id)
		}
	}
	err := t.headers(ctx, unknown, func(id string, h triggerHeader) { all[id] = h })
	return all, err
}

// change locks n rows, asks decide about each, in order, and writes those it
// says yes to. decide sees what the call itself wrote before.
func (t *triggers) change(ctx context.Context, n int, row func(i int) *engine.Trigger, decide func(i int, stored triggerHeader, ok bool) (version uint64, yes bool)) (won []bool, err error) {
	won = make([]bool, n)
	if n == 0 {
		return won, nil
	}
	ids := make([]string, n)
	for i := range n {
		if err := row(i).Check(); err != nil {
			return nil, err
		}
		ids[i] = row(i).ID
	}
	unlock, err := t.locks.Lock(ctx, ids...)
	if err != nil {
		return nil, err
	}
	last, err := t.stored(ctx, ids)
	if err != nil {
		unlock()
		return nil, err
	}
	p := newPacked()
	defer packedPool.Put(p)
	writes := make([]triggerWrite, 0, n)
	for i, id := range ids {
		stored, ok := last[id]
		version, yes := decide(i, stored, ok)
		if !yes {
			continue
		}
		won[i] = true
		w := t.plan(row(i), stored, !ok, version)
		writes = append(writes, w)
		last[id] = w.new
		w.pack(p)
	}
	if len(writes) == 0 {
		unlock()
		return won, nil
	}
	if err := t.write(ctx, writes, last, p, unlock); err != nil {
		return nil, err
	}
	return won, nil
}

// write stores writes; last are the rows as they are afterwards.
func (t *triggers) write(ctx context.Context, writes []triggerWrite, last map[string]triggerHeader, p *packed, unlock func()) error {
	var begin, end []string
	final := make([]*triggerWrite, 0, len(writes)) // the last write of each row
	for i := range writes {
		w := &writes[i]
		if last[w.id].version != w.new.version {
			continue
		}
		final = append(final, w)
		t.heads.writing(w.id)
		if w.new.state == engine.TriggerInFlight {
			begin = append(begin, w.id)
		} else {
			end = append(end, w.id)
		}
	}
	flight, flying := t.flights.begin(begin)
	over := t.flights.over()
	return t.writeLocked(ctx, unlock, func(b rows.Batch) {
		for i := range writes {
			writes[i].fill(b, p.part(partsOfWrite*i), p.part(partsOfWrite*i+1), p.part(partsOfWrite*i+2))
		}
		if flight != nil {
			b.Set(tableFlights, flight, flying)
		}
		for _, k := range over {
			b.Delete(tableFlights, k)
		}
	}, func() {
		for _, w := range final {
			t.heads.wrote(w.id, w.new)
		}
		t.flights.end(end)
	})
}

// writeLocked is a Write that calls stored once it is durable, and then unlock. If it is
// not, it calls unlock alone.
func (t *triggers) writeLocked(ctx context.Context, unlock func(), fill func(rows.Batch), stored func()) error {
	filled := false
	err := t.rows.Write(ctx, func(b rows.Batch) {
		filled = true
		fill(b)
		b.Settled(func(err error) {
			if err == nil {
				stored()
			}
			unlock()
		})
	})
	if !filled {
		unlock()
	}
	return err
}

func (t *triggers) Create(ctx context.Context, ts []engine.Trigger) ([]bool, error) {
	return t.change(ctx, len(ts), func(i int) *engine.Trigger { return &ts[i] },
		func(_ int, _ triggerHeader, ok bool) (uint64, bool) { return 1, !ok })
}

func (t *triggers) Swap(ctx context.Context, ss []engine.TriggerSwap) ([]bool, error) {
	return t.change(ctx, len(ss), func(i int) *engine.Trigger { return &ss[i].New },
		func(i int, stored triggerHeader, ok bool) (uint64, bool) {
			return ss[i].Old + 1, ok && stored.version == ss[i].Old
		})
}

func (t *triggers) Get(ctx context.Context, ids []string) ([]engine.Trigger, error) {
	out := make([]engine.Trigger, len(ids))
	seqs := make([]uint64, len(ids)) // of the cache, before each row was read
	err := t.rows.Look(ctx, tableTriggers, len(ids), func(b []byte, i int) []byte {
		seqs[i] = t.heads.reading(ids[i])
		return append(b, ids[i]...)
	}, func(i int, v []byte) error {
		if v == nil {
			return nil
		}
		h, err := t.parts(ctx, t.rows, ids[i], v, &out[i])
		if err == nil && !h.state.Terminal() {
			t.heads.found(ids[i], h, seqs[i])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	// A swap is visible a moment before it is durable. Get does not return a state that a
	// loss of power takes back.
	if err := t.locks.Settled(ctx, ids); err != nil {
		return nil, err
	}
	return out, nil
}

func (t *triggers) Purge(ctx context.Context, before int64, max int) (total int, err error) {
	t.purge.Lock()
	defer t.purge.Unlock()
	in := rows.Range{Before: ordered(before)}
	for total < max {
		n, last, err := t.purgeSome(ctx, in, before, min(max-total, manyAtOnce))
		total += n
		if err != nil || last == "" {
			return total, err
		}
		in.After = last
	}
	return total, nil
}

// purgeSome removes up to max rows and returns the last key that it read; empty: there
// are no more.
func (t *triggers) purgeSome(ctx context.Context, in rows.Range, before int64, max int) (n int, last string, err error) {
	ids, err := list(ctx, t.rows, tableTriggerEnds, in, max, func(r rows.Row) (string, error) {
		if len(r.Key) <= 8 {
			return "", corrupt(r.Key)
		}
		last = r.Key
		return r.Key[8:], nil
	})
	if err != nil || len(ids) == 0 {
		return 0, "", err
	}
	unlock, err := t.locks.Lock(ctx, ids...)
	if err != nil {
		return 0, "", err
	}
	gone := map[string]triggerHeader{}
	if err := t.headers(ctx, ids, func(id string, h triggerHeader) { gone[id] = h }); err != nil {
		unlock()
		return 0, "", err
	}
	for id, h := range gone {
		if !h.state.Terminal() || h.ended >= before { // it was swapped meanwhile
			delete(gone, id)
			continue
		}
		t.heads.writing(id)
	}
	err = t.writeLocked(ctx, unlock, func(b rows.Batch) {
		for id, h := range gone {
			b.Delete(tableTriggers, []byte(id))
			b.Delete(tableTriggerList, h.listKey(id))
			b.Delete(tableTriggerEnds, h.endedKey(id))
			if h.split {
				b.Delete(tableTriggerHeads, []byte(id))
			}
		}
	}, func() {})
	if err != nil {
		return 0, "", err
	}
	return len(gone), last, nil
}
