package pebble

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"math"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/notifyd/notifyd/pkg/engine"
)

// List merges the lists of the index that the question is about: one for a
// state of a caller, one a state for all of a caller's, one a caller for all of
// a state. All of all are the rows themselves, and those IN_FLIGHT, who stand
// among the waiting ones, are known by name. Index and rows are read from one
// snapshot, in which they agree.
func (t *triggers) List(ctx context.Context, caller string, state engine.TriggerState, behind engine.TriggerCursor, max int) ([]engine.Trigger, error) {
	if max <= 0 || len(caller) > 1<<16-1 {
		return nil, nil
	}
	out, err := t.list(ctx, caller, state, behind.ID, max)
	if err != nil {
		return nil, err
	}
	locks := make([]string, len(out))
	for i := range out {
		locks[i] = string(triggerKey(out[i].ID))
	}
	if err := t.s.locks.settled(ctx, locks); err != nil { // as Get
		return nil, err
	}
	return out, nil
}

func (t *triggers) list(ctx context.Context, caller string, state engine.TriggerState, behind string, max int) (out []engine.Trigger, err error) {
	snap, flying := t.flights.snapshot(t.s.db)
	defer func() { err = errors.Join(err, translate(snap.Close())) }()
	switch {
	case state == engine.TriggerInFlight:
		return t.listFlights(ctx, snap, flying, caller, behind, max)
	case caller == "" && state == 0:
		return t.listRows(ctx, snap, behind, max)
	}
	it, err := snap.NewIter(&pebbledb.IterOptions{LowerBound: []byte{tTriggerList}, UpperBound: []byte{tTriggerList + 1}})
	if err != nil {
		return nil, translate(err)
	}
	defer func() { err = errors.Join(err, translate(it.Close())) }()
	lists := newestFirst{it: it}
	states := []engine.TriggerState{state}
	if state == engine.TriggerOpen {
		states = []engine.TriggerState{engine.TriggerPending, engine.TriggerFailed}
	}
	for _, one := range states {
		if err := lists.find(ctx, caller, one, behind); err != nil {
			return nil, err
		}
	}
	n := -1
	for len(lists.heads) > 0 && len(out) < max {
		if err := sometimes(ctx, &n); err != nil {
			return nil, err
		}
		id := string(lists.heads[0].id())
		var row engine.Trigger
		if err := t.row(snap, id, &row); err != nil {
			return nil, err
		}
		if row.ID == "" {
			return nil, corrupt("trigger index", lists.heads[0].key) // without a row
		}
		switch {
		case state == engine.TriggerPending && row.State != state: // it is IN_FLIGHT
		case state == engine.TriggerOpen && !row.IsOpen():
		default:
			out = append(out, row)
		}
		lists.pop()
	}
	return out, translate(it.Error())
}

// CountOpen counts up to most+1 rows.
func (t *triggers) CountOpen(ctx context.Context, caller string, most int) (n int, err error) {
	for behind, page := "", 1000; n <= most; {
		rows, err := t.list(ctx, caller, engine.TriggerOpen, behind, page)
		if n += len(rows); err != nil || len(rows) < page {
			return n, err
		}
		behind = rows[len(rows)-1].ID
	}
	return n, nil
}

func (t *triggers) listRows(ctx context.Context, snap *pebbledb.Snapshot, behind string, max int) (out []engine.Trigger, err error) {
	o := &pebbledb.IterOptions{LowerBound: []byte{tTrigger}, UpperBound: []byte{tTrigger + 1}}
	if behind != "" {
		o.UpperBound = triggerKey(behind)
	}
	it, err := snap.NewIter(o)
	if err != nil {
		return nil, translate(err)
	}
	defer func() { err = errors.Join(err, translate(it.Close())) }()
	n := -1
	for ok := it.Last(); ok && len(out) < max; ok = it.Prev() {
		if err := sometimes(ctx, &n); err != nil {
			return nil, err
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, translate(err)
		}
		out = append(out, engine.Trigger{})
		row := &out[len(out)-1]
		h, err := readTrigger(string(it.Key()[1:]), v, row, false)
		if err == nil && h.split {
			err = t.row(snap, row.ID, row)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, translate(it.Error())
}

// listHead is the next key of one list.
type listHead struct {
	key    []byte
	prefix int // bytes of the key before the id
}

func (h listHead) id() []byte { return h.key[h.prefix:] }

// newestFirst merges lists by id, the highest first. It keeps a key of each and
// moves one iterator between them, at 2 us a row.
type newestFirst struct {
	it    *pebbledb.Iterator
	heads []listHead
}

func (l *newestFirst) Len() int           { return len(l.heads) }
func (l *newestFirst) Less(i, j int) bool { return bytes.Compare(l.heads[i].id(), l.heads[j].id()) > 0 }
func (l *newestFirst) Swap(i, j int)      { l.heads[i], l.heads[j] = l.heads[j], l.heads[i] }
func (l *newestFirst) Push(x any)         { l.heads = append(l.heads, x.(listHead)) }

func (l *newestFirst) Pop() any {
	last := l.heads[len(l.heads)-1]
	l.heads = l.heads[:len(l.heads)-1]
	return last
}

// pop goes on to the next id.
func (l *newestFirst) pop() {
	h := &l.heads[0]
	if l.before(h.key, h.prefix) {
		h.key = append(h.key[:0], l.it.Key()...)
		heap.Fix(l, 0)
		return
	}
	heap.Pop(l)
}

// before moves to the last key of the list that stands before k.
func (l *newestFirst) before(k []byte, prefix int) bool {
	return l.it.SeekLT(k) && bytes.HasPrefix(l.it.Key(), k[:prefix])
}

// add begins a list behind an id, if there is anything.
func (l *newestFirst) add(prefix []byte, behind string) {
	from := append(bytes.Clone(prefix), behind...)
	if behind == "" {
		from = after(prefix)
	}
	if l.it.SeekLT(from) && bytes.HasPrefix(l.it.Key(), prefix) {
		heap.Push(l, listHead{bytes.Clone(l.it.Key()), len(prefix)})
	}
}

// find adds every list of a caller and state; empty and 0: of any. It leaps from
// list to list, with one look into each.
func (l *newestFirst) find(ctx context.Context, caller string, state engine.TriggerState, behind string) error {
	n := -1
	next := []byte{tTriggerList, byte(state)}
	for l.it.SeekGE(next) {
		if err := sometimes(ctx, &n); err != nil {
			return err
		}
		k := l.it.Key()
		if !listKeyFits(k) {
			return corrupt("trigger index", k)
		}
		found := engine.TriggerState(k[1])
		if state != 0 && found != state {
			break
		}
		prefix := bytes.Clone(k[:listPrefix(k)])
		if caller != "" {
			prefix = appendListKey(nil, found, caller)
		}
		l.add(prefix, behind)
		switch {
		case caller == "":
			next = after(prefix)
		case found == math.MaxUint8:
			return translate(l.it.Error())
		default:
			next = []byte{tTriggerList, byte(found) + 1}
		}
	}
	return translate(l.it.Error())
}

// listPrefix is how many bytes of a key stand before the id.
func listPrefix(k []byte) int { return 4 + int(binary.BigEndian.Uint16(k[2:])) }

func listKeyFits(k []byte) bool { return len(k) >= 4 && len(k) >= listPrefix(k) }
