package history

import (
	"context"
	"errors"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Chunks calls fn with each sealed original chunk whose offset is at least starts[partition] (0 if
// the map has no such entry) and whose request was accepted at or after the time in the parameter
// since (ms since 1970). A scheduled notification may be appended long after its request was
// accepted. So if all records of a segment were appended at or after that time, fn also gets the
// chunks of earlier requests in that segment.
//
// Chunks returns the offset up to which each partition is sealed. Later records are only in the
// log. The Found that fn gets contains no receiver. fn must not keep the Found, but may keep its
// slices. A damaged segment is an error, because with an incomplete history an audit proves
// nothing. Only one chunk is in memory at a time.
func (s *Store) Chunks(ctx context.Context, starts map[Part]int64, since int64, fn func(*engine.Found) error) (map[Part]int64, error) {
	sealed := s.Sealed() // before the view is acquired, so that the view has everything below these offsets
	l := &lookup{s: s, view: s.acquireView()}
	defer l.release()
	if s.unknown.Load() > 0 {
		return nil, damagedHistory(errors.New("a segment cannot be read"))
	}
	for _, seg := range l.view.segs {
		if seg.maxBase.Time().UnixMilli() < since && seg.meta.MinTime < since {
			continue
		}
		for o := range uint32(seg.meta.Chunks) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			c := chunk{seg: seg}
			if err := seg.row(o, &c.row); err != nil {
				l.noteDamage(seg, err)
				return nil, damagedHistory(l.damaged)
			}
			if c.base.Time().UnixMilli() < since && seg.meta.MinTime < since {
				continue
			}
			var f engine.Found
			if !l.openChunk(&c, &f) {
				return nil, damagedHistory(l.damaged)
			}
			p := Part{f.Topic, f.LogPart}
			if f.Offset < starts[p] || f.Offset >= sealed[p] {
				continue
			}
			if err := fn(&f); err != nil {
				return nil, err
			}
		}
	}
	return sealed, nil
}

// Unsealed calls fn with the original chunks of a partition that are not sealed and have an
// offset in [start, end). Callers use it for records that are no longer in the log. Unsealed
// keeps a copy of the tails' rows in memory.
func (s *Store) Unsealed(p Part, start, end int64, fn func(*engine.Found) error) error {
	var found []chunk
	l := s.beginLookup(func(q *partition, t *tail) bool {
		if q.Part != p {
			return false
		}
		for _, r := range t.rows {
			found = append(found, chunk{row: r, part: q, tail: t})
		}
		return true
	})
	defer l.release()
	for i := range found {
		var f engine.Found
		if !l.openChunk(&found[i], &f) {
			return damagedHistory(l.damaged)
		}
		if f.Offset >= start && f.Offset < end {
			if err := fn(&f); err != nil {
				return err
			}
		}
	}
	return nil
}

func damagedHistory(err error) error {
	return &notify.Error{Kind: notify.KindInternal, Code: "history_damaged", Msg: "part of the history is damaged", Err: err}
}

// Counted returns the offset of the one copy of the chunk f that an audit counts. A repeated
// request writes the same chunks again, so a partition may have several copies of f with the same
// receivers. The audit counts only the first of them.
func (s *Store) Counted(f *engine.Found) (int64, error) {
	p := Part{f.Topic, f.LogPart}
	first, last := indexBounds(f.Envelope.Receivers)
	l, chunks := s.chunksInPart(p, f.Envelope.Chunk.Base, func(r *row) bool { return r.first == first && r.last == last })
	defer l.release()
	if l.damaged != nil {
		return 0, damagedHistory(l.damaged)
	}
	counted := f.Offset
	if len(chunks) < 2 { // only the chunk f itself
		return counted, nil
	}
	digest := notify.ColumnDigest(f.Envelope.Receivers)
	for i := range chunks {
		var other engine.Found
		if !l.openChunk(&chunks[i], &other) {
			return 0, damagedHistory(l.damaged)
		}
		if other.Topic == f.Topic && other.LogPart == f.LogPart && other.Offset < counted &&
			other.Envelope.Chunk == f.Envelope.Chunk && notify.ColumnDigest(other.Envelope.Receivers) == digest {
			counted = other.Offset
		}
	}
	return counted, nil
}

// Copy returns the copy of the chunk c whose receivers have this digest (notify.ColumnDigest). It
// returns notify.KindNotFound if there is no such copy. The Found contains no receiver.
func (s *Store) Copy(c notify.Chunk, digest uint64) (engine.Found, error) {
	l, chunks := s.chunksOf(c.Base, func(*row) bool { return true })
	defer l.release()
	for i := range chunks {
		var f engine.Found
		if l.openChunk(&chunks[i], &f) && f.Envelope.Chunk == c && notify.ColumnDigest(f.Envelope.Receivers) == digest {
			return f, nil
		}
	}
	return engine.Found{}, s.notFoundError(c.Base, l.damaged)
}

// chunksInPart returns the chunks of chunksOf, without those that are certainly in another
// partition of the log. A merged segment with several partitions stores the partition of a chunk
// only in the body, so chunksInPart does not remove the chunks of such a segment.
func (s *Store) chunksInPart(of Part, base notify.Base, want func(*row) bool) (*lookup, []chunk) {
	l, found := s.chunksOf(base, want)
	kept := found[:0]
	for _, c := range found {
		if c.part != nil && c.part.Part != of {
			continue
		}
		if c.seg != nil && len(c.seg.meta.Parts) == 1 && (Part{c.seg.meta.Parts[0].Topic, c.seg.meta.Parts[0].Partition}) != of {
			continue
		}
		kept = append(kept, c)
	}
	return l, kept
}

// indexBounds returns the first and the last request index of a column.
func indexBounds(column []byte) (first, last uint32) {
	rd, r := notify.ReadReceivers(column), notify.Receiver{}
	for start := true; rd.Next(&r); start = false {
		if start {
			first = r.Index
		}
		last = r.Index
	}
	return first, last
}

// Held is one original chunk of a request.
type Held struct {
	Chunk notify.Chunk
	Count uint32 // receivers
}

// ChunksOf returns the chunks of a request that are in the history now, each once. It does not wait
// until the history has read the whole log.
func (s *Store) ChunksOf(base notify.Base) ([]Held, error) {
	l, chunks := s.chunksOf(base, func(*row) bool { return true })
	defer l.release()
	var out []Held
	seen := map[notify.Chunk]bool{}
	for i := range chunks {
		var f engine.Found
		if !l.openChunk(&chunks[i], &f) {
			break
		}
		if !seen[f.Envelope.Chunk] {
			seen[f.Envelope.Chunk] = true
			out = append(out, Held{f.Envelope.Chunk, f.Envelope.Count})
		}
	}
	if l.damaged != nil {
		return nil, damagedHistory(l.damaged)
	}
	return out, nil
}

// Has reports whether the history has a chunk of a request. It reads no body.
func (s *Store) Has(base notify.Base) (bool, error) {
	l, chunks := s.chunksOf(base, func(*row) bool { return true })
	defer l.release()
	if len(chunks) == 0 && l.damaged != nil {
		return false, damagedHistory(l.damaged)
	}
	return len(chunks) > 0, nil
}

// Kept returns the beginning of the retention period. Notifications that are older may have
// been removed.
func (s *Store) Kept(now time.Time) time.Time { return now.Add(-s.cfg.Retention) }

// Oldest returns the time of the oldest record in a sealed segment, in ms since 1970. If there is
// no sealed segment, it returns the parameter now. It includes segments whose retention is over
// but which wait for the archive.
func (s *Store) Oldest(now time.Time) int64 {
	v := s.acquireView()
	defer v.release()
	oldest := now.UnixMilli()
	for _, seg := range v.segs {
		oldest = min(oldest, seg.meta.MinTime)
	}
	return oldest
}
