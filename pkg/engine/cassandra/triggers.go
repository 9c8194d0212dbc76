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

// triggerRow is a state row as it is stored.
type triggerRow struct {
	engine.Trigger
	at int64 // time of the write, from the clock of its writer, µs since 1970
}

const selectTrigger = `SELECT version, at, state, ended, request, data FROM triggers WHERE id = ?`

// serialRow reads a state row with the consistency SERIAL. If the row does not exist, the result
// has no ID.
func (t triggers) serialRow(ctx context.Context, id string) (triggerRow, error) {
	return t.readRow(ctx, id, t.s.getSerial)
}

// plainRow reads a state row at Config.Consistency. The result includes every swap that
// returned before the call. Unlike serialRow, plainRow does not complete a swap that is
// still running. It costs a third of serialRow.
func (t triggers) plainRow(ctx context.Context, id string) (triggerRow, error) {
	return t.readRow(ctx, id, t.s.get)
}

func (t triggers) readRow(ctx context.Context, id string, get func(context.Context, string, []any, ...any) (bool, error)) (x triggerRow, err error) {
	if id == "" {
		return x, nil // Cassandra refuses an empty key
	}
	var version int64
	var state int16
	var request, data []byte
	ok, err := get(ctx, selectTrigger, []any{id}, &version, &x.at, &state, &x.Ended, &request, &data)
	if err != nil || !ok {
		return triggerRow{}, err
	}
	t.s.clock.observe(x.at)
	x.ID, x.Version, x.State = id, uint64(version), engine.TriggerState(state)
	if !codec.Unpack(request, store.TriggerVersion, func(c *codec.Codec) { store.TriggerRequest(c, &x.Trigger) }) {
		return triggerRow{}, notify.Unread("cassandra", "the request of the trigger "+id, request, store.TriggerVersion)
	}
	if !codec.Unpack(data, store.TriggerVersion, func(c *codec.Codec) { store.TriggerProgress(c, &x.Trigger) }) {
		return triggerRow{}, notify.Unread("cassandra", "the trigger "+id, data, store.TriggerVersion)
	}
	return x, nil
}

// Get implements engine.Triggers. It does not complete a swap that is still running. A
// caller that acts on a row must swap the row, and its swap completes the earlier swap.
func (t triggers) Get(ctx context.Context, ids []string) ([]engine.Trigger, error) {
	return readEach(ids, func(id string) (engine.Trigger, error) {
		x, err := t.plainRow(ctx, id)
		return x.Trigger, err
	})
}

// Create implements engine.Triggers. It stores the entries of the lists before the row, so
// every stored row is listed. List skips entries that have no row.
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
	if err := t.addToLists(ctx, x); err != nil {
		return false, err
	}
	if err := t.indexEnd(ctx, x); err != nil {
		return false, err
	}
	me, at := nonce(), t.s.clock.now()
	request := codec.Pack(store.TriggerVersion, func(c *codec.Codec) { store.TriggerRequest(c, x) })
	won, err := t.s.swapVersion(ctx, versionSwap{what: "the trigger " + x.ID, to: 1, writer: me, readBack: triggerVersionQuery(x.ID)}, stmt{
		`INSERT INTO triggers (id, version, writer, at, state, ended, digest, request, data) VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS`,
		[]any{x.ID, me, at, int16(x.State), x.Ended, digest(request), request, codec.Pack(store.TriggerVersion, func(c *codec.Codec) { store.TriggerProgress(c, x) })},
	})
	if err != nil || !won {
		return false, err
	}
	return true, t.listAgain(ctx, x, began)
}

// listAgain adds the entries of a row again if much time has passed between adding the
// entries and storing the row. During that time List may have removed the entries because
// their row did not exist yet.
func (t triggers) listAgain(ctx context.Context, x *engine.Trigger, began time.Time) error {
	if time.Since(began) < tidyBehind/2 || !x.IsOpen() {
		return nil
	}
	return t.addToLists(ctx, x)
}

func digest(request []byte) int64 { return int64(notify.ColumnDigest(request)) }

func triggerVersionQuery(id string) stmt {
	return stmt{`SELECT version, writer FROM triggers WHERE id = ?`, []any{id}}
}

// Swap implements engine.Triggers. It runs swaps of the same id one after the other, and
// swaps of different ids at the same time.
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
				continue // only Create creates a row
			}
			if won[i], err = t.swapRow(ctx, ss[i].Old, &ss[i].New); err != nil {
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

// swapRow replaces the state of a row, but not its request. The swap is applied only if the row is
// PENDING or IN_FLIGHT and has the same request. Otherwise swapRow tries swapWhole.
func (t triggers) swapRow(ctx context.Context, old uint64, x *engine.Trigger) (bool, error) {
	request := codec.Pack(store.TriggerVersion, func(c *codec.Codec) { store.TriggerRequest(c, x) })
	data := codec.Pack(store.TriggerVersion, func(c *codec.Codec) { store.TriggerProgress(c, x) })
	if err := t.indexEnd(ctx, x); err != nil {
		return false, err
	}
	me, at := nonce(), t.s.clock.now()
	w := versionSwap{what: "the trigger " + x.ID, from: int64(old), to: int64(old + 1), writer: me, readBack: triggerVersionQuery(x.ID)}
	won, err := t.s.swapVersion(ctx, w, stmt{
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
	return true, removeFromList(ctx, t.s, at, listEntries(listOpen, x)...) // an entry that is added when the trigger opens again has a later timestamp, so it stays
}

// swapWhole does what swapRow does and also replaces the request. It is for the few swaps that the
// first try does not apply: the swap changes the request, it opens an ended row, or another writer
// was faster.
func (t triggers) swapWhole(ctx context.Context, w versionSwap, x *engine.Trigger, at int64, request, data []byte) (bool, error) {
	was, err := t.serialRow(ctx, x.ID)
	if err != nil || was.ID == "" || int64(was.Version) != w.from {
		return false, err
	}
	began := time.Now()
	if was.Caller != x.Caller || !was.IsOpen() && x.IsOpen() {
		// The entries must be stored before the row is open again.
		if err := t.addToLists(ctx, x); err != nil {
			return false, err
		}
	}
	won, err := t.s.swapVersion(ctx, w, stmt{
		`UPDATE triggers SET version = ?, writer = ?, at = ?, state = ?, ended = ?, digest = ?, request = ?, data = ? WHERE id = ? IF version = ?`,
		[]any{w.to, w.writer, at, int16(x.State), x.Ended, digest(request), request, data, x.ID, w.from},
	})
	if err != nil || !won {
		return false, err
	}
	return true, t.listAgain(ctx, x, began)
}

const triggerAlphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ" // the digits of a ULID

// msOfTrigger returns when an id trg_<ULID> was created, ms since 1970. It returns a time
// for any text. A greater id never has a smaller time, so that a list can be read bucket by
// bucket.
func msOfTrigger(id string) int64 {
	const prefix = "trg_"
	switch {
	case id < prefix:
		return -1
	case id[:min(len(id), len(prefix))] != prefix:
		return 1 << 51 // later than all times of 10 digits
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
