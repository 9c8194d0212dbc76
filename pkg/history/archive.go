package history

import (
	"context"
	"fmt"
	"math"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Settled returns an offset for each partition. All records below it are in sealed segments whose
// youngest record is older than cutoff (ms since 1970). Only merges still rewrite these records.
func (s *Store) Settled(cutoff int64) map[Part]int64 {
	out := s.Sealed() // before the view is acquired, so that the view has every segment below these offsets
	v := s.acquireView()
	defer v.release()
	for _, seg := range v.segs {
		if seg.meta.MaxTime < cutoff {
			continue
		}
		for _, sp := range seg.meta.Parts {
			p := Part{sp.Topic, sp.Partition}
			out[p] = min(out[p], sp.From)
		}
	}
	return out
}

// Range calls fn with the envelope of every sealed record whose offset is in the range
// [starts[p], ends[p]) of its partition p. It passes each envelope once, in no fixed order. If
// starts does not contain a partition, Range reads the partition from its beginning. Range stops
// at the first error of fn and returns it. If a chunk is damaged, Range counts it and continues,
// and the method Damaged reports the file. The envelopes stay valid after Range has returned.
func (s *Store) Range(ctx context.Context, starts, ends map[Part]int64, fn func(env *notify.Envelope) error) (damaged int, err error) {
	v := s.acquireView()
	defer v.release()
	for _, seg := range v.segs {
		wanted := false
		for _, sp := range seg.meta.Parts {
			p := Part{sp.Topic, sp.Partition}
			wanted = wanted || sp.From < ends[p] && sp.To > starts[p]
		}
		if !wanted {
			continue
		}
		for c := range seg.meta.Chunks {
			if err := ctx.Err(); err != nil {
				return damaged, err
			}
			env, err := seg.chunkWithin(uint32(c), starts, ends)
			if err != nil {
				seg.bad.Store(true)
				s.reportDamage(seg.blob.name, err)
				damaged++
				continue
			}
			if env == nil {
				continue
			}
			if err := fn(env); err != nil {
				return damaged, err
			}
		}
	}
	return damaged, nil
}

// chunkWithin reads a chunk. It returns nil if the offset of the chunk's record is not in the
// range [starts[p], ends[p]) of its partition p.
func (s *segment) chunkWithin(c uint32, starts, ends map[Part]int64) (*notify.Envelope, error) {
	var r row
	if err := s.row(c, &r); err != nil {
		return nil, err
	}
	b, err := s.body(&r)
	if err != nil {
		return nil, err
	}
	var st bodyRecord
	if err := decodeBodyRecord(b, &st); err != nil {
		return nil, err
	}
	if int(st.part) >= len(s.meta.Parts) {
		return nil, fmt.Errorf("%w: a body names partition number %d, but the segment has %d partitions", errDamaged, st.part, len(s.meta.Parts))
	}
	p := Part{s.meta.Parts[st.part].Topic, s.meta.Parts[st.part].Partition}
	if st.offset < starts[p] || st.offset >= ends[p] {
		return nil, nil
	}
	var env notify.Envelope
	if err := notify.DecodeEnvelope(st.value, &env); err != nil {
		return nil, err
	}
	return &env, nil
}

// archived reports whether all records of a segment are archived. Without an archive it returns
// true.
func (s *Store) archived(seg *segment, at map[Part]int64) bool {
	if s.cfg.Archived == nil {
		return true
	}
	for _, sp := range seg.meta.Parts {
		if sp.To > at[Part{sp.Topic, sp.Partition}] {
			return false
		}
	}
	return true
}

// expired reports whether a segment may be removed. Its retention must be over. In addition, it
// must be archived, or it must have waited for the archive longer than ArchiveWait.
func (s *Store) expired(seg *segment, limit int64, at map[Part]int64) bool {
	bound := int64(math.MinInt64)
	if s.cfg.ArchiveWait > 0 {
		bound = limit - s.cfg.ArchiveWait.Milliseconds()
	}
	return seg.meta.MaxTime < limit && (seg.meta.MaxTime < bound || s.archived(seg, at))
}
