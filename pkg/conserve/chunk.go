package conserve

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Where the evidence of what is pending lies.
const (
	inLog      = "log"
	inClaim    = "claimed"
	inTimer    = "parked"
	inHold     = "behind"
	inSchedule = "scheduled"
	inSpill    = "spilled"
)

// codeBehind is the code of the worker's deferrals in a lane of strict order.
const codeBehind = "behind"

// original counts a chunk: what its rows say is terminal, and what leads on. The
// rest is suspected.
func (r *run) original(ctx context.Context, f *engine.Found) error {
	again, err := r.again(f)
	if err != nil {
		return err
	}
	if again {
		r.rep.Repeated++
		return nil
	}
	r.rep.Chunks++
	e := &f.Envelope
	rows, err := r.cfg.Status.Chunk(ctx, e.Chunk)
	if err != nil {
		return err
	}
	l := r.ledger(e.Caller, e.Channel.String(), e.Accepted)
	l.Accepted += int64(e.Count)
	if plain(rows, e.Count) {
		r.ended(l, rows[0].Default.State.String(), int64(e.Count))
		return nil
	}
	c := newChunk(f, rows)
	rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	for pos := uint32(0); rd.Next(&rec); pos++ {
		if err := r.receiver(ctx, f, c, l, rec.Index, pos); err != nil {
			return err
		}
	}
	if r.waiting >= r.cfg.Batch {
		return r.confirm(ctx)
	}
	return nil
}

// again reports whether another copy of a chunk is counted in place of this one. A
// copy that was appended after the audit began is not read: where the history holds
// that one, the first that is read is counted.
func (r *run) again(f *engine.Found) (bool, error) {
	at, err := r.cfg.History.Counted(f)
	if err != nil || at == f.Offset {
		return false, err
	}
	b, known := r.bounds[log.TopicPartition{Topic: f.Topic, Partition: f.LogPart}]
	if !known || at < b.End || r.late[f.Envelope.Chunk] {
		return true, nil
	}
	r.late[f.Envelope.Chunk] = true
	return false, nil
}

// receiver counts a receiver of a chunk, or suspects it.
func (r *run) receiver(ctx context.Context, f *engine.Found, c *chunk, l *api.Ledger, index, pos uint32) error {
	if state := notify.StateOf(c.rows, index, pos); state.Terminal() {
		r.ended(l, state.String(), 1)
		return nil
	}
	st := c.stands(index, pos, placeOf(f).at)
	where, err := r.evidence(ctx, c, &st, index)
	switch {
	case err != nil:
		return err
	case where != "":
		r.waits(l, where, 1)
	default:
		r.suspect(f, st, index, pos)
	}
	return nil
}

// one looks at one receiver as original does at all of a chunk.
func (r *run) one(ctx context.Context, id notify.ID) error {
	f, rows, ok, err := r.a.found(ctx, id)
	if !ok || err != nil {
		return err
	}
	e := &f.Envelope
	return r.receiver(ctx, &f, newChunk(&f, rows), r.ledger(e.Caller, e.Channel.String(), e.Accepted), id.Index, f.Pos)
}

// plain reports whether one finished row says the same terminal state of all
// receivers of a chunk: of most chunks it does.
func plain(rows []notify.Row, count uint32) bool {
	return len(rows) == 1 && rows[0].Done && len(rows[0].Exceptions) == 0 && rows[0].Count == count &&
		rows[0].Key.Kind == notify.RowOutcome && rows[0].Index == nil && rows[0].Default.State.Terminal()
}

// chunk is an original with its rows.
type chunk struct {
	env    notify.Envelope // without its column
	rows   []notify.Row
	sorted []*notify.Row // outcomes of our own calls, in the order in which they happened
	parked map[parkedKey]map[uint32]bool
}

// newChunk takes what was found and its rows.
func newChunk(f *engine.Found, rows []notify.Row) *chunk {
	c := ownRows(rows, notify.ColumnDigest(f.Envelope.Receivers))
	c.env = f.Envelope
	return c
}

