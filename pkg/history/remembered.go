package history

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// WritersGroup is the consumer group that writes the history if a server stores it. One process at
// a time owns a partition, and continues after the last record that the previous owner stored and
// committed.
const WritersGroup = "history-writers"

// rememberedWait is the longest time that a read waits until the history contains the whole log.
const rememberedWait = 5 * time.Second

// Reader answers which receiver got which notification. It does not know the states of
// notifications.
type Reader interface {
	// Find returns the receiver with this id. It returns notify.KindNotFound if there is no such
	// receiver, and notify.KindGone if the retention of the receiver has passed. Find finds every
	// id that was returned with status 201 before the call.
	Find(ctx context.Context, id notify.ID) (engine.Found, error)
	// Each calls fn with every receiver of a request, in index order within each chunk. It stops
	// at the first error of fn and returns it.
	Each(ctx context.Context, base notify.Base, fn func(*engine.Found) error) error
	// User returns a page of a user's notifications, newest first, and the cursor of the next page.
	// A nil cursor means that there is no next page.
	User(ctx context.Context, q engine.HistoryQuery) ([]engine.Found, engine.HistoryCursor, error)
}

// Historian is a history on a server, such as Cassandra. A Writer fills it.
type Historian interface {
	Reader
	// Append stores the original chunks among the given records, in the order of their offsets.
	// Appending the same records again changes nothing. If a chunk has several copies, Append keeps
	// one copy. The caller may reuse the values after Append returns.
	Append(ctx context.Context, recs ...Record) error
	// Between calls fn with each original chunk whose offset is in the given range of its
	// partition. It reads the whole history.
	Between(ctx context.Context, offsets map[Part]OffsetRange, fn func(*engine.Found) error) error
}

// OffsetRange is the range of offsets [From, Below) of a partition.
type OffsetRange struct{ From, Below int64 }

// Writer is the handler of the consumer group WritersGroup. It appends the records of accepted
// requests to a Historian.
type Writer struct{ To Historian }

// Assigned implements log.Handler.
func (r Writer) Assigned(context.Context, log.TopicPartition) log.PartitionHandler { return r }

// Handle appends the records and marks them as done.
func (r Writer) Handle(ctx context.Context, msgs []*log.Msg) error {
	recs := make([]Record, 0, len(msgs))
	for _, m := range msgs {
		if !m.Lost() {
			recs = append(recs, RecordOf(log.TopicPartition{Topic: m.Topic, Partition: m.Partition}, &m.Record))
		}
	}
	if err := r.To.Append(ctx, recs...); err != nil {
		return err
	}
	for _, m := range msgs {
		m.Done()
	}
	return nil
}

// RecordOf converts a record of the log to a Record.
func RecordOf(tp log.TopicPartition, r *log.Record) Record {
	return Record{Topic: tp.Topic, Partition: tp.Partition, Offset: r.Offset, Value: r.Value, Time: r.Time.UnixMilli()}
}

// LogAdmin is the part of the log that Remembered uses.
type LogAdmin interface {
	Committed(ctx context.Context, group string) (map[log.TopicPartition]int64, error)
	StartOffsets(ctx context.Context, topics ...string) (map[log.TopicPartition]int64, error)
	EndOffsets(ctx context.Context, topics ...string) (map[log.TopicPartition]int64, error)
	OffsetsSince(ctx context.Context, at time.Time, topics ...string) (map[log.TopicPartition]int64, error)
}

// Remembered is a history on a server. The methods of Reader wait until the history contains all
// records that are in the log at the time of the call: Each always waits, User waits only for the
// first page, and Find waits only if it has found nothing.
type Remembered struct {
	Historian
	Admin     LogAdmin
	Retention time.Duration
}

// Find implements Reader.
func (h *Remembered) Find(ctx context.Context, id notify.ID) (engine.Found, error) {
	f, err := h.Historian.Find(ctx, id)
	if notify.KindOf(err) != notify.KindNotFound {
		return f, err
	}
	if err := h.awaitLog(ctx); err != nil {
		return f, err
	}
	return h.Historian.Find(ctx, id)
}

// Each implements Reader.
func (h *Remembered) Each(ctx context.Context, base notify.Base, fn func(*engine.Found) error) error {
	if err := h.awaitLog(ctx); err != nil {
		return err
	}
	return h.Historian.Each(ctx, base, fn)
}

// User implements Reader.
func (h *Remembered) User(ctx context.Context, q engine.HistoryQuery) ([]engine.Found, engine.HistoryCursor, error) {
	if q.Before == nil {
		if err := h.awaitLog(ctx); err != nil {
			return nil, nil, err
		}
	}
	return h.Historian.User(ctx, q)
}

func (h *Remembered) awaitLog(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, rememberedWait)
	defer stop()
	ends, err := h.Admin.EndOffsets(ctx, notify.FirstTopics()...)
	if err != nil {
		return err
	}
	to := make(map[Part]int64, len(ends))
	for tp, at := range ends {
		to[Part(tp)] = at
	}
	return h.Sync(ctx, to)
}

// Sync waits until the history contains the log up to these end offsets. If ctx ends first, it
// returns notify.KindUnavailable.
func (h *Remembered) Sync(ctx context.Context, ends map[Part]int64) error {
	for {
		at, err := h.Admin.Committed(ctx, WritersGroup)
		if err != nil {
			return err
		}
		behind := ""
		for p, end := range ends {
			if end > 0 && at[log.TopicPartition(p)] < end {
				behind = fmt.Sprintf("partition %s/%d is stored up to offset %d, but the log ends at offset %d", p.Topic, p.Partition, at[log.TopicPartition(p)], end)
				break
			}
		}
		if behind == "" {
			return nil
		}
		notify.Sleep(ctx, 20*time.Millisecond)
		if ctx.Err() != nil {
			return notify.Unavailable("history", time.Second, errors.New("the history is behind the log: "+behind+"; check that a process of role operator runs"))
		}
	}
}

