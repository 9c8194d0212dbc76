package pebble

import (
	"bytes"
	"context"
	"errors"
	"sync"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Triggers returns the contract of triggers.
func (s *Store) Triggers() engine.Triggers { return &s.triggers }

// triggers keeps a row per trigger, and two indexes written with it: by state
// and caller, and of terminal rows by their end.
//
// A swap locks its rows (lock.go), reads them and writes those that it wins in
// one group. The locks are held until that is durable: whoever is told that he
// lost, lost against what survives.
type triggers struct {
	s     *Store
	purge sync.Mutex
}

func (t *triggers) load(s *Store) error { t.s = s; return nil }

func checkTrigger(x *engine.Trigger) error {
	switch {
	case x.ID == "":
		return notify.Invalid("bad_trigger", "id", "a trigger has an id")
	case len(x.Caller) > 1<<16-1:
		return notify.Invalid("bad_trigger", "caller", "a caller has at most 65,535 bytes")
	}
	return nil
}

// header reads what a swap has to know; ok is false where there is no row.
func (t *triggers) header(k []byte) (h triggerHeader, ok bool, err error) {
	v, c, err := t.s.db.Get(k)
	if errors.Is(err, pebbledb.ErrNotFound) {
		return h, false, nil
	}
	if err != nil {
		return h, false, translate(err)
	}
	d := reader{b: v}
	ok = readTriggerHeader(&d, &h)
	h.caller = string(append([]byte(nil), h.caller...)) // v goes with c
	if err := c.Close(); err != nil {
		return h, false, translate(err)
	}
	if !ok {
		return h, false, corrupt("trigger", k)
	}
	return h, true, nil
}

// triggerWrite is a row that replaces another, or is the first of its id.
type triggerWrite struct {
	row      *engine.Trigger
	old, new triggerHeader
	first    bool
}

// fill writes the row and what changes in the indexes.
func (w *triggerWrite) fill(tx tx, k, v []byte) {
	tx.set(k, v)
	id := w.row.ID
	if w.first || w.old.state != w.new.state || w.old.caller != w.new.caller {
		if !w.first {
			tx.delete(w.old.listKey(id))
		}
		tx.set(w.new.listKey(id), nil)
	}
	was, is := !w.first && w.old.terminal(), w.new.terminal()
	if was && (!is || w.old.ended != w.new.ended) {
		tx.delete(w.old.endedKey(id))
	}
	if is && (!was || w.old.ended != w.new.ended) {
		tx.set(w.new.endedKey(id), nil)
	}
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
		if err := checkTrigger(row(i)); err != nil {
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
			if stored, ok, err = t.header([]byte(locks[i])); err != nil {
				unlock()
				return nil, err
			}
		}
		version, yes := decide(i, stored, ok)
		if !yes {
			continue
		}
		won[i] = true
		w := triggerWrite{row: x, old: stored, new: headerOf(x), first: !ok}
		w.new.version = version
		writes = append(writes, w)
		mine[x.ID] = w.new
		p.buf = append(p.buf, locks[i]...)
		p.mark()
		p.buf = appendTrigger(p.buf, x, version)
		p.mark()
	}
	if len(writes) == 0 {
		unlock()
		return won, nil
	}
	err = t.s.commit.write(ctx, func(tx tx) {
		for i := range writes {
			writes[i].fill(tx, p.part(2*i), p.part(2*i+1))
		}
	}, func(error) { unlock() })
	if err != nil {
		return nil, err
	}
	return won, nil
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
		k := triggerKey(id)
		locks[i] = string(k)
		v, err := t.s.get(k)
		if err != nil {
			return nil, err
		}
		if v == nil {
			continue
		}
		if err := readTrigger(id, v, &out[i]); err != nil {
			return nil, err
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
		h, ok, err := t.header([]byte(locks[i]))
		if err != nil {
			unlock()
			return 0, nil, err
		}
		if ok && h.terminal() && h.ended < before { // it may have been swapped meanwhile
			gone = append(gone, []byte(locks[i]), h.listKey(id), h.endedKey(id))
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
