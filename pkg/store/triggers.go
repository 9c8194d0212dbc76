package store

import (
	"context"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/rows"
)

// triggers keeps one row for each trigger (triggerrow.go), and writes two indexes together with the
// row. One index lists triggers by state and caller. The other lists terminal triggers by the time
// of their end. The field flights (triggerflight.go) tells which triggers are IN_FLIGHT.
//
// Unlike most contracts, triggers does not use the Swap of rows.Rows, because that Swap reads whole
// rows. A swap of triggers decides about each trigger separately, and needs only the header of its
// row, which is mostly in memory (triggercache.go). It locks its rows, reads their headers, and
// writes all triggers that it wins in one batch. It holds the locks until the batch is durable. So
// if a caller loses a swap, the row of the winner is already durable.
type triggers struct {
	rows      rows.Rows
	locks     *rows.Locks // by trigger id
	splitFrom int         // equals the constant splitFrom; tests set another value
	heads     triggerHeads
	flights   flights
	purge     sync.Mutex
}

func newTriggers(r rows.Rows) *triggers {
	return &triggers{
		rows: r, locks: rows.NewLocks(r.Failed(), r.Err, contextEnded), splitFrom: splitFrom,
		flights: flights{byTrigger: map[string]*flight{}},
	}
}

// readHeaders calls fn with the header of each trigger that exists. For a split row with a head it
// calls fn a second time, with the header of the head, which replaces the first header.
func (t *triggers) readHeaders(ctx context.Context, ids []string, fn func(id string, h triggerHeader)) error {
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
	err := lookEach(ctx, t.rows, tableTriggers, ids, read)
	if heads := split; err == nil && len(heads) > 0 {
		err = lookEach(ctx, t.rows, tableTriggerHeads, heads, read)
	}
	return err
}

// lookEach reads the rows with these keys and calls fn for each key, with a nil value if the row
// does not exist.
func lookEach(ctx context.Context, from rows.Reader, p rows.Partition, keys []string, fn func(key string, v []byte) error) error {
	return from.GetMany(ctx, p, len(keys),
		func(b []byte, i int) []byte { return append(b, keys[i]...) },
		func(i int, v []byte) error { return fn(keys[i], v) })
}

// readRow reads a row and its head into target, and returns the header. If the row does not exist,
// it leaves target unchanged.
func (t *triggers) readRow(ctx context.Context, from rows.Reader, id string, target *engine.Trigger) (h triggerHeader, err error) {
	err = lookEach(ctx, from, tableTriggers, []string{id}, func(_ string, v []byte) (err error) {
		if v != nil {
			h, err = t.readParts(ctx, from, id, v, target)
		}
		return err
	})
	return h, err
}

// readParts decodes v, the first part of a row. If the row is split, it also reads the row's head.
func (t *triggers) readParts(ctx context.Context, from rows.Reader, id string, v []byte, out *engine.Trigger) (h triggerHeader, err error) {
	h, err = readTrigger(id, v, out, false)
	if err != nil || !h.split {
		return h, err
	}
	request := h.request
	err = t.readHead(ctx, from, id, out, &h)
	if err == nil && h.request != request {
		return t.readRow(ctx, from, id, out) // a swap replaced both parts between the two reads
	}
	return h, err
}

// readHead reads the head of a split row. If the row was never swapped, it has no head, and readHead
// changes nothing.
func (t *triggers) readHead(ctx context.Context, from rows.Reader, id string, out *engine.Trigger, h *triggerHeader) error {
	return lookEach(ctx, from, tableTriggerHeads, []string{id}, func(_ string, v []byte) (err error) {
		if v != nil {
			*h, err = readTrigger(id, v, out, true)
		}
		return err
	})
}

// triggerWrite is the write of one row. It creates the row or replaces an older version of the row.
type triggerWrite struct {
	id       string
	row      *engine.Trigger // owned by the caller; not used after updateRows returns
	old, new triggerHeader
	first    bool // true: the row is created
	request  bool // true: the whole row is written; false: only the head of a split row
}

// partsOfWrite is the number of parts that pack appends: the key, the row and the head.
const partsOfWrite = 3

// pack appends the key, the row and the head to p, each as one part. If the row or the head does
// not change, its part is empty.
func (w *triggerWrite) pack(p *packed) {
	p.b = append(p.b, w.id...)
	p.endPart()
	if w.request {
		p.b = appendTrigger(p.b, w.row, &w.new, false)
	}
	p.endPart()
	if w.new.split && !w.first {
		p.b = appendTrigger(p.b, w.row, &w.new, true)
	}
	p.endPart()
}

// fill writes the row, the head and the changes of the indexes into b.
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

