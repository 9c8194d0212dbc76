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

// Places where the evidence that a receiver is pending was found. doc.go explains each place.
const (
	inLog      = "log"
	inClaim    = "claimed"
	inTimer    = "parked"
	inHold     = "behind"
	inSchedule = "scheduled"
	inSpill    = "spilled"
)

// codeBehind is the code of a deferral in a lane of strict order. The worker defers a receiver
// because an earlier receiver of the same user waits.
const codeBehind = "behind"

// countOriginal counts the receivers of an original chunk (not a retry or a replay). A receiver is
// terminal if its rows say so. It is pending if there is evidence of its record or timer. Every
// other receiver becomes a suspect.
func (r *run) countOriginal(ctx context.Context, f *engine.Found) error {
	repeated, err := r.isRepeatedCopy(f)
	if err != nil {
		return err
	}
	if repeated {
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
	if allTerminal(rows, e.Count) {
		r.addTerminal(l, rows[0].Default.State.String(), int64(e.Count))
		return nil
	}
	c := newChunk(f, rows)
	rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	for pos := uint32(0); rd.Next(&rec); pos++ {
		if err := r.countReceiver(ctx, f, c, l, rec.Index, pos); err != nil {
			return err
		}
	}
	if r.suspectCount >= r.cfg.Batch {
		return r.confirmSuspects(ctx)
	}
	return nil
}

// isRepeatedCopy reports whether the audit counts another copy of the chunk instead of f. Normally
// the audit counts the copy that the history has chosen. If that copy was appended after the audit
// began, the audit does not see it and counts the first copy that it reads instead.
func (r *run) isRepeatedCopy(f *engine.Found) (bool, error) {
	at, err := r.cfg.History.Counted(f)
	if err != nil || at == f.Offset {
		return false, err
	}
	b, known := r.bounds[log.TopicPartition{Topic: f.Topic, Partition: f.LogPart}]
	if !known || at < b.End || r.countedLate[f.Envelope.Chunk] {
		return true, nil
	}
	r.countedLate[f.Envelope.Chunk] = true
	return false, nil
}

// countReceiver counts one receiver of a chunk as terminal or pending. A receiver without
// an outcome and without evidence becomes a suspect.
func (r *run) countReceiver(ctx context.Context, f *engine.Found, c *chunk, l *api.Ledger, index, pos uint32) error {
	if state := notify.StateOf(c.rows, index, pos); state.Terminal() {
		r.addTerminal(l, state.String(), 1)
		return nil
	}
	st := c.locate(index, pos, originalRecordOf(f).position)
	where, err := r.findEvidence(ctx, c, &st, index)
	switch {
	case err != nil:
		return err
	case where != "":
		r.addPending(l, where, 1)
	default:
		r.addSuspect(f, st, index, pos)
	}
	return nil
}

// countOne counts the receiver of one notification, as countOriginal counts all receivers of a
// chunk.
func (r *run) countOne(ctx context.Context, id notify.ID) error {
	f, rows, ok, err := r.a.findWithRows(ctx, id)
	if !ok || err != nil {
		return err
	}
	e := &f.Envelope
	return r.countReceiver(ctx, &f, newChunk(&f, rows), r.ledger(e.Caller, e.Channel.String(), e.Accepted), id.Index, f.Pos)
}

// allTerminal reports whether one finished row gives all receivers of a chunk the same terminal
// state. This is true for most chunks, and then no receiver must be checked separately.
func allTerminal(rows []notify.Row, count uint32) bool {
	return len(rows) == 1 && rows[0].Done && len(rows[0].Exceptions) == 0 && rows[0].Count == count &&
		rows[0].Key.Kind == notify.RowOutcome && rows[0].Index == nil && rows[0].Default.State.Terminal()
}

// chunk is an original chunk with its rows.
type chunk struct {
	env    notify.Envelope // only set by newChunk
	rows   []notify.Row
	sorted []*notify.Row                 // outcome rows (no receipts), in order of time
	parked map[parkedKey]map[uint32]bool // what parkedIndexes has read so far
}

// newChunk returns the original chunk in f, with those of the given rows that belong to it.
func newChunk(f *engine.Found, rows []notify.Row) *chunk {
	c := ownRows(rows, notify.ColumnDigest(f.Envelope.Receivers))
	c.env = f.Envelope
	return c
}

// ownRows returns a chunk with those of the given rows that belong to one copy of the chunk: the
// copy whose receivers have this digest. There may be another copy, because a repeated request may
// have been split into chunks differently. In the rows of that copy, a position means another
// receiver.
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

// logPosition identifies a record of the log.
type logPosition struct {
	tp     log.TopicPartition
	offset int64
}

// whereabouts says where a receiver that is not terminal must be, according to its rows. Normally it
// must be in the log record at logPosition. If it was deferred or must be retried (handedOn), it must
// instead be in a timer or record that has the envelope key in the field key.
type whereabouts struct {
	logPosition
	claimed     bool // a worker has claimed it, in the record at logPosition
	handedOn    bool // it waits until wakeAt, under the envelope key in key; logPosition is not used
	key         envelopeKey
	wakeAt      int64 // ms since 1970
	waitsBehind bool  // it waits for another receiver of its user
	// answeredAt contains, by envelope key, the record that gave the receiver its outcome. This
	// record and earlier copies of the record do not prove that the receiver is pending, because a
	// worker drops them.
	answeredAt  map[envelopeKey]logPosition
	lastUpdated int64 // when its latest row was written, ms since 1970
}

// envelopeKey identifies an envelope within its chunk. It is a RowKey without the first index. The
// first index is missing because a row says that a later envelope exists, but not with which
// receiver that envelope begins.
type envelopeKey struct{ epoch, attempt, deferrals uint16 }

func keyOf(k *notify.RowKey) envelopeKey { return envelopeKey{k.Epoch, k.Attempt, k.Deferrals} }

// locate returns where a receiver must be. The parameter original is the position of the original
// chunk's record. locate reads the receiver's rows from the first to the latest: each row gives the
// outcome of one envelope, and so tells which envelope follows.
func (c *chunk) locate(index, pos uint32, original logPosition) whereabouts {
	st := whereabouts{logPosition: original, answeredAt: map[envelopeKey]logPosition{}}
	epoch := uint16(0)
	for _, row := range c.sorted {
		p, ok := positionOf(row, index, pos)
		if !ok {
			continue
		}
		st.lastUpdated = max(st.lastUpdated, row.Updated)
		if row.Key.Epoch != epoch { // a replay starts over
			epoch = row.Key.Epoch
			st.handedOn, st.claimed, st.waitsBehind = false, false, false
		}
		if !row.Done && p >= row.DoneUpTo {
			st.handedOn, st.waitsBehind = false, false
			st.claimed = p < row.StartedUpTo
			st.logPosition = rowPosition(row)
			st.key = keyOf(&row.Key)
			continue
		}
		st.answeredAt[keyOf(&row.Key)] = rowPosition(row)
		ex := row.ExceptionsAt(p)
		if len(ex) == 0 {
			ex = []notify.Exception{row.Default}
		}
		first := true
		for i := range ex {
			x := &ex[i]
			if x.State != notify.Deferred {
				continue
			}
			if first { // the deferred addresses of a receiver continue together, at the latest wake time
				first = false
				st.handedOn, st.claimed, st.waitsBehind, st.wakeAt = true, false, x.Code == codeBehind, 0
				st.key = envelopeKey{row.Key.Epoch, row.Key.Attempt, row.Key.Deferrals + 1}
			}
			st.wakeAt = max(st.wakeAt, x.Wake)
			if x.Retry {
				st.key = envelopeKey{row.Key.Epoch, row.Key.Attempt + 1, 0}
			}
		}
	}
	return st
}

func rowPosition(row *notify.Row) logPosition {
	return logPosition{log.TopicPartition{Topic: row.Topic, Partition: row.LogPart}, row.Offset}
}

// positionOf returns the position of a receiver in the column of a row. It returns false if the row
// does not contain the receiver. pos is the receiver's position in the original chunk.
func positionOf(row *notify.Row, index, pos uint32) (uint32, bool) {
	if len(row.Index) > 0 {
		return row.PosOf(index)
	}
	return pos, pos < row.Count
}

// findEvidence returns the place of the evidence that a receiver is pending, or "" if it finds no
// evidence. To be cheap, it uses only the offsets that were read when the audit began, or the key
// of the timer. So there may be evidence that it does not find. Therefore "" makes the receiver
// only a suspect, not drift.
func (r *run) findEvidence(ctx context.Context, c *chunk, st *whereabouts, index uint32) (string, error) {
	if !st.handedOn {
		b, ok := r.bounds[st.tp]
		switch {
		case !ok || st.offset < max(b.Committed, b.Start) || r.cfg.Log.Lost(st.tp, st.offset):
			return "", nil
		// The record is older than the audit, but its offset is not below the end of the partition
		// that the audit has read. So the log has lost the record.
		case st.offset >= b.End && st.lastUpdated < r.now.UnixMilli():
			return "", nil
		case st.claimed:
			return inClaim, nil
		}
		return inLog, nil
	}
	parked, err := r.parkedIndexes(ctx, c, parkedKey{st.key, st.wakeAt}, index)
	switch {
	case err != nil || !parked[index]:
		return "", err
	case st.waitsBehind:
		return inHold, nil
	}
	return inTimer, nil
}

// parkedKey identifies the timers that contain a parked envelope of a chunk.
type parkedKey struct {
	envelopeKey
	wake int64
}

// parkedIndexes returns the indexes of the receivers in the parked envelopes that the key k
// identifies. For a chunk of one receiver it reads one shard. For a larger chunk it reads every
// shard, because the shard of a parked envelope depends on the first index in this envelope, which
// is not known here. It stores the result in the chunk, so it reads the timers of a key only once.
func (r *run) parkedIndexes(ctx context.Context, c *chunk, k parkedKey, index uint32) (map[uint32]bool, error) {
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
			return eachReceiver(t.Payload, func(_ *notify.Envelope, x uint32) { got[x] = true })
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

// timersAt calls fn with each timer that fires at fireAt and whose id begins with prefix. The
// prefix must be shorter than an id, because the scan starts after the prefix. timersAt gets the
// timers from the function scan, n at a time.
func timersAt(fireAt int64, prefix []byte, n int, scan func(after engine.TimerCursor, n int) ([]engine.Timer, error), fn func(*engine.Timer) error) error {
	after := engine.TimerCursor{FireAt: fireAt, ID: prefix}
	for {
		ts, err := scan(after, n)
		if err != nil {
			return err
		}
		for i := range ts {
			if ts[i].FireAt != fireAt || !bytes.HasPrefix(ts[i].ID, prefix) {
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

// timerPrefix returns the beginning of the ids of a chunk's timers: the part before the first
// index. The worker gives such ids to the timers of retries and deferrals.
func timerPrefix(c notify.Chunk, k envelopeKey) []byte {
	b := c.TimerID(0)
	return append(b, byte(k.epoch>>8), byte(k.epoch), byte(k.attempt>>8), byte(k.attempt), byte(k.deferrals>>8), byte(k.deferrals))
}

// eachReceiver calls fn with each receiver of an encoded envelope. It skips a value that is not an
// envelope. It returns notify.ErrNewer for an envelope of a newer release.
func eachReceiver(value []byte, fn func(e *notify.Envelope, index uint32)) error {
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

// driftClass returns the class of the drift of a receiver that is not where it must be, and a text
// with details.
func (st *whereabouts) driftClass() (class, detail string) {
	switch {
	case st.handedOn:
		return api.DriftHandonGone, "the notification was deferred until " + formatMs(st.wakeAt) + ", but neither a timer nor a record of the log contains it"
	case st.claimed:
		return api.DriftClaimGone, "a worker has claimed the notification, but its record " + st.logPosition.String() + " is not in the log, or the consumer group has committed an offset after it"
	}
	return api.DriftRecordGone, "the notification has no outcome, and its record " + st.logPosition.String() + " is not in the log, or the consumer group has committed an offset after it"
}
