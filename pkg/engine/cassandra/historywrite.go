package cassandra

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// HistoryRecord is one record of the log. The caller may reuse Value after AppendHistory
// has returned.
type HistoryRecord struct {
	Topic     string
	Partition int32
	Offset    int64
	Value     []byte // a notify.Envelope
	Time      int64  // when the record was appended to the log, ms since 1970
}

// released returns when a notification was released, ms since 1970: the time of the request, the
// scheduled time, or the time of the cancellation if it was cancelled. The result is the same for
// each copy of an envelope.
func released(env *notify.Envelope, appended int64) int64 {
	return max(env.Chunk.Base.Time().UnixMilli(), min(env.NotBefore, appended))
}

// historyNext contains, for each partition of the log, the offset up to which this process has
// appended the records to the history.
type historyNext struct {
	mu   sync.Mutex
	next map[HistoryPart]int64 // the offset of the next record to append
}

// AppendHistory stores records in the history. The records of a partition must be in the order of
// their offsets. AppendHistory skips records that this Store has already appended, records that it
// cannot read, and derived envelopes (retries, deferrals, replays). When it returns nil, readers
// find the records, and HistoryOffsets returns greater offsets than theirs. After an error, the
// caller must append the same records again.
func (s *Store) AppendHistory(ctx context.Context, recs ...HistoryRecord) error {
	s.history.mu.Lock()
	var todo []HistoryRecord
	next := map[HistoryPart]int64{}
	for _, r := range recs {
		p := HistoryPart{r.Topic, r.Partition}
		if r.Offset >= s.history.next[p] {
			todo = append(todo, r)
			next[p] = max(next[p], r.Offset+1)
		}
	}
	s.history.mu.Unlock()
	if err := appendRecords(ctx, s, todo); err != nil {
		return err
	}
	return advanceHistoryPart(ctx, s, next)
}

// AdvanceHistory marks all records of a partition with an offset less than nextOffset as
// appended. It is for a partition whose log is empty or begins at a greater offset.
func (s *Store) AdvanceHistory(ctx context.Context, p HistoryPart, nextOffset int64) error {
	return advanceHistoryPart(ctx, s, map[HistoryPart]int64{p: nextOffset})
}

func advanceHistoryPart(ctx context.Context, s *Store, next map[HistoryPart]int64) error {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	for p, at := range next {
		if at <= s.history.next[p] {
			continue
		}
		err := s.write(ctx, s.clock.now(), stmt{`INSERT INTO history_offsets (topic, part, next) VALUES (?, ?, ?)`, []any{p.Topic, p.Partition, at}})
		if err != nil {
			return err
		}
		if s.history.next == nil {
			s.history.next = map[HistoryPart]int64{}
		}
		s.history.next[p] = at
	}
	return nil
}

