package cassandra

import (
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

type triggers struct{ s *Store }

// stored is a state row with what only this package looks at.
type stored struct {
	engine.Trigger
	at int64
}

const selectTrigger = `SELECT version, at, state, ended, request, data FROM triggers WHERE id = ?`

// row reads a state row at SERIAL; a row that is not there has no ID.
func (t triggers) row(ctx context.Context, id string) (stored, error) {
	return t.read(ctx, id, t.s.getSerial)
}

// plainRow returns the row as of every swap answered before. Unlike row it does not
// settle swaps that are under way, and it costs a third.
func (t triggers) plainRow(ctx context.Context, id string) (stored, error) {
	return t.read(ctx, id, t.s.get)
}

func (t triggers) read(ctx context.Context, id string, get func(context.Context, string, []any, ...any) (bool, error)) (x stored, err error) {
	if id == "" {
		return x, nil // the driver would be refused: a key is not empty
	}
	var version int64
	var state int16
	var request, data []byte
	ok, err := get(ctx, selectTrigger, []any{id}, &version, &x.at, &state, &x.Ended, &request, &data)
	if err != nil || !ok {
		return stored{}, err
	}
	t.s.clock.see(x.at)
	x.ID, x.Version, x.State = id, uint64(version), engine.TriggerState(state)
	if !codec.Unpack(request, store.TriggerVersion, func(c *codec.Codec) { store.TriggerRequest(c, &x.Trigger) }) {
		return stored{}, notify.Unread("cassandra", "the request of the trigger "+id, request, store.TriggerVersion)
	}
	if !codec.Unpack(data, store.TriggerVersion, func(c *codec.Codec) { store.TriggerProgress(c, &x.Trigger) }) {
		return stored{}, notify.Unread("cassandra", "the trigger "+id, data, store.TriggerVersion)
	}
	return x, nil
}

// Get does not settle a swap that is under way. A caller that acts on a row swaps it, and
// that swap settles the one before.
func (t triggers) Get(ctx context.Context, ids []string) ([]engine.Trigger, error) {
	return readEach(ids, func(id string) (engine.Trigger, error) {
		x, err := t.plainRow(ctx, id)
		return x.Trigger, err
	})
}

// Create stores the index rows first: a row that is there is listed, an index row
// without one is skipped.
func (t triggers) Create(ctx context.Context, ts []engine.Trigger) ([]bool, error) {
	won := make([]bool, len(ts))
	seen := map[string]bool{}
	var todo []int
	for i := range ts {
		if err := ts[i].Check(); err != nil {
			return nil, err
		}
		if !seen[ts[i].ID] {
			seen[ts[i].ID] = true
			todo = append(todo, i)
		}
	}
	err := parallel(len(todo), func(k int) (err error) {
		i := todo[k]
		won[i], err = t.create(ctx, &ts[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	return won, nil
}

func (t triggers) create(ctx context.Context, x *engine.Trigger) (bool, error) {
	began := time.Now()
	if err := t.list(ctx, x); err != nil {
		return false, err
	}
	if err := t.end(ctx, x); err != nil {
		return false, err
	}
	me, at := nonce(), t.s.clock.now()
	request := codec.Pack(store.TriggerVersion, func(c *codec.Codec) { store.TriggerRequest(c, x) })
	won, err := t.s.swap(ctx, swap{what: "trigger " + x.ID, to: 1, writer: me, look: lookAtTrigger(x.ID)}, stmt{
		`INSERT INTO triggers (id, version, writer, at, state, ended, digest, request, data) VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS`,
		[]any{x.ID, me, at, int16(x.State), x.Ended, digest(request), request, codec.Pack(store.TriggerVersion, func(c *codec.Codec) { store.TriggerProgress(c, x) })},
	})
	if err != nil || !won {
		return false, err
	}
	return true, t.listAgain(ctx, x, began)
}

// listAgain lists a row again whose entries were made so long ago that a list may
// have met them without it, and struck them.
func (t triggers) listAgain(ctx context.Context, x *engine.Trigger, began time.Time) error {
	if time.Since(began) < tidyBehind/2 || !x.IsOpen() {
		return nil
	}
	return t.list(ctx, x)
}

func digest(request []byte) int64 { return int64(notify.ColumnDigest(request)) }

func lookAtTrigger(id string) stmt {
	return stmt{`SELECT version, writer FROM triggers WHERE id = ?`, []any{id}}
}

// Swap runs the swaps of one id one after the other, those of different ids at
// the same time.
func (t triggers) Swap(ctx context.Context, ss []engine.TriggerSwap) ([]bool, error) {
	won := make([]bool, len(ss))
	of := map[string][]int{}
	var ids []string
	for i := range ss {
		if err := ss[i].New.Check(); err != nil {
			return nil, err
		}
		id := ss[i].New.ID
		if of[id] == nil {
			ids = append(ids, id)
		}
		of[id] = append(of[id], i)
	}
	err := parallel(len(ids), func(k int) (err error) {
		for _, i := range of[ids[k]] {
			if ss[i].Old == 0 {
				continue // Create is for that
			}
			if won[i], err = t.swap(ctx, ss[i].Old, &ss[i].New); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return won, nil
}

func (t triggers) swap(ctx context.Context, old uint64, x *engine.Trigger) (bool, error) {
	request := codec.Pack(store.TriggerVersion, func(c *codec.Codec) { store.TriggerRequest(c, x) })
	data := codec.Pack(store.TriggerVersion, func(c *codec.Codec) { store.TriggerProgress(c, x) })
	if err := t.end(ctx, x); err != nil {
		return false, err
	}
	me, at := nonce(), t.s.clock.now()
	w := swap{what: "trigger " + x.ID, from: int64(old), to: int64(old + 1), writer: me, look: lookAtTrigger(x.ID)}
	won, err := t.s.swap(ctx, w, stmt{
		`UPDATE triggers SET version = ?, writer = ?, at = ?, state = ?, ended = ?, data = ? WHERE id = ? IF version = ? AND digest = ? AND state <= 2`,
		[]any{w.to, me, at, int16(x.State), x.Ended, data, x.ID, w.from, digest(request)},
	})
	if err != nil {
		return false, err
	}
	if !won {
		if won, err = t.swapWhole(ctx, w, x, at, request, data); err != nil || !won {
			return false, err
		}
	}
	if x.IsOpen() {
		return true, nil
	}
	return true, removeFromList(ctx, t.s, at, listEntries(listOpen, x)...) // of a later state the entry is newer
}

// swapWhole is swap for the few that lose the first try: to somebody else, or
// because they change the request, or make a row live again that had ended.
func (t triggers) swapWhole(ctx context.Context, w swap, x *engine.Trigger, at int64, request, data []byte) (bool, error) {
	was, err := t.row(ctx, x.ID)
	if err != nil || was.ID == "" || int64(was.Version) != w.from {
		return false, err
	}
	began := time.Now()
	if was.Caller != x.Caller || !was.IsOpen() && x.IsOpen() {
		// It must be listed before it is there again.
		if err := t.list(ctx, x); err != nil {
			return false, err
		}
	}
	won, err := t.s.swap(ctx, w, stmt{
		`UPDATE triggers SET version = ?, writer = ?, at = ?, state = ?, ended = ?, digest = ?, request = ?, data = ? WHERE id = ? IF version = ?`,
		[]any{w.to, w.writer, at, int16(x.State), x.Ended, digest(request), request, data, x.ID, w.from},
	})
	if err != nil || !won {
		return false, err
	}
	return true, t.listAgain(ctx, x, began)
}

const triggerAlphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ" // of a ULID

// msOfTrigger is when an id was made, trg_<ULID>, in ms since 1970. It never falls
// while ids rise, whatever they look like, so that buckets of time can be read one
// after the other.
func msOfTrigger(id string) int64 {
	const prefix = "trg_"
	switch {
	case id < prefix:
		return -1
	case id[:min(len(id), len(prefix))] != prefix:
		return 1 << 51 // behind all times of 10 digits
	}
	ms, digits := int64(0), 0
	for _, c := range []byte(id[len(prefix):]) {
		if digits == 10 {
			break
		}
		n, exact := slices.BinarySearch([]byte(triggerAlphabet), c)
		ms, digits = ms<<5+int64(n), digits+1
		if !exact {
			break
		}
	}
	return ms << (5 * (10 - digits))
}