// Chunks implements conserve.History. An audit reads the log itself and needs the history only
// for records that the log no longer contains. Chunks calls fn with two kinds of such records:
//   - records of any age that the log removed before their consumer group had read them;
//   - other removed records whose request was accepted at or after the time in the parameter
//     since. There are none if the log still contains all records after that time.
//
// Chunks returns the offsets at which the audit begins to read the log.
func (h *Remembered) Chunks(ctx context.Context, from map[Part]int64, since int64, fn func(*engine.Found) error) (map[Part]int64, error) {
	admin := h.Admin
	starts, err := admin.StartOffsets(ctx, notify.FirstTopics()...)
	if err != nil {
		return nil, err
	}
	// A record is appended after its request was accepted, so no record that was appended before
	// the time in the parameter since is needed. Begin one minute earlier, because clocks differ a
	// little.
	young := starts
	if at := time.UnixMilli(since).Add(-time.Minute); since > 0 {
		if young, err = admin.OffsetsSince(ctx, at, notify.FirstTopics()...); err != nil {
			return nil, err
		}
	}
	gone, unread, next := map[Part]OffsetRange{}, map[Part]int64{}, map[Part]int64{}
	for _, l := range notify.Lanes() {
		committed, err := admin.Committed(ctx, l.Group())
		if err != nil {
			return nil, err
		}
		for tp, start := range starts {
			if tp.Topic != l.Topic() {
				continue
			}
			p := Part(tp)
			next[p], unread[p] = max(start, young[tp], from[p]), committed[tp]
			s := OffsetRange{from[p], start}
			if young[tp] > start { // the log has all records after the time in since: only unread ones are missing
				s.From = max(s.From, unread[p])
			}
			if s.From < s.Below {
				gone[p] = s
			}
		}
	}
	if len(gone) == 0 || fn == nil {
		return next, nil
	}
	return next, h.Between(ctx, gone, func(f *engine.Found) error {
		if f.Offset < unread[Part{Topic: f.Topic, Partition: f.LogPart}] && f.Envelope.Chunk.Base.Time().UnixMilli() < since {
			return nil
		}
		return fn(f)
	})
}

// Unsealed implements conserve.History. It finds nothing, because Chunks and the log contain
// everything.
func (h *Remembered) Unsealed(Part, int64, int64, func(*engine.Found) error) error {
	return nil
}

// Counted implements conserve.History. If the log has several copies of a chunk, the history keeps
// the copy that was appended last. The audit counts that copy.
func (h *Remembered) Counted(f *engine.Found) (int64, error) {
	rd, r := notify.ReadReceivers(f.Envelope.Receivers), notify.Receiver{}
	if !rd.Next(&r) {
		return f.Offset, nil
	}
	kept, err := h.Historian.Find(context.Background(), f.Envelope.ID(r.Index))
	switch notify.KindOf(err) {
	case notify.KindNotFound, notify.KindGone:
		return f.Offset, nil
	}
	if err != nil {
		return 0, err
	}
	if kept.Envelope.Chunk == f.Envelope.Chunk && kept.Topic == f.Topic && kept.LogPart == f.LogPart {
		return kept.Offset, nil
	}
	return f.Offset, nil
}

// ChunksOf implements conserve.History.
func (h *Remembered) ChunksOf(base notify.Base) ([]Held, error) {
	var out []Held
	seen := map[notify.Chunk]bool{}
	err := h.Historian.Each(context.Background(), base, func(f *engine.Found) error {
		if !seen[f.Envelope.Chunk] {
			seen[f.Envelope.Chunk] = true
			out = append(out, Held{Chunk: f.Envelope.Chunk, Count: f.Envelope.Count})
		}
		return nil
	})
	if k := notify.KindOf(err); k == notify.KindNotFound || k == notify.KindGone {
		err = nil
	}
	return out, err
}

// errFound is returned by the callback of Each to stop at the first chunk.
var errFound = errors.New("a chunk was found")

// Has implements conserve.History.
func (h *Remembered) Has(base notify.Base) (bool, error) {
	err := h.Historian.Each(context.Background(), base, func(*engine.Found) error { return errFound })
	switch k := notify.KindOf(err); {
	case errors.Is(err, errFound):
		return true, nil
	case err != nil && k != notify.KindNotFound && k != notify.KindGone:
		return false, err
	}
	return false, nil
}

// Kept implements conserve.History.
func (h *Remembered) Kept(now time.Time) time.Time { return now.Add(-h.Retention) }

// CopyOf returns the first copy of a chunk whose receivers have this digest (notify.ColumnDigest).
// It returns notify.KindNotFound if there is no such copy.
func (h *Remembered) CopyOf(ctx context.Context, c notify.Chunk, digest uint64) (found engine.Found, err error) {
	err = h.Each(ctx, c.Base, func(f *engine.Found) error {
		if f.Envelope.Chunk == c && notify.ColumnDigest(f.Envelope.Receivers) == digest {
			found = *f
			return errFound
		}
		return nil
	})
	switch {
	case errors.Is(err, errFound):
		return found, nil
	case err == nil:
		err = notify.NotFound("notification")
	}
	return found, err
}
