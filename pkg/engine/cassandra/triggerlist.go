package cassandra

import (
	"context"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
)

// The lists of triggers, of all callers and of each caller: every trigger, and the
// triggers with an open call or an open dead letter (engine.TriggerOpen).
const (
	listTriggers = "triggers"
	listOpen     = "triggers_open"
)

// listOf is a list of a caller; "": of all.
func listOf(list, caller string) string {
	if caller == "" {
		return list
	}
	return list + "/" + caller
}

func listEntries(list string, x *engine.Trigger) []listEntry {
	ms, key := msOfTrigger(x.ID), []byte(x.ID)
	es := []listEntry{{list, ms, key}}
	if x.Caller != "" {
		es = append(es, listEntry{listOf(list, x.Caller), ms, key})
	}
	return es
}

// list puts a trigger into the lists it belongs to.
func (t triggers) list(ctx context.Context, x *engine.Trigger) error {
	es := listEntries(listTriggers, x)
	if x.IsOpen() {
		es = append(es, listEntries(listOpen, x)...)
	}
	return addToList(ctx, t.s, 0, es...)
}

// List reads the rows that a list names. Open triggers have a list of their own, so
// that a caller's PENDING triggers are found among millions that ended. Rows are
// read at Config.Consistency: a swap that was answered has been committed there.
// Entries that lead to no row, or in a list of open ones to nothing open, are struck:
// a purge that was interrupted leaves some.
func (t triggers) List(ctx context.Context, caller string, state engine.TriggerState, after engine.TriggerCursor, max int) ([]engine.Trigger, error) {
	list, open := listTriggers, false
	if state == engine.TriggerOpen || state == engine.TriggerPending || state == engine.TriggerInFlight {
		list, open = listOpen, true
	}
	list = listOf(list, caller)
	var behind []byte
	if after.ID != "" {
		behind = []byte(after.ID)
	}
	settled := settledBefore(t.s)
	return pick(ctx, t.s, list, behind, msOfTrigger(after.ID), max, func(key []byte) (engine.Trigger, bool, error) {
		x, err := t.plainRow(ctx, string(key))
		if err != nil {
			return engine.Trigger{}, false, err
		}
		mine := x.ID != "" && (caller == "" || x.Caller == caller)
		if !mine || open && !x.IsOpen() {
			err = removeFromList(ctx, t.s, settled, listEntry{list, msOfTrigger(string(key)), key})
		}
		asked := state == 0 || x.State == state || state == engine.TriggerOpen && x.IsOpen()
		return x.Trigger, mine && asked, err
	})
}

// CountOpen counts entries of a list, not rows.
func (t triggers) CountOpen(ctx context.Context, caller string, most int) (int, error) {
	return countListed(ctx, t.s, listOf(listOpen, caller), most)
}

const purgeOfTriggers = "triggers_by_end"

// end lets Purge find a row that is about to end. It goes before the swap.
func (t triggers) end(ctx context.Context, x *engine.Trigger) error {
	if !x.State.Terminal() {
		return nil
	}
	return purgeLater(ctx, t.s, purgeOfTriggers, purgeEntry{x.Ended, []byte(x.ID)}, 0)
}

// Purge goes through the index of ends, oldest first, many rows at a time. A row
// that has ended anew since, or lives again, stays; its old entry goes.
func (t triggers) Purge(ctx context.Context, before int64, max int) (int, error) {
	var struck partSet
	n, err := workOffPurges(ctx, t.s, purgeOfTriggers, before, max, func(e purgeEntry) (gone, again bool, err error) {
		x, err := t.plainRow(ctx, string(e.id))
		if err != nil || x.ID == "" || !x.State.Terminal() || x.Ended != e.at {
			return false, false, err
		}
		gone, err = t.purge(ctx, &x)
		if err == nil && gone {
			es := slices.Concat(listEntries(listTriggers, &x.Trigger), listEntries(listOpen, &x.Trigger))
			struck.add(es)
			err = removeFromList(ctx, t.s, t.s.clock.now(), es...)
		}
		return gone, false, err
	})
	if err != nil {
		return n, err
	}
	return n, struck.forget(ctx, t.s)
}

// purge removes a row if it is as it was read.
func (t triggers) purge(ctx context.Context, x *stored) (gone bool, err error) {
	return t.s.swap(ctx, swap{
		what: "purge of " + x.ID, from: int64(x.Version), look: lookAtTrigger(x.ID), elseLost: true,
	}, stmt{`DELETE FROM triggers WHERE id = ? IF version = ?`, []any{x.ID, int64(x.Version)}})
}