// planWrite returns the write that stores x. The parameter stored is the header of the row that the
// write replaces. If the parameter first is true, no row exists yet.
func (t *triggers) planWrite(x *engine.Trigger, stored triggerHeader, first bool, version uint64) triggerWrite {
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

// storedHeaders returns the headers of those rows that exist. The caller holds the rows' locks.
func (t *triggers) storedHeaders(ctx context.Context, ids []string) (map[string]triggerHeader, error) {
	all := make(map[string]triggerHeader, len(ids))
	var unknown []string
	for _, id := range ids {
		if h, ok := t.heads.lookUp(id); ok {
			all[id] = h
		} else {
			unknown = append(unknown, id)
		}
	}
	err := t.readHeaders(ctx, unknown, func(id string, h triggerHeader) { all[id] = h })
	return all, err
}

// updateRows locks n rows, calls decide for each row in order, and writes the rows for which decide
// returns true. If a row occurs several times, decide gets the header of the previous write to it.
func (t *triggers) updateRows(ctx context.Context, n int, row func(i int) *engine.Trigger, decide func(i int, stored triggerHeader, ok bool) (version uint64, yes bool)) (won []bool, err error) {
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
	last, err := t.storedHeaders(ctx, ids)
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
		w := t.planWrite(row(i), stored, !ok, version)
		writes = append(writes, w)
		last[id] = w.new
		w.pack(p)
	}
	if len(writes) == 0 {
		unlock()
		return won, nil
	}
	if err := t.storeWrites(ctx, writes, last, p, unlock); err != nil {
		return nil, err
	}
	return won, nil
}

// storeWrites writes the rows. The parameter last has the final header of each row. storeWrites
// calls unlock when the rows are durable or the write has failed.
func (t *triggers) storeWrites(ctx context.Context, writes []triggerWrite, last map[string]triggerHeader, p *packed, unlock func()) error {
	var begin, end []string
	final := make([]*triggerWrite, 0, len(writes)) // the last write of each row
	for i := range writes {
		w := &writes[i]
		if last[w.id].version != w.new.version {
			continue
		}
		final = append(final, w)
		t.heads.invalidate(w.id)
		if w.new.state == engine.TriggerInFlight {
			begin = append(begin, w.id)
		} else {
			end = append(end, w.id)
		}
	}
	flight, flying := t.flights.addFlight(begin)
	over := t.flights.takeEmptyKeys()
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
			t.heads.addWritten(w.id, w.new)
		}
		t.flights.leave(end)
	})
}

// writeLocked makes a Write with the function fill. When the batch is durable, it calls the
// function stored and then the function unlock. If the write fails, it calls only unlock.
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
	return t.updateRows(ctx, len(ts), func(i int) *engine.Trigger { return &ts[i] },
		func(_ int, _ triggerHeader, ok bool) (uint64, bool) { return 1, !ok })
}

func (t *triggers) Swap(ctx context.Context, ss []engine.TriggerSwap) ([]bool, error) {
	return t.updateRows(ctx, len(ss), func(i int) *engine.Trigger { return &ss[i].New },
		func(i int, stored triggerHeader, ok bool) (uint64, bool) {
			return ss[i].Old + 1, ok && stored.version == ss[i].Old
		})
}

func (t *triggers) Get(ctx context.Context, ids []string) ([]engine.Trigger, error) {
	out := make([]engine.Trigger, len(ids))
	seqs := make([]uint64, len(ids)) // for each row: sequence of its cache stripe before the row was read
	err := t.rows.GetMany(ctx, tableTriggers, len(ids), func(b []byte, i int) []byte {
		seqs[i] = t.heads.beginRead(ids[i])
		return append(b, ids[i]...)
	}, func(i int, v []byte) error {
		if v == nil {
			return nil
		}
		h, err := t.readParts(ctx, t.rows, ids[i], v, &out[i])
		if err == nil && !h.state.Terminal() {
			t.heads.addRead(ids[i], h, seqs[i])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	// A swap becomes visible shortly before it is durable. Wait until it is durable, so that Get
	// never returns a state that a power loss undoes.
	if err := t.locks.Settled(ctx, ids); err != nil {
		return nil, err
	}
	return out, nil
}

func (t *triggers) Purge(ctx context.Context, before int64, max int) (total int, err error) {
	t.purge.Lock()
	defer t.purge.Unlock()
	in := rows.Range{Before: orderedTime(before)}
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

// purgeSome removes up to max rows. The result last is the last index key that it has read, or ""
// if no index row is left.
func (t *triggers) purgeSome(ctx context.Context, in rows.Range, before int64, max int) (n int, last string, err error) {
	ids, err := scanList(ctx, t.rows, tableTriggerEnds, in, max, func(r rows.Row) (string, error) {
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
	if err := t.readHeaders(ctx, ids, func(id string, h triggerHeader) { gone[id] = h }); err != nil {
		unlock()
		return 0, "", err
	}
	for id, h := range gone {
		if !h.state.Terminal() || h.ended >= before { // a swap changed the row after the index was read
			delete(gone, id)
			continue
		}
		t.heads.invalidate(id)
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
