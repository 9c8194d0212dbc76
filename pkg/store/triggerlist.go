package store

import (
	"container/heap"
	"context"
	"errors"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/rows"
)

// List lists triggers by merging lists of ids. The index has one list for each state and caller. So
// a query for one state and one caller reads one list. Other queries merge the lists of several
// states or callers. A query for all triggers reads the rows instead. IN_FLIGHT triggers are in the
// list of PENDING triggers; List finds them by their ids, which are in the field flights. List reads
// the index and the rows from one view, so that they agree.
func (t *triggers) List(ctx context.Context, caller string, state engine.TriggerState, behind engine.TriggerCursor, max int) ([]engine.Trigger, error) {
	if max <= 0 || len(caller) > maxPart {
		return nil, nil
	}
	out, err := t.listPage(ctx, caller, state, behind.ID, max)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(out))
	for i := range out {
		ids[i] = out[i].ID
	}
	if err := t.locks.Settled(ctx, ids); err != nil { // wait until the states in out are durable, as in Get
		return nil, err
	}
	return out, nil
}

func (t *triggers) listPage(ctx context.Context, caller string, state engine.TriggerState, behind string, max int) (out []engine.Trigger, err error) {
	view, flying := t.flights.view(t.rows)
	defer func() { err = errors.Join(err, view.Close()) }()
	switch {
	case state == engine.TriggerInFlight:
		return t.listFlights(ctx, view, flying, caller, behind, max)
	case caller == "" && state == 0:
		return t.listRows(ctx, view, behind, max)
	}
	lists := newestFirst{view: view}
	if err := lists.findLists(ctx, caller, state, behind); err != nil {
		return nil, err
	}
	for len(lists.lists) > 0 && len(out) < max {
		id := lists.lists[0].ids[0]
		var row engine.Trigger
		if _, err := t.readRow(ctx, view, id, &row); err != nil {
			return nil, err
		}
		if row.ID == "" {
			return nil, corrupt(lists.lists[0].prefix + id) // the index lists a trigger that has no row
		}
		switch {
		case state == engine.TriggerPending && row.State != state: // this trigger is IN_FLIGHT
		case state == engine.TriggerOpen && !row.IsOpen():
		default:
			out = append(out, row)
		}
		if err := lists.advance(ctx); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// CountOpen counts the open triggers of a caller. It stops counting when the number exceeds the
// limit.
func (t *triggers) CountOpen(ctx context.Context, caller string, limit int) (n int, err error) {
	for behind, page := "", 1000; n <= limit; {
		rows, err := t.listPage(ctx, caller, engine.TriggerOpen, behind, page)
		if n += len(rows); err != nil || len(rows) < page {
			return n, err
		}
		behind = rows[len(rows)-1].ID
	}
	return n, nil
}

func (t *triggers) listRows(ctx context.Context, view rows.View, behind string, max int) (out []engine.Trigger, err error) {
	return scanList(ctx, view, tableTriggers, rows.Range{Before: behind, Back: true}, max, func(r rows.Row) (row engine.Trigger, err error) {
		h, err := readTrigger(r.Key, r.Value, &row, false)
		if err == nil && h.split {
			err = t.readHead(ctx, view, r.Key, &row, &h)
		}
		return row, err
	})
}

// triggerList is one list of the index: the ids of the triggers of one state and caller. It reads
// the ids in pages. Each page is twice as large as the page before, up to largestPage ids.
type triggerList struct {
	prefix string   // prefix of the list's keys
	ids    []string // ids that were read and not consumed yet, highest first
	page   int
}

const largestPage = 256

// newestFirst merges lists by id, with the highest id first. It is a heap of the lists that have ids.
type newestFirst struct {
	view  rows.View
	lists []*triggerList
}

func (l *newestFirst) Len() int           { return len(l.lists) }
func (l *newestFirst) Less(i, j int) bool { return l.lists[i].ids[0] > l.lists[j].ids[0] }
func (l *newestFirst) Swap(i, j int)      { l.lists[i], l.lists[j] = l.lists[j], l.lists[i] }
func (l *newestFirst) Push(x any)         { l.lists = append(l.lists, x.(*triggerList)) }

func (l *newestFirst) Pop() any {
	last := l.lists[len(l.lists)-1]
	l.lists = l.lists[:len(l.lists)-1]
	return last
}

// advance moves to the next id: it removes the highest id, which is the first id of the list on top
// of the heap.
func (l *newestFirst) advance(ctx context.Context) error {
	first := l.lists[0]
	id := first.ids[0]
	if first.ids = first.ids[1:]; len(first.ids) == 0 {
		if err := l.readPage(ctx, first, id); err != nil {
			return err
		}
	}
	if len(first.ids) == 0 {
		heap.Pop(l)
		return nil
	}
	heap.Fix(l, 0)
	return nil
}

// readPage reads the next page of a list: the ids that are less than the id behind, highest id
// first. If behind is empty, it reads the first page.
func (l *newestFirst) readPage(ctx context.Context, list *triggerList, behind string) (err error) {
	in := rows.Range{Prefix: list.prefix, Back: true}
	if behind != "" {
		in.Before = list.prefix + behind
	}
	list.page = min(max(2*list.page, 1), largestPage)
	list.ids, err = scanList(ctx, l.view, tableTriggerList, in, list.page, func(r rows.Row) (string, error) { return r.Key[len(list.prefix):], nil })
	return err
}

// findLists adds the lists of a caller and a state, if they have ids less than the id behind. An
// empty caller means all callers. State 0 means all states.
func (l *newestFirst) findLists(ctx context.Context, caller string, state engine.TriggerState, behind string) error {
	for one := engine.TriggerState(0); one <= engine.TriggerExpired; one++ {
		open := state == engine.TriggerOpen && (one == engine.TriggerPending || one == engine.TriggerFailed)
		if state != 0 && state != one && !open {
			continue
		}
		if caller != "" {
			if err := l.addList(ctx, string(appendListKey(nil, one, caller)), behind); err != nil {
				return err
			}
			continue
		}
		for prefix := ""; ; {
			next, err := l.nextList(ctx, one, prefix)
			if err == nil && next != "" {
				err = l.addList(ctx, next, behind)
			}
			if err != nil {
				return err
			}
			if prefix = next; prefix == "" {
				break
			}
		}
	}
	return nil
}

// addList adds a list if it has ids less than the id behind.
func (l *newestFirst) addList(ctx context.Context, prefix, behind string) error {
	of := &triggerList{prefix: prefix}
	err := l.readPage(ctx, of, behind)
	if err == nil && len(of.ids) > 0 {
		heap.Push(l, of)
	}
	return err
}

// nextList returns the prefix of the list of a state that follows the list with this prefix. If the
// parameter prefix is empty, it returns the prefix of the first list. It returns "" if there is no
// further list. It reads only one row.
func (l *newestFirst) nextList(ctx context.Context, state engine.TriggerState, prefix string) (next string, err error) {
	in := rows.Range{Prefix: string([]byte{byte(state)})}
	if prefix != "" {
		in.After = prefixEnd(prefix)
	}
	err = l.view.Scan(ctx, tableTriggerList, in, func(r rows.Row) (bool, error) {
		caller, _, ok := cutStr(r.Key[1:])
		if !ok {
			return false, corrupt(r.Key)
		}
		next = r.Key[:1+2+len(caller)]
		return false, nil
	})
	return next, err
}
