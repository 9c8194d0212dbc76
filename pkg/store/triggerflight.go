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

// flights knows which triggers are IN_FLIGHT. On the disk a swap writes the ids
// of all rows it claims as one row (table K), which goes when the last of them
// has left the state; the rows themselves stay in the list of the waiting ones.
// So a claim costs one row, and no index.
type flights struct {
	mu   sync.Mutex
	next uint64
	of   map[string]*flight
	gone [][]byte // keys of flights that are over; the next swap deletes them
}

type flight struct {
	key  uint64
	left int // ids that are still in it
}

func flightKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

const flightVersion = 1

func flightFields(c *codec.Codec, ids *[]string) {
	codec.Slice(c, ids)
	for i := range *ids {
		c.Str(&(*ids)[i])
	}
}

// begin adds ids, each once, before they are written, and returns the row that says so;
// nil when all of them were in flight already. It changes ids.
func (f *flights) begin(ids []string) (key, value []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids = slices.DeleteFunc(ids, func(id string) bool { return f.of[id] != nil })
	if len(ids) == 0 {
		return nil, nil
	}
	f.next++
	x := &flight{key: f.next, left: len(ids)}
	for _, id := range ids {
		f.of[id] = x
	}
	c := codec.Packer(make([]byte, 0, 32*(1+len(ids))), flightVersion)
	flightFields(&c, &ids)
	return flightKey(x.key), c.Packed()
}

// end takes ids out, after what they left for is written.
func (f *flights) end(ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		f.leaveLocked(id)
	}
}

func (f *flights) leaveLocked(id string) {
	x := f.of[id]
	if x == nil {
		return
	}
	delete(f.of, id)
	if x.left--; x.left == 0 {
		f.gone = append(f.gone, flightKey(x.key))
	}
}

// over returns the keys of flights that are over, once.
func (f *flights) over() (keys [][]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	keys, f.gone = f.gone, nil
	return keys
}

// view returns a view of the store and all ids that may be IN_FLIGHT in it.
func (f *flights) view(from rows.Rows) (rows.View, map[string]*flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return from.View(), maps.Clone(f.of)
}

// load reads what the process before left.
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
		if err := t.headers(ctx, ids, func(id string, h triggerHeader) { now[id] = h }); err != nil {
			return false, err
		}
		n := &flight{key: numberAt(r.Key)}
		for id, h := range now {
			if h.state == engine.TriggerInFlight {
				f.leaveLocked(id)
				f.of[strings.Clone(id)] = n
				n.left++
			}
		}
		f.next = max(f.next, n.key)
		if n.left == 0 {
			f.gone = append(f.gone, flightKey(n.key))
		}
		return true, nil
	})
}

// listFlights returns rows that are IN_FLIGHT, newest id first.
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
		if _, err := t.row(ctx, view, id, &row); err != nil {
			return nil, err
		}
		if row.ID != "" && row.State == engine.TriggerInFlight && (caller == "" || row.Caller == caller) {
			out = append(out, row)
		}
	}
	return out, nil
}
