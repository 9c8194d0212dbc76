package history

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// lookup is one query, with the tails and the view that it reads. It first collects candidates
// from the tails and then acquires the view. So if a tail is sealed in between, the lookup
// finds its chunks at least once.
type lookup struct {
	s       *Store
	view    *segmentView
	held    []*blob // files of the tails that the query reads; kept open until the lookup is released
	damaged error   // the first damage found; a notification that was not found may be in the damaged part
	buf     []byte
	ords    []uint32
}

// chunk is a candidate of a query: a row, and the segment or tail that contains its body.
type chunk struct {
	row
	ordinal uint32 // in a query by user: ordinal of the receiver
	seg     *segment
	part    *partition // partition of the tail; nil if seg is set
	tail    *tail
}

// beginLookup calls the function visit with every tail, under the lock of the tail's partition.
// If the function returns true, the tail's file stays open until the lookup is released.
func (s *Store) beginLookup(visit func(*partition, *tail) bool) *lookup {
	l := &lookup{s: s}
	for _, p := range s.allParts() {
		p.mu.RLock()
		for _, t := range p.tails() {
			if visit(p, t) {
				t.blob.hold()
				l.held = append(l.held, t.blob)
			}
		}
		p.mu.RUnlock()
	}
	l.view = s.acquireView()
	return l
}

// release releases the view and the files of the tails.
func (l *lookup) release() {
	l.view.release()
	for _, b := range l.held {
		b.release()
	}
}

// noteDamage notes that a segment is damaged. The query continues with the other segments.
func (l *lookup) noteDamage(seg *segment, err error) {
	seg.bad.Store(true)
	l.s.reportDamage(seg.blob.name, err)
	if l.damaged == nil {
		l.damaged = fmt.Errorf("%s: %w", seg.blob.name, err)
	}
}

// openChunk reads and decodes a candidate's body into f. It returns false if the body is damaged.
func (l *lookup) openChunk(c *chunk, f *engine.Found) bool {
	var b []byte
	var err error
	if c.seg != nil {
		b, err = c.seg.body(&c.row)
	} else {
		b, err = c.part.body(c.tail, &c.row)
	}
	var st bodyRecord
	if err == nil {
		err = decodeBodyRecord(b, &st)
	}
	*f = engine.Found{}
	if err == nil {
		err = notify.DecodeEnvelope(st.value, &f.Envelope)
	}
	if err == nil && f.Envelope.Chunk.Base != c.base {
		err = fmt.Errorf("%w: the body at offset %d belongs to another chunk", errDamaged, c.off)
	}
	if c.seg == nil {
		if err != nil {
			// This record is still in the log. The next start rebuilds the tail from the log.
			l.s.reportDamage(c.tail.blob.name, err)
			l.damaged = err
			return false
		}
		f.Topic, f.LogPart, f.Offset = c.part.Topic, c.part.Partition, st.offset
		return true
	}
	if err == nil && int(st.part) >= len(c.seg.meta.Parts) {
		err = fmt.Errorf("%w: a body names partition number %d, but the segment has %d partitions", errDamaged, st.part, len(c.seg.meta.Parts))
	}
	if err != nil {
		l.noteDamage(c.seg, err)
		return false
	}
	sp := c.seg.meta.Parts[st.part]
	f.Topic, f.LogPart, f.Offset = sp.Topic, sp.Partition, st.offset
	return true
}

// chunksOf returns the chunks of a request. It calls the function want with the row of each chunk
// and skips the chunk if the function returns false.
func (s *Store) chunksOf(base notify.Base, want func(*row) bool) (*lookup, []chunk) {
	var found []chunk
	h := hashBase(base)
	var ords []uint32
	l := s.beginLookup(func(p *partition, t *tail) bool {
		n := len(found)
		ords = t.bases.find(ords[:0], h)
		for _, o := range ords {
			if r := t.rows[o]; r.base == base && want(&r) {
				found = append(found, chunk{row: r, part: p, tail: t})
			}
		}
		return len(found) > n
	})
	for _, seg := range l.view.segs {
		if !seg.has(base) {
			continue
		}
		if seg.bad.Load() && l.damaged == nil {
			l.damaged = fmt.Errorf("%s: %w", seg.blob.name, errDamaged)
		}
		var err error
		l.ords, l.buf, err = seg.bases.find(seg.blob, l.buf, l.ords[:0], h)
		for _, o := range l.ords {
			c := chunk{seg: seg}
			if err = seg.row(o, &c.row); err != nil {
				break
			}
			if c.base == base && want(&c.row) {
				found = append(found, c)
			}
		}
		if err != nil {
			l.noteDamage(seg, err)
		}
	}
	return l, found
}

