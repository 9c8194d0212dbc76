package pebble

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"sync"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/notifyd/notifyd/pkg/engine"
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

func flightKey(n uint64) []byte { return uintKey(tFlight, n) }

// begin adds ids, before they are written, and returns the row that says so; nil
// when all of them were in flight already.
func (f *flights) begin(ids []string) (key, value []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := &flight{key: f.next + 1}
	for _, id := range ids {
		if f.of[id] == nil {
			f.of[id] = x
			x.left++
			value = appendLen(value, id)
		}
	}
	if x.left == 0 {
		return nil, nil
	}
	f.next++
	return flightKey(x.key), value
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

// snapshot returns a view of the store and all ids that may be IN_FLIGHT in it.
func (f *flights) snapshot(db *pebbledb.DB) (*pebbledb.Snapshot, map[string]struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids := make(map[string]struct{}, len(f.of))
	for id := range f.of {
		ids[id] = struct{}{}
	}
	return db.NewSnapshot(), ids
}

// load reads what the process before left, and moves what older releases kept
// in lists of their own.
func (t *triggers) load(s *Store) error {
	t.s = s
	if t.splitFrom == 0 {
		t.splitFrom = splitFrom
	}
	f := &t.flights
	f.of = map[string]*flight{}
	err := s.each(under([]byte{tFlight}), func(k, v []byte) (bool, error) {
		if len(k) != 9 {
			return false, corrupt("claimed triggers", k)
		}
		n, d := &flight{key: binary.BigEndian.Uint64(k[1:])}, reader{b: v}
		for len(d.b) > 0 && !d.bad {
			id := strings.Clone(d.string())
			if h, ok, err := t.header(triggerKey(id), id); err != nil {
				return false, err
			} else if ok && h.state == engine.TriggerInFlight {
				f.leaveLocked(id)
				f.of[id] = n
				n.left++
			}
		}
		f.next = max(f.next, n.key)
		if n.left == 0 {
			f.gone = append(f.gone, flightKey(n.key))
		}
		return true, nil
	})
	return err
}

// listFlights returns rows that are IN_FLIGHT, newest id first.
func (t *triggers) listFlights(ctx context.Context, snap *pebbledb.Snapshot, flying map[string]struct{}, caller, behind string, max int) (out []engine.Trigger, err error) {
	ids := make([]string, 0, len(flying))
	for id := range flying {
		if behind == "" || id < behind {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	n := -1
	for _, id := range ids {
		if len(out) == max {
			break
		}
		if err := sometimes(ctx, &n); err != nil {
			return nil, err
		}
		var row engine.Trigger
		if err := t.row(snap, id, &row); err != nil {
			return nil, err
		}
		if row.ID != "" && row.State == engine.TriggerInFlight && (caller == "" || row.Caller == caller) {
			out = append(out, row)
		}
	}
	return out, nil
}
