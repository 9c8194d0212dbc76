package history

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sort"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	maintainEvery = 10 * time.Second
	mergeTier0    = 64 << 10 // largest size in the first tier, in bytes; the limit of each further tier is 8 times larger
)

// maintain verifies the index sections once. Then it removes and merges segments until ctx ends.
func (s *Store) maintain(ctx context.Context) error {
	if err := s.Verify(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(maintainEvery)
	defer tick.Stop()
	for {
		if err := s.expireNow(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.Error("history cannot remove old segments, will try again", "err", err)
		}
		for ctx.Err() == nil {
			merged, err := s.mergeOnce(ctx)
			if err != nil {
				if failed := s.failed.Load(); failed != nil {
					return *failed
				}
				if ctx.Err() == nil {
					s.cfg.Log.Error("history cannot merge segments, will try again", "err", err)
				}
				break
			}
			if !merged {
				break
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Verify reads the index of every segment and compares checksums. The method Damaged then reports
// the damaged segments. Bodies are verified whenever they are read.
func (s *Store) Verify(ctx context.Context) error {
	v := s.acquireView()
	defer v.release()
	buf := make([]byte, 256<<10)
	for _, seg := range v.segs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := seg.verify(buf); err != nil {
			seg.bad.Store(true)
			s.reportDamage(seg.blob.name, err)
		}
	}
	return nil
}

// expireNow removes the segments that have expired at the time that Config.RemovalTime returns.
func (s *Store) expireNow(ctx context.Context) error {
	now := time.Now()
	if s.cfg.RemovalTime != nil {
		var err error
		if now, err = s.cfg.RemovalTime(ctx); err != nil {
			return err
		}
	}
	return s.expire(now)
}

// expire removes the segments for which the method expired returns true. It first stores the sealed
// offsets, because the remaining segments may not contain these offsets.
func (s *Store) expire(now time.Time) error {
	s.changeMu.Lock()
	defer s.changeMu.Unlock()
	limit := now.Add(-s.cfg.Retention).UnixMilli()
	v := s.acquireView()
	defer v.release()
	var old []*segment
	var at map[Part]int64
	if s.cfg.Archived != nil {
		at = s.cfg.Archived()
	}
	for _, seg := range v.segs {
		if s.expired(seg, limit, at) {
			old = append(old, seg)
		}
	}
	if len(old) == 0 {
		return nil
	}
	if err := s.offsets.write(s.Sealed()); err != nil {
		return err
	}
	return s.removeSegments(old)
}

// removeSegments removes segments from the view and deletes their files. Queries that still read
// these segments keep the files open.
func (s *Store) removeSegments(segs []*segment) error {
	s.replaceView(nil, segs)
	for _, seg := range segs {
		s.cached.remove(seg.blob)
		if err := s.cfg.FS.Remove(s.path(seg.blob.name)); err != nil {
			return err
		}
	}
	return s.cfg.FS.SyncDir(s.cfg.Dir)
}

// sizeTier returns the size class of a segment.
func sizeTier(size int64) int { return (bits.Len64(uint64(size/mergeTier0)) + 2) / 3 }

// pickMerge returns MergeCount segments of one tier, the oldest segments first, or nil. It selects
// only segments whose times are close to each other. Otherwise the merged segment, which is kept
// until its youngest record expires, would keep its old records too long.
func (s *Store) pickMerge(segs []*segment) []*segment {
	span := max(s.cfg.Retention/16, 2*time.Duration(s.cfg.MergeCount)*s.cfg.SegmentAge).Milliseconds()
	tiers := map[int][]*segment{}
	for _, seg := range segs {
		if !seg.bad.Load() && seg.size < s.cfg.SegmentBytes/2 && seg.meta.Receivers < s.cfg.SegmentReceivers/2 {
			t := sizeTier(seg.size)
			tiers[t] = append(tiers[t], seg)
		}
	}
	for t := 0; t < 64; t++ {
		group := tiers[t]
		sort.Slice(group, func(i, j int) bool { return group[i].meta.MinTime < group[j].meta.MinTime })
		for i := 0; i+s.cfg.MergeCount <= len(group); i++ {
			run := group[i : i+s.cfg.MergeCount]
			receivers, lo, hi := 0, run[0].meta.MinTime, run[0].meta.MaxTime
			for _, seg := range run {
				receivers += seg.meta.Receivers
				hi = max(hi, seg.meta.MaxTime)
			}
			if hi-lo <= span && receivers <= maxOrdinals {
				return run
			}
		}
	}
	return nil
}

// mergeOnce merges several small segments into one segment. It returns false if there are not
// enough small segments. The new segment lists the segments that it replaces, so that a start after
// a crash knows which segments to remove.
func (s *Store) mergeOnce(ctx context.Context) (bool, error) {
	s.changeMu.Lock()
	defer s.changeMu.Unlock()
	v := s.acquireView()
	defer v.release()
	run := s.pickMerge(v.segs)
	if run == nil {
		return false, nil
	}
	num := s.nextNum.Add(1)
	path := s.path(segmentName(num, tmpSuffix))
	f, err := s.cfg.FS.Create(path)
	if err != nil {
		return false, err
	}
	m := &merger{file: newBlob(f, segmentName(num, fileSuffix)), buf: []byte(fileHeader), limit: s.cfg.BufferBytes}
	m.meta = &segmentMeta{Num: num, MinTime: run[0].meta.MinTime, MaxTime: run[0].meta.MaxTime}
	for _, seg := range run {
		if err = m.addSegment(ctx, seg); err != nil {
			if errors.Is(err, errDamaged) {
				seg.bad.Store(true)
				s.reportDamage(seg.blob.name, err)
			}
			break
		}
	}
	var seg *segment
	if err == nil {
		seg, err = m.finish(s, path)
	}
	if err != nil {
		m.file.release()
		if s.failed.Load() == nil {
			_ = s.cfg.FS.Remove(path) // if this fails, the next start removes it
		}
		return false, fmt.Errorf("merge: %w", err)
	}
	s.replaceView([]*segment{seg}, run)
	m.file.release() // the view has its own reference
	return true, s.removeSegments(run)
}

// merger writes the merged segment. It builds a new index from the bodies, and checks each body.
type merger struct {
	file         *blob
	meta         *segmentMeta
	buf          []byte
	limit        int
	written      int64 // offset in the file after the last write
	rows         []row
	users, bases []uint64
}

func (m *merger) addSegment(ctx context.Context, seg *segment) error {
	parts := make([]uint16, len(seg.meta.Parts))
	for i, sp := range seg.meta.Parts {
		parts[i] = m.partIndex(sp)
	}
	m.meta.Replaces = append(m.meta.Replaces, seg.meta.Num)
	m.meta.MinTime, m.meta.MaxTime = min(m.meta.MinTime, seg.meta.MinTime), max(m.meta.MaxTime, seg.meta.MaxTime)
	if len(m.meta.MinBase) == 0 || seg.meta.MinBase < m.meta.MinBase {
		m.meta.MinBase = seg.meta.MinBase
	}
	m.meta.MaxBase = max(m.meta.MaxBase, seg.meta.MaxBase)
	for c := 0; c < seg.meta.Chunks; c++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		var r row
		if err := seg.row(uint32(c), &r); err != nil {
			return err
		}
		b, err := seg.body(&r)
		if err != nil {
			return err
		}
		if err := m.add(b, r, parts); err != nil {
			return err
		}
	}
	return nil
}

// partIndex returns the index of a partition in the meta. It adds the partition or extends its
// range.
func (m *merger) partIndex(sp partRange) uint16 {
	for i := range m.meta.Parts {
		if p := &m.meta.Parts[i]; p.Topic == sp.Topic && p.Partition == sp.Partition {
			p.From, p.To = min(p.From, sp.From), max(p.To, sp.To)
			return uint16(i)
		}
	}
	m.meta.Parts = append(m.meta.Parts, sp)
	return uint16(len(m.meta.Parts) - 1)
}

func (m *merger) add(body []byte, r row, parts []uint16) error {
	var st bodyRecord
	if err := decodeBodyRecord(body, &st); err != nil {
		return err
	}
	var env notify.Envelope
	err := notify.DecodeHead(st.value, &env)
	if err == nil && int(st.part) >= len(parts) {
		err = fmt.Errorf("it names partition number %d, but the segment has %d partitions", st.part, len(parts))
	}
	if err != nil {
		return fmt.Errorf("%w: the body at offset %d: %v", errDamaged, r.off, err) //nolint:errorlint // here it is damage, not notify.ErrCorrupt
	}
	users, first, last, err := hashColumn(m.users, env.Receivers, env.Count)
	if err != nil {
		return fmt.Errorf("%w: the body at offset %d: %v", errDamaged, r.off, err) //nolint:errorlint // here it is damage, not notify.ErrCorrupt
	}
	st.part = parts[st.part]
	r.off, r.start = m.written+int64(len(m.buf)), uint32(len(m.users))
	m.buf = appendBodyRecord(m.buf, &st)
	m.users, r.first, r.last = users, first, last
	m.bases = append(m.bases, hashBase(r.base))
	m.rows = append(m.rows, r)
	if len(m.buf) >= m.limit {
		return m.flush()
	}
	return nil
}

func (m *merger) flush() error {
	if _, err := m.file.WriteAt(m.buf, m.written); err != nil {
		return err
	}
	m.file.WriteBack(m.written, int64(len(m.buf)))
	m.written += int64(len(m.buf))
	m.buf = m.buf[:0]
	return nil
}

func (m *merger) finish(s *Store, path string) (*segment, error) {
	if err := m.flush(); err != nil {
		return nil, err
	}
	m.meta.Bodies = m.written
	b, err := appendSections(nil, m.meta, m.rows, m.users, m.bases)
	if err != nil {
		return nil, err
	}
	return s.commit(m.file, path, m.meta, b)
}