// ownRows leaves out the row of another copy of the chunk: of a request that was
// split differently the second time. Positions in it mean other receivers.
func ownRows(rows []notify.Row, digest uint64) *chunk {
	c := &chunk{}
	for i := range rows {
		if rows[i].Key.Kind != notify.RowOutcome || rows[i].Index != nil || rows[i].Digest == digest {
			c.rows = append(c.rows, rows[i])
		}
	}
	for i := range c.rows {
		if c.rows[i].Key.Kind == notify.RowOutcome {
			c.sorted = append(c.sorted, &c.rows[i])
		}
	}
	slices.SortStableFunc(c.sorted, func(a, b *notify.Row) int {
		return cmp.Or(cmp.Compare(a.Key.Epoch, b.Key.Epoch), cmp.Compare(a.Key.Attempt, b.Key.Attempt), cmp.Compare(a.Key.Deferrals, b.Key.Deferrals))
	})
	return c
}

// home is a record of the log.
type home struct {
	tp     log.TopicPartition
	offset int64
}

// stand is where a receiver that is not terminal must be: in a record of the
// log, or handed on under a key (of which the first index is not known).
type stand struct {
	home
	claimed  bool
	handed   bool
	key      envelopeKey
	wake     int64
	behind   bool
	answered map[envelopeKey]home // by the records whose rows have settled it: those and earlier ones lead nowhere
	updated  int64                // the latest of its rows
}

// envelopeKey is a RowKey within its chunk, without the first index.
type envelopeKey struct{ epoch, attempt, deferrals uint16 }

func keyOf(k *notify.RowKey) envelopeKey { return envelopeKey{k.Epoch, k.Attempt, k.Deferrals} }

// stands walks the rows of the latest epoch of a receiver, each of which answers
// the one before.
func (c *chunk) stands(index, pos uint32, original home) stand {
	st := stand{home: original, answered: map[envelopeKey]home{}}
	epoch := uint16(0)
	for _, row := range c.sorted {
		p, ok := positionOf(row, index, pos)
		if !ok {
			continue
		}
		st.updated = max(st.updated, row.Updated)
		if row.Key.Epoch != epoch { // a replay begins anew
			epoch = row.Key.Epoch
			st.handed, st.claimed, st.behind = false, false, false
		}
		if !row.Done && p >= row.DoneUpTo {
			st.handed, st.behind = false, false
			st.claimed = p < row.StartedUpTo
			st.home = homeOf(row)
			st.key = keyOf(&row.Key)
			continue
		}
		st.answered[keyOf(&row.Key)] = homeOf(row)
		ex := row.At(p)
		if len(ex) == 0 {
			ex = []notify.Exception{row.Default}
		}
		first := true
		for i := range ex {
			x := &ex[i]
			if x.State != notify.Deferred {
				continue
			}
			if first { // its addresses go on together, at the time of the last
				first = false
				st.handed, st.claimed, st.behind, st.wake = true, false, x.Code == codeBehind, 0
				st.key = envelopeKey{row.Key.Epoch, row.Key.Attempt, row.Key.Deferrals + 1}
			}
			st.wake = max(st.wake, x.Wake)
			if x.Retry {
				st.key = envelopeKey{row.Key.Epoch, row.Key.Attempt + 1, 0}
			}
		}
	}
	return st
}

func homeOf(row *notify.Row) home {
	return home{log.TopicPartition{Topic: row.Topic, Partition: row.LogPart}, row.Offset}
}

func positionOf(row *notify.Row, index, pos uint32) (uint32, bool) {
	if len(row.Index) > 0 {
		return row.PosOf(index)
	}
	return pos, pos < row.Count
}

// evidence is the cheap look: by offsets, and by the timer's own key.
func (r *run) evidence(ctx context.Context, c *chunk, st *stand, index uint32) (string, error) {
	if !st.handed {
		b, ok := r.bounds[st.tp]
		switch {
		case !ok || st.offset < max(b.Committed, b.Start) || r.cfg.Log.Lost(st.tp, st.offset):
			return "", nil
		case st.offset >= b.End && st.updated < r.now.UnixMilli(): // else of after the beginning
			return "", nil
		case st.claimed:
			return inClaim, nil
		}
		return inLog, nil
	}
	parked, err := r.parked(ctx, c, parkedKey{st.key, st.wake}, index)
	switch {
	case err != nil || !parked[index]:
		return "", err
	case st.behind:
		return inHold, nil
	}
	return inTimer, nil
}

