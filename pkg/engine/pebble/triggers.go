package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

// triggers keeps a row per trigger (triggerrow.go), and two indexes written with
// it: by state and caller, and of terminal rows by their end. Of those IN_FLIGHT
// flights knows (triggerflight.go).
//
// A swap locks its rows (lock.go), reads their headers, mostly from memory
// (triggercache.go), and writes those that it wins in one group. The locks are
// held until that is durable: whoever is told that he lost, lost against what
// survives.
type triggers struct {
	s         *Store
	splitFrom int // splitFrom, or a test's
	heads     triggerHeads
	flights   flights
	purge     sync.Mutex
}

// header reads what a swap has to know; ok is false where there is no row.
func (t *triggers) header(k []byte, id string) (h triggerHeader, ok bool, err error) {
	if h, ok, err = t.headerAt(k); err != nil || !ok || !h.split {
		return h, ok, err
	}
	now, swapped, err := t.headerAt(triggerHeadKey(id))
	if err != nil || !swapped {
		return h, true, err
	}
	return now, true, nil
}

func (t *triggers) headerAt(k []byte) (h triggerHeader, ok bool, err error) {
	err = readFrom(t.s.db, k, func(v []byte) error {
		c := codec.Unpacker(v, store.TriggerVersion)
		if h.fields(&c); h.version == 0 { // what is damaged reads as zero
			return notify.Unread("store", fmt.Sprintf("trigger at %x", k), v, store.TriggerVersion)
		}
		ok = true
		return nil
	})
	return h, ok && err == nil, err
}

// getter is the store, or a snapshot of it.
type getter interface {
	Get(key []byte) (value []byte, closer io.Closer, err error)
}

// row reads a row with its head; one that is not there leaves out as it is.
func (t *triggers) row(from getter, id string, out *engine.Trigger) error {
	_, err := t.rowAndHeader(from, id, out)
	return err
}

func (t *triggers) rowAndHeader(from getter, id string, out *engine.Trigger) (h triggerHeader, err error) {
	read := func(head bool) func([]byte) error {
		return func(v []byte) (err error) {
			h, err = readTrigger(id, v, out, head)
			return err
		}
	}
	if err := readFrom(from, triggerKey(id), read(false)); err != nil || !h.split {
		return h, err
	}
	return h, readFrom(from, triggerHeadKey(id), read(true))
}

// readFrom calls fn with a value, which is valid until fn returns, if there is one.
func readFrom(from getter, k []byte, fn func(v []byte) error) error {
	v, c, err := from.Get(k)
	if errors.Is(err, pebbledb.ErrNotFound) {
		return nil
	}
	if err != nil {
		return translate(err)
	}
	return errors.Join(fn(v), translate(c.Close()))
}

// triggerWrite is a row that replaces another, or is the first of its id.
type triggerWrite struct {
	row      *engine.Trigger
	old, new triggerHeader
	first    bool
	request  bool // everything is written, not only the head of a split row
}

// pack appends the values that are written, a part each: the row, and the head.
func (w *triggerWrite) pack(p *packed) {
	if w.request {
		p.buf = appendTrigger(p.buf, w.row, &w.new, false)
	}
	p.mark()
	if w.new.split && !w.first {
		p.buf = appendTrigger(p.buf, w.row, &w.new, true)
	}
	p.mark()
}

// fill writes the row and what changes in the indexes.
func (w *triggerWrite) fill(tx tx, k, row, head []byte) {
	id := w.row.ID
	if len(row) > 0 {
		tx.set(k, row)
	}
	if len(head) > 0 {
		tx.set(triggerHeadKey(id), head)
	}
	is, was := w.new.listKey(id), []byte(nil)
	if !w.first {
		was = w.old.listKey(id)
	}
	if !bytes.Equal(is, was) {
		if was != nil {
			tx.delete(was)
		}
		tx.set(is, nil)
	}
	ended, over := !w.first && w.old.state.Terminal(), w.new.state.Terminal()
	if ended && (!over || w.old.ended != w.new.ended) {
		tx.delete(w.old.endedKey(id))
	}
	if over && (!ended || w.old.ended != w.new.ended) {
		tx.set(w.new.endedKey(id), nil)
	}
}

// stored is the header of a row whose lock is held.
func (t *triggers) stored(k []byte, id string) (triggerHeader, bool, error) {
	if h, ok := t.heads.get(id); ok {
		return h, true, nil
	}
	return t.header(k, id)
}