// Find implements Reader. If it finds nothing, it waits until the Store has the records up to the
// offsets of Config.Barrier, and searches once more.
func (s *Store) Find(ctx context.Context, id notify.ID) (engine.Found, error) {
	f, err := s.findOnce(id)
	if err == nil || s.cfg.Barrier == nil {
		return f, err
	}
	if err := s.awaitLog(ctx); err != nil {
		return f, err
	}
	return s.findOnce(id)
}

// awaitLog waits until all records that are in the log now have been appended to the Store.
func (s *Store) awaitLog(ctx context.Context) error {
	if s.cfg.Barrier == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, s.cfg.MaxWait)
	defer stop()
	ends, err := s.cfg.Barrier(ctx)
	if err == nil {
		err = s.Sync(ctx, ends)
	}
	return unavailable(err)
}

func (s *Store) findOnce(id notify.ID) (f engine.Found, err error) {
	l, chunks := s.chunksOf(id.Base, func(r *row) bool { return r.first <= id.Index && id.Index <= r.last })
	defer l.release()
	for i := range chunks {
		if !l.openChunk(&chunks[i], &f) || f.Envelope.FanOut != id.FanOut {
			continue
		}
		rd, r := notify.ReadReceivers(f.Envelope.Receivers), notify.Receiver{}
		for pos := uint32(0); rd.Next(&r) && r.Index <= id.Index; pos++ {
			if r.Index == id.Index {
				f.ID, f.Pos, f.User, f.Address = id, pos, r.User, r.Address
				return f, nil
			}
		}
	}
	return engine.Found{}, s.notFoundError(id.Base, l.damaged)
}

// notFoundError returns the error for a request of which nothing was found. The error says
// which case it is: there is no such notification, its retention is over, it may be lost, or
// the history is damaged.
func (s *Store) notFoundError(base notify.Base, damaged error) error {
	switch {
	case damaged != nil:
	case s.unknown.Load() > 0:
		damaged = errors.New("a segment cannot be read")
	case time.Since(base.Time()) > s.cfg.Retention:
		return &notify.Error{Kind: notify.KindGone, Code: "notification_gone", Msg: "the history of this notification has passed its retention"}
	case s.mayBeLost(base.Time()):
		return &notify.Error{Kind: notify.KindGone, Code: CodeRecordLost, Msg: "the notification was not found; records of that time were lost because of damage, and the notification may have been in one of them"}
	default:
		return notify.NotFound("notification")
	}
	return &notify.Error{Kind: notify.KindInternal, Code: "history_damaged", Msg: "the notification was not found, but part of the history is damaged", Err: damaged}
}

// Each implements Reader. It first waits until the Store has the records up to the offsets of
// Config.Barrier, because an incomplete list would be a wrong answer. It calls fn with the
// receivers of one chunk after the other, and takes the chunks in the order of their first request
// index. After fn returns, the Found is reused, but fn may keep the slices in it.
func (s *Store) Each(ctx context.Context, base notify.Base, fn func(*engine.Found) error) error {
	if err := s.awaitLog(ctx); err != nil {
		return err
	}
	l, chunks := s.chunksOf(base, func(*row) bool { return true })
	defer l.release()
	sort.SliceStable(chunks, func(i, j int) bool { return chunks[i].first < chunks[j].first })
	seen := map[notify.Chunk]bool{} // the log may contain a chunk twice
	for i := range chunks {
		if err := ctx.Err(); err != nil {
			return err
		}
		var f engine.Found
		if !l.openChunk(&chunks[i], &f) || seen[f.Envelope.Chunk] {
			continue
		}
		seen[f.Envelope.Chunk] = true
		rd, r := notify.ReadReceivers(f.Envelope.Receivers), notify.Receiver{}
		for pos := uint32(0); rd.Next(&r); pos++ {
			f.ID, f.Pos, f.User, f.Address = f.Envelope.ID(r.Index), pos, r.User, r.Address
			if err := fn(&f); err != nil {
				return err
			}
		}
	}
	if l.damaged != nil || len(seen) == 0 {
		return s.notFoundError(base, l.damaged)
	}
	return nil
}