type parkedKey struct {
	envelopeKey
	wake int64
}

// parked returns the indexes of a chunk that timers of a key hold. That of a
// single is one read; else the first index, which decides the shard, is not
// known, and every shard is asked once a key.
func (r *run) parked(ctx context.Context, c *chunk, k parkedKey, index uint32) (map[uint32]bool, error) {
	if got, ok := c.parked[k]; ok {
		return got, nil
	}
	got := map[uint32]bool{}
	prefix := timerPrefix(c.env.Chunk, k.envelopeKey)
	spread, err := r.cfg.Shards()
	if err != nil {
		return nil, err
	}
	shards := make([]uint16, 0, spread.Most())
	if c.env.Count == 1 {
		id := append(bytes.Clone(prefix), byte(index>>24), byte(index>>16), byte(index>>8), byte(index))
		shards = append(shards, engine.ShardOf(id, spread))
	} else {
		for n := range spread.Most() {
			shards = append(shards, uint16(n))
		}
	}
	for _, shard := range shards {
		p := engine.TimerPartition{Bucket: k.wake / 60_000, Shard: shard}
		err := timersAt(k.wake, prefix, 64, func(after engine.TimerCursor, n int) ([]engine.Timer, error) {
			return r.cfg.Timers.Scan(ctx, p, after, k.wake, n)
		}, func(t *engine.Timer) error {
			return indexes(t.Payload, func(_ *notify.Envelope, x uint32) { got[x] = true })
		})
		if err != nil {
			return nil, err
		}
	}
	if c.parked == nil {
		c.parked = map[parkedKey]map[uint32]bool{}
	}
	c.parked[k] = got
	return got, nil
}

// timersAt calls fn with the timers at a time whose ids begin with prefix, which is
// no whole id. It asks scan for n timers behind a cursor.
func timersAt(at int64, prefix []byte, n int, scan func(after engine.TimerCursor, n int) ([]engine.Timer, error), fn func(*engine.Timer) error) error {
	after := engine.TimerCursor{FireAt: at, ID: prefix}
	for {
		ts, err := scan(after, n)
		if err != nil {
			return err
		}
		for i := range ts {
			if ts[i].FireAt != at || !bytes.HasPrefix(ts[i].ID, prefix) {
				return nil
			}
			if err := fn(&ts[i]); err != nil {
				return err
			}
		}
		if len(ts) < n {
			return nil
		}
		after.ID = ts[n-1].ID
	}
}

// timerPrefix is how the worker names the timers of derived envelopes, up to
// their first index.
func timerPrefix(c notify.Chunk, k envelopeKey) []byte {
	b := c.TimerID(0)
	return append(b, byte(k.epoch>>8), byte(k.epoch), byte(k.attempt>>8), byte(k.attempt), byte(k.deferrals>>8), byte(k.deferrals))
}

// indexes calls fn with each receiver of an encoded envelope. It skips a value that
// is no envelope, and returns notify.ErrNewer for one of a newer release.
func indexes(value []byte, fn func(e *notify.Envelope, index uint32)) error {
	var e notify.Envelope
	if ok, err := decode(value, &e); !ok {
		return err
	}
	rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	for rd.Next(&rec) {
		fn(&e, rec.Index)
	}
	return nil
}

// class names what is wrong with a receiver that stands there.
func (st *stand) class() (class, detail string) {
	switch {
	case st.handed:
		return api.DriftHandonGone, "it was put off until " + stamp(st.wake) + ", and neither a timer nor a record of the log leads on"
	case st.claimed:
		return api.DriftClaimGone, "a worker has claimed it, and its record " + st.home.String() + " is not in the log, or was passed"
	}
	return api.DriftRecordGone, "no outcome, and its record " + st.home.String() + " is not in the log, or was passed"
}