// plan makes the write that replaces stored.
func (t *triggers) plan(x *engine.Trigger, stored triggerHeader, first bool, version uint64) triggerWrite {
	w := triggerWrite{row: x, old: stored, new: headerOf(x), first: first, request: true}
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

// change locks n rows, asks decide about each, in order, and writes those it
// says yes to. decide sees what the call itself wrote before.
func (t *triggers) change(ctx context.Context, n int, row func(i int) *engine.Trigger, decide func(i int, stored triggerHeader, ok bool) (version uint64, yes bool)) (won []bool, err error) {
	won = make([]bool, n)
	if n == 0 {
		return won, nil
	}
	locks := make([]string, n)
	for i := range n {
		if err := row(i).Check(); err != nil {
			return nil, err
		}
		locks[i] = string(tTrigger) + row(i).ID
	}
	unlock, err := t.s.locks.lock(ctx, locks...)
	if err != nil {
		return nil, err
	}
	p := newPacked()
	defer packedPool.Put(p)
	writes := make([]triggerWrite, 0, n)
	mine := make(map[string]triggerHeader, n)
	for i := range n {
		x := row(i)
		stored, ok := mine[x.ID]
		if !ok {
			if stored, ok, err = t.stored([]byte(locks[i]), x.ID); err != nil {
				unlock()
				return nil, err
			}
		}
		version, yes := decide(i, stored, ok)
		if !yes {
			continue
		}
		won[i] = true
		w := t.plan(x, stored, !ok, version)
		writes = append(writes, w)
		mine[x.ID] = w.new
		p.buf = append(p.buf, locks[i]...)
		p.mark()
		w.pack(p)
	}
	if len(writes) == 0 {
		unlock()
		return won, nil
	}
	if err := t.write(ctx, writes, mine, p, unlock); err != nil {
		return nil, err
	}
	return won, nil
}

// write stores writes; last are the rows as they are afterwards.
func (t *triggers) write(ctx context.Context, writes []triggerWrite, last map[string]triggerHeader, p *packed, unlock func()) error {
	var begin, end []string
	for id, h := range last {
		t.heads.writing(id)
		if h.state == engine.TriggerInFlight {
			begin = append(begin, id)
		} else {
			end = append(end, id)
		}
	}
	flight, flying := t.flights.begin(begin)
	over := t.flights.over()
	return t.s.commit.write(ctx, func(tx tx) {
		for i := range writes {
			writes[i].fill(tx, p.part(3*i), p.part(3*i+1), p.part(3*i+2))
		}
		if flight != nil {
			tx.set(flight, flying)
		}
		for _, k := range over {
			tx.delete(k)
		}
	}, func(err error) {
		if err == nil {
			for id, h := range last {
				t.heads.wrote(id, h)
			}
			t.flights.end(end)
		}
		unlock()
	})
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
	locks := make([]string, len(ids))
	n := -1
	for i, id := range ids {
		if err := sometimes(ctx, &n); err != nil {
			return nil, err
		}
		locks[i] = string(tTrigger) + id
		seq := t.heads.reading(id)
		h, err := t.rowAndHeader(t.s.db, id, &out[i])
		if err != nil {
			return nil, err
		}
		if out[i].ID != "" && !h.state.Terminal() {
			t.heads.found(id, h, seq)
		}
	}
	// A swap is visible a moment before it is durable. Nobody is shown a state
	// that a loss of power takes back.
	if err := t.s.locks.settled(ctx, locks); err != nil {
		return nil, err
	}
	return out, nil
}

func (t *triggers) Purge(ctx context.Context, before int64, max int) (total int, err error) {
	t.purge.Lock()
	defer t.purge.Unlock()
	r := span{[]byte{tTriggerEnded}, appendInt([]byte{tTriggerEnded}, before)}
	for total < max && r.From != nil {
		n, next, err := t.purgeSome(ctx, r, before, min(max-total, manyAtOnce))
		total += n
		if err != nil {
			return total, err
		}
		r.From = next
	}
	return total, nil
}

// purgeSome removes up to max rows and returns where to go on; nil: nowhere.
func (t *triggers) purgeSome(ctx context.Context, r span, before int64, max int) (n int, next []byte, err error) {
	var ids, locks []string
	err = t.s.each(r, func(k, _ []byte) (bool, error) {
		if len(k) <= 9 {
			return false, corrupt("trigger index", k)
		}
		ids = append(ids, string(k[9:]))
		locks = append(locks, string(tTrigger)+string(k[9:]))
		next = append(bytes.Clone(k), 0)
		return len(ids) < max, nil
	})
	if err != nil || len(ids) == 0 {
		return 0, nil, err
	}
	if len(ids) < max {
		next = nil
	}
	unlock, err := t.s.locks.lock(ctx, locks...)
	if err != nil {
		return 0, nil, err
	}
	var gone [][]byte
	for i, id := range ids {
		h, ok, err := t.header([]byte(locks[i]), id)
		if err != nil {
			unlock()
			return 0, nil, err
		}
		if ok && h.state.Terminal() && h.ended < before { // it may have been swapped meanwhile
			gone = append(gone, []byte(locks[i]), h.listKey(id), h.endedKey(id))
			if h.split {
				gone = append(gone, triggerHeadKey(id))
			}
			t.heads.writing(id)
			n++
		}
	}
	err = t.s.commit.write(ctx, func(tx tx) {
		for _, k := range gone {
			tx.delete(k)
		}
	}, func(error) { unlock() })
	if err != nil {
		return 0, nil, err
	}
	return n, next, nil
}
