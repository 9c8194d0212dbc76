package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// flights is the record of the triggers that are IN_FLIGHT. A flight is the set of triggers that
// one swap claimed. It is stored as one row with the ids of the triggers (tableFlights). The row is
// deleted when none of these triggers is IN_FLIGHT any more. The index of states still lists these
// triggers as PENDING. So a swap that claims many triggers writes one row, and does not change the
// index.
type flights struct {
	mu        sync.Mutex
	next      uint64
	byTrigger map[string]*flight
	emptyKeys [][]byte // keys of flights without triggers; the next swap deletes their rows
}

type flight struct {
	key       uint64
	remaining int // number of triggers that are still in the flight
}

func flightKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

const flightVersion = 1

func flightFields(c *codec.Codec, ids *[]string) {
	codec.Slice(c, ids)
	for i := range *ids {
		c.Str(&(*ids)[i])
	}
}

// addFlight makes a new flight of those ids that are not in a flight yet. It returns the key and
// value of its row, or nil if all ids are in flights already. The caller calls addFlight before it
// writes the claims. addFlight reorders ids.
func (f *flights) addFlight(ids []string) (key, value []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids = slices.DeleteFunc(ids, func(id string) bool { return f.byTrigger[id] != nil })
	if len(ids) == 0 {
		return nil, nil
	}
	f.next++
	x := &flight{key: f.next, remaining: len(ids)}
	for _, id := range ids {
		f.byTrigger[id] = x
	}
	c := codec.Packer(make([]byte, 0, 32*(1+len(ids))), flightVersion)
	flightFields(&c, &ids)
	return flightKey(x.key), c.Packed()
}

// leave removes ids from their flights. The caller calls it when the triggers' new states are
// durable.
func (f *flights) leave(ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		f.leaveLocked(id)
	}
}

func (f *flights) leaveLocked(id string) {
	x := f.byTrigger[id]
	if x == nil {
		return
	}
	delete(f.byTrigger, id)
	if x.remaining--; x.remaining == 0 {
		f.emptyKeys = append(f.emptyKeys, flightKey(x.key))
	}
}

// takeEmptyKeys returns the keys of flights without triggers, and forgets them, so that no later
// call returns them again. The caller must delete the rows with these keys.
func (f *flights) takeEmptyKeys() (keys [][]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	keys, f.emptyKeys = f.emptyKeys, nil
	return keys
}

// view returns a view of the store, and the ids of all triggers that may be IN_FLIGHT in this view.
func (f *flights) view(from rows.Rows) (rows.View, map[string]*flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return from.View(), maps.Clone(f.byTrigger)
}

// load reads the flights that the previous process has stored.
func (t *triggers) load(ctx context.Context) error {
	f := &t.flights
	return t.rows.Scan(ctx, tableFlights, rows.Range{}, func(r rows.Row) (bool, error) {
		if len(r.Key) != 8 {
			return false, corrupt(r.Key)
		}
		var ids []string
		c := codec.Unpacker(r.Value, flightVersion)
		if flightFields(&c, &ids); !c.Whole() {
			return false, notify.Unread("store", fmt.Sprintf("claimed triggers at %x", r.Key), r.Value, flightVersion)
		}
		now := map[string]triggerHeader{}
		if err := t.readHeaders(ctx, ids, func(id string, h triggerHeader) { now[id] = h }); err != nil {
			return false, err
		}
		n := &flight{key: numberAt(r.Key)}
		for id, h := range now {
			if h.state == engine.TriggerInFlight {
				f.leaveLocked(id)
				f.byTrigger[strings.Clone(id)] = n
				n.remaining++
			}
		}
		f.next = max(f.next, n.key)
		if n.remaining == 0 {
			f.emptyKeys = append(f.emptyKeys, flightKey(n.key))
		}
		return true, nil
	})
}

// listFlights returns IN_FLIGHT triggers, newest id first. If the parameter behind is not empty,
// only triggers whose ids are less than this id are returned.
func (t *triggers) listFlights(ctx context.Context, view rows.View, flying map[string]*flight, caller, behind string, max int) (out []engine.Trigger, err error) {
	ids := slices.Sorted(maps.Keys(flying))
	slices.Reverse(ids)
	for _, id := range ids {
		if len(out) == max {
			break
		}
		if behind != "" && id >= behind {
			continue
		}
		var row engine.Trigger
		if _, err := t.readRow(ctx, view, id, &row); err != nil {
			return nil, err
		}
		if row.ID != "" && row.State == engine.TriggerInFlight && (caller == "" || row.Caller == caller) {
			out = append(out, row)
		}
	}
	return out, nil
}
