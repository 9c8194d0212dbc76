package cassandra

import (
	"context"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
)

// There are two kinds of lists of triggers. listTriggers has all triggers. listOpen has the
// triggers that engine.TriggerOpen selects. Each kind has one list for all callers together
// and one list for each caller.
const (
	listTriggers = "triggers"
	listOpen     = "triggers_open"
)

// listOf returns the name of the list of one kind and one caller. If caller is "", it
// returns the name of the list for all callers.
func listOf(kind, caller string) string {
	if caller == "" {
		return kind
	}
	return kind + "/" + caller
}

func listEntries(list string, x *engine.Trigger) []listEntry {
	ms, key := msOfTrigger(x.ID), []byte(x.ID)
	es := []listEntry{{list, ms, key}}
	if x.Caller != "" {
		es = append(es, listEntry{listOf(list, x.Caller), ms, key})
	}
	return es
}

// addToLists adds a trigger to its lists.
func (t triggers) addToLists(ctx context.Context, x *engine.Trigger) error {
	es := listEntries(listTriggers, x)
	if x.IsOpen() {
		es = append(es, listEntries(listOpen, x)...)
	}
	return addToList(ctx, t.s, 0, es...)
}

// List implements engine.Triggers. It reads the entries of a list and then the row of each
// entry. Open triggers have a separate list, so that PENDING triggers are found quickly
// even if the caller has millions of ended triggers. Rows are read at Config.Consistency.
// Every swap that has returned is committed, so the read includes it. List removes entries
// that have no row, and entries of the open list whose row is not open. An interrupted
// Purge or Swap may have left such entries.
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
	tidyAt := tidyTimestamp(t.s)
	return collectListed(ctx, t.s, list, behind, msOfTrigger(after.ID), max, func(key []byte) (engine.Trigger, bool, error) {
		x, err := t.plainRow(ctx, string(key))
		if err != nil {
			return engine.Trigger{}, false, err
		}
		ofCaller := x.ID != "" && (caller == "" || x.Caller == caller)
		if !ofCaller || open && !x.IsOpen() {
			err = removeFromList(ctx, t.s, tidyAt, listEntry{list, msOfTrigger(string(key)), key})
		}
		inState := state == 0 || x.State == state || state == engine.TriggerOpen && x.IsOpen()
		return x.Trigger, ofCaller && inState, err
	})
}

// CountOpen implements engine.Triggers. It counts the entries of the open list and does not
// read the rows.
func (t triggers) CountOpen(ctx context.Context, caller string, most int) (int, error) {
	return countListed(ctx, t.s, listOf(listOpen, caller), most)
}

const purgeOfTriggers = "triggers_by_end"

// indexEnd adds a terminal row to the list of Purge. For other rows it does nothing. It is
// called before the row is stored, so that Purge finds every terminal row.
func (t triggers) indexEnd(ctx context.Context, x *engine.Trigger) error {
	if !x.State.Terminal() {
		return nil
	}
	return purgeLater(ctx, t.s, purgeOfTriggers, purgeEntry{x.Ended, []byte(x.ID)}, 0)
}

// Purge implements engine.Triggers. It reads the list of ended triggers, earliest end
// first. If a trigger was opened again after the entry was stored, the trigger stays and
// only the old entry is removed.
func (t triggers) Purge(ctx context.Context, before int64, max int) (int, error) {
	var removedFrom partSet
	n, err := purgeListed(ctx, t.s, purgeOfTriggers, before, max, func(e purgeEntry) (gone, again bool, err error) {
		x, err := t.plainRow(ctx, string(e.id))
		if err != nil || x.ID == "" || !x.State.Terminal() || x.Ended != e.at {
			return false, false, err
		}
		gone, err = t.purgeRow(ctx, &x)
		if err == nil && gone {
			es := slices.Concat(listEntries(listTriggers, &x.Trigger), listEntries(listOpen, &x.Trigger))
			removedFrom.add(es)
			err = removeFromList(ctx, t.s, t.s.clock.now(), es...)
		}
		return gone, false, err
	})
	if err != nil {
		return n, err
	}
	return n, removedFrom.forgetEmpty(ctx, t.s)
}

// purgeRow removes a row if the row has not changed since it was read.
func (t triggers) purgeRow(ctx context.Context, x *triggerRow) (gone bool, err error) {
	return t.s.swapVersion(ctx, versionSwap{
		what: "the purge of the trigger " + x.ID, from: int64(x.Version), readBack: triggerVersionQuery(x.ID), elseLost: true,
	}, stmt{`DELETE FROM triggers WHERE id = ? IF version = ?`, []any{x.ID, int64(x.Version)}})
}