// HistoryOffsets returns the offset of the next record to append, for each partition. The result
// includes the records that other processes have appended.
func (s *Store) HistoryOffsets(ctx context.Context) (map[HistoryPart]int64, error) {
	out := map[HistoryPart]int64{}
	err := s.rows(ctx, func(scan func(...any) bool) error {
		var p HistoryPart
		var next, at int64
		for scan(&p.Topic, &p.Partition, &next, &at) {
			s.clock.observe(at)
			out[p] = next
		}
		return nil
	}, `SELECT topic, part, next, writetime(next) FROM history_offsets`)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// inlineChunk is the greatest size, in bytes, of an envelope that is stored in the row of its
// chunk. A larger envelope is stored in a separate table, because it would make the partitions of
// a minute too large.
const inlineChunk = 1 << 10

// historyRows contains the rows of some records. The fields are in the order in which the
// rows are stored.
type historyRows struct {
	contents []stmt // the large envelopes (inlineChunk)
	chunks   map[minuteShard][]stmt
	byUser   []original // each receiver of these envelopes gets a row by user (userRows)
}

// original is an envelope that is stored in the history.
type original struct {
	env        notify.Envelope
	releasedAt int64 // ms since 1970
	ttlSeconds int
}

// usersAtOnce is the greatest number of rows that a userRows keeps in memory. The limit is
// needed because a record may have a million receivers and a row uses much more memory than
// a receiver.
const usersAtOnce = 4096

// userRows makes the rows of the table notifications: one row for each receiver with a user. They
// are called rows by user, because a partition has the rows of one user and month. userRows calls
// store with at most usersAtOnce rows at a time.
type userRows struct {
	store func([]stmt) error
	rows  []stmt
}

// add adds a row for each receiver that has a user.
func (u *userRows) add(o *original) error {
	c := o.env.Chunk
	rd, x := notify.ReadReceivers(o.env.Receivers), notify.Receiver{}
	for pos := int64(0); rd.Next(&x); pos++ {
		if len(x.User) == 0 {
			continue
		}
		u.rows = append(u.rows, stmt{
			`INSERT INTO notifications (user_id, month, released, base, idx, caller, part, block, pos) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?`,
			[]any{x.User, o.releasedAt / monthMs, o.releasedAt, c.Base[:], int64(x.Index), o.env.Caller, int(c.Partition), int64(c.Block), pos, o.ttlSeconds},
		})
		if len(u.rows) == usersAtOnce {
			if err := u.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush stores the rows that are not stored yet.
func (u *userRows) flush() error {
	rows := u.rows
	u.rows = u.rows[:0]
	if len(rows) == 0 {
		return nil
	}
	return u.store(rows)
}

// appendRecords first stores the content of records, and then the rows that refer to the
// content.
func appendRecords(ctx context.Context, s *Store, recs []HistoryRecord) error {
	rows := historyRows{chunks: map[minuteShard][]stmt{}}
	for i := range recs {
		if err := rows.add(s, &recs[i]); err != nil {
			return err
		}
	}
	if err := s.scatter(ctx, rows.contents); err != nil {
		return err
	}
	var batches [][]stmt
	for _, part := range rows.chunks {
		batches = append(batches, splitBatches(part)...)
	}
	at := s.clock.now()
	if err := parallel(len(batches), func(i int) error { return s.write(ctx, at, batches[i]...) }); err != nil {
		return err
	}
	users := userRows{store: func(rows []stmt) error { return s.scatter(ctx, rows) }}
	for i := range rows.byUser {
		if err := users.add(&rows.byUser[i]); err != nil {
			return err
		}
	}
	return users.flush()
}

// add adds the rows of a record.
func (h *historyRows) add(s *Store, r *HistoryRecord) error {
	var env notify.Envelope
	err := notify.DecodeEnvelope(r.Value, &env)
	if errors.Is(err, notify.ErrNewer) {
		return err // the caller must not commit the offset of a record of a newer release
	}
	if err != nil {
		s.cfg.Logger.Warn("history skips a record that it cannot read", "topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "err", err)
		return nil
	}
	if env.Derived() {
		return nil
	}
	c, keep := env.Chunk, int(s.cfg.StatusTTL/time.Second)
	first, last := int64(-1), int64(0)
	rd, x := notify.ReadReceivers(env.Receivers), notify.Receiver{}
	for rd.Next(&x) {
		if last = int64(x.Index); first < 0 {
			first = last
		}
	}
	if !env.FanOut || s.cfg.EveryReceiver {
		h.byUser = append(h.byUser, original{env, released(&env, r.Time), keep})
	}
	data := r.Value
	if len(data) > inlineChunk {
		h.contents = append(h.contents, stmt{
			`INSERT INTO notification_content (base, part, block, data) VALUES (?, ?, ?, ?) USING TTL ?`,
			[]any{c.Base[:], int(c.Partition), int64(c.Block), data, keep},
		})
		data = nil
	}
	p := shardOfMinute(c.Base)
	h.chunks[p] = append(h.chunks[p], stmt{
		`INSERT INTO notification_chunks (minute, shard, base, ` + chunkColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?`,
		[]any{p.minute, p.shard, c.Base[:], int(c.Partition), int64(c.Block), max(first, 0), last, env.FanOut, r.Topic, r.Partition, r.Offset, data, keep},
	})
	return nil
}

// EachHistory calls fn with the chunks for which selected returns true, in no particular order. It
// calls selected for every chunk, with the position of the chunk in the log. It reads the content
// of selected chunks only. It leaves out a chunk whose content was removed because its retention
// is over.
func (s *Store) EachHistory(ctx context.Context, selected func(p HistoryPart, offset int64) bool, fn func(*engine.Found) error) error {
	var refs []chunkRef
	err := s.rows(ctx, func(scan func(...any) bool) error {
		var base []byte
		for r := (chunkRef{}); scanRef(scan, notify.Base{}, &r, &base); {
			if len(base) == len(notify.Base{}) && selected(HistoryPart{r.topic, r.part}, r.offset) {
				r.chunk.Base = notify.Base(base)
				refs = append(refs, r)
			}
		}
		return nil
	}, `SELECT base, `+chunkColumns+` FROM notification_chunks`)
	if err != nil {
		return err
	}
	h := History{s: s}
	for i := range refs {
		var f engine.Found
		ok, err := h.readContent(ctx, &refs[i], &f)
		if err == nil && ok {
			err = fn(&f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
