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
	mergeTier0    = 64 << 10 // segments up to this size are of one tier; each next is 8 times larger
)

// maintain verifies the index sections once, then merges and removes segments.
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

// Verify reads the index of every segment and reports by Damaged those whose
// checksums do not hold. Bodies are verified whenever they are read.
func (s *Store) Verify(ctx context.Context) error {
	v := s.acquire()
	defer v.release()
	buf := make([]byte, 256<<10)
	for _, seg := range v.segs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := seg.verify(buf); err != nil {
			seg.bad.Store(true)
			s.damage(seg.blob.name, err)
		}
	}
	return nil
}

// expireNow removes what is over by RemovalTime.
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

// expire removes segments whose youngest record has passed its retention. The
// sealed offsets they carry are kept first.
func (s *Store) expire(now time.Time) error {
	s.changeMu.Lock()
	defer s.changeMu.Unlock()
	limit := now.Add(-s.cfg.Retention).UnixMilli()
	v := s.acquire()
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
	return s.drop(old)
}

// drop takes segments out of the view and removes their files; readers at work
// keep theirs open.
func (s *Store) drop(segs []*segment) error {
	s.install(nil, segs)
	for _, seg := range segs {
		s.recent.remove(seg.blob)
		if err := s.cfg.FS.Remove(s.path(seg.blob.name)); err != nil {
			return err
		}
	}
	return s.cfg.FS.SyncDir(s.cfg.Dir)
}

// tier groups segments of similar size.
func tier(size int64) int { return (bits.Len64(uint64(size/mergeTier0)) + 2) / 3 }

// mergeable picks MergeCount segments of one tier, the oldest first, that lie
// close enough in time for retention to stay sharp.
func (s *Store) mergeable(segs []*segment) []*segment {
	span := max(s.cfg.Retention/16, 2*time.Duration(s.cfg.MergeCount)*s.cfg.SegmentAge).Milliseconds()
	tiers := map[int][]*segment{}
	for _, seg := range segs {
		if !seg.bad.Load() && seg.size < s.cfg.SegmentBytes/2 && seg.meta.Receivers < s.cfg.SegmentReceivers/2 {
			t := tier(seg.size)
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

// mergeOnce makes one segment of several small ones, if there are enough. The
// new one names those it replaces, so that a crash before they are removed
// leaves no doubt.
func (s *Store) mergeOnce(ctx context.Context) (bool, error) {
	s.changeMu.Lock()
	defer s.changeMu.Unlock()
	v := s.acquire()
	defer v.release()
	run := s.mergeable(v.segs)
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
	m.meta = &meta{Num: num, MinTime: run[0].meta.MinTime, MaxTime: run[0].meta.MaxTime}
	for _, seg := range run {
		if err = m.take(ctx, seg); err != nil {
			if errors.Is(err, errDamaged) {
				seg.bad.Store(true)
				s.damage(seg.blob.name, err)
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
			_ = s.cfg.FS.Remove(path) // else the next start does
		}
		return false, fmt.Errorf("merge: %w", err)
	}
	s.install([]*segment{seg}, run)
	m.file.release() // the view holds it
	return true, s.drop(run)
}

// merger writes the merged segment. The index is made from the bodies, which
// are checked on the way.
type merger struct {
	file         *blob
	meta         *meta
	buf          []byte
	limit        int
	at           int64 // in the file
	rows         []row
	users, bases []uint64
}

func (m *merger) take(ctx context.Context, seg *segment) error {
	parts := make([]uint16, len(seg.meta.Parts))
	for i, sp := range seg.meta.Parts {
		parts[i] = m.part(sp)
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

// part enters a partition into the meta, or widens what is there.
func (m *merger) part(sp span) uint16 {
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
	var st stored
	if err := decodeStored(body, &st); err != nil {
		return err
	}
	var env notify.Envelope
	if err := notify.DecodeHead(st.value, &env); err != nil || int(st.part) >= len(parts) {
		return fmt.Errorf("%w: body at %d: %v", errDamaged, r.off, err) //nolint:errorlint // err is nil when the part is what is wrong
	}
	users, first, last, err := hashColumn(m.users, env.Receivers, env.Count)
	if err != nil {
		return fmt.Errorf("%w: body at %d: %v", errDamaged, r.off, err) //nolint:errorlint // it is damage here
	}
	st.part = parts[st.part]
	r.off, r.start = m.at+int64(len(m.buf)), uint32(len(m.users))
	m.buf = appendStored(m.buf, &st)
	m.users, r.first, r.last = users, first, last
	m.bases = append(m.bases, hashBase(r.base))
	m.rows = append(m.rows, r)
	if len(m.buf) >= m.limit {
		return m.flush()
	}
	return nil
}

func (m *merger) flush() error {
	if _, err := m.file.WriteAt(m.buf, m.at); err != nil {
		return err
	}
	m.file.WriteBack(m.at, int64(len(m.buf)))
	m.at += int64(len(m.buf))
	m.buf = m.buf[:0]
	return nil
}

func (m *merger) finish(s *Store, path string) (*segment, error) {
	if err := m.flush(); err != nil {
		return nil, err
	}
	m.meta.Bodies = m.at
	b, err := appendSections(nil, m.meta, m.rows, m.users, m.bases)
	if err != nil {
		return nil, err
	}
	return s.commit(m.file, path, m.meta, b)
}
