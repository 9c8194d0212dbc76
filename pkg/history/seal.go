package history

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// frozenTail is a tail that is full or old enough, and waits for the sealer.
type frozenTail struct {
	part *partition
	tail *tail
}

// sealQueue contains frozen tails, first in, first out. At most maxFrozen of them belong to the
// same partition.
type sealQueue struct {
	mu    sync.Mutex
	tails []frozenTail
	wake  chan struct{} // contains a token when a tail may be queued
}

func (q *sealQueue) push(f frozenTail) {
	q.mu.Lock()
	q.tails = append(q.tails, f)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *sealQueue) pop() (f frozenTail, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.tails) == 0 {
		return f, false
	}
	f = q.tails[0]
	q.tails = append(q.tails[:0], q.tails[1:]...)
	return f, true
}

// sealAll seals queued tails, in order. So the sealed offset of a partition never passes a record
// that is not durable. Only the goroutine of sealAll seals.
func (s *Store) sealAll(ctx context.Context) error {
	var scratch []byte
	for {
		f, ok := s.sealQueue.pop()
		if !ok {
			select {
			case <-s.sealQueue.wake:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for pause := (notify.Pause{Most: 5 * time.Second}); ; {
			var err error
			if scratch, err = s.seal(f.part, f.tail, scratch); err == nil {
				break
			}
			if err := s.failed.Load(); err != nil {
				return *err
			}
			s.cfg.Log.Error("history cannot seal a segment, will try again", "part", f.part.Part, "err", err)
			if !pause.Wait(ctx) {
				return ctx.Err()
			}
		}
	}
}

// freezeOld freezes tails that have reached the age Config.SegmentAge, and advances the sealed
// offsets of partitions without chunks.
func (s *Store) freezeOld(ctx context.Context) error {
	tick := time.NewTicker(max(s.cfg.SegmentAge/20, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		for _, p := range s.allParts() {
			if !p.appendMu.TryLock() {
				continue // an append is running: the tail will be full soon, or the next tick checks it
			}
			var err error
			if p.active != nil && time.Since(p.active.createdAt) >= s.cfg.SegmentAge {
				err = s.freezeActive(ctx, p)
			}
			p.appendMu.Unlock()
			if err != nil {
				return ctx.Err()
			}
		}
		if err := s.sealEmpty(); err != nil {
			s.cfg.Log.Error("history cannot write its offsets, will try again", "err", err)
		}
	}
}

// sealEmpty advances the sealed offset of partitions that have no unsealed chunk. It does so at
// most once per SegmentAge.
func (s *Store) sealEmpty() error {
	idle := map[*partition]int64{}
	all := map[Part]int64{}
	for _, p := range s.allParts() {
		free := p.appendMu.TryLock() // if an append is running, it may be adding a chunk to the partition now
		p.mu.RLock()
		all[p.Part] = p.sealedTo
		if next := p.appendedTo.Load(); free && p.active == nil && len(p.frozen) == 0 && next > p.sealedTo {
			idle[p], all[p.Part] = next, next
		}
		p.mu.RUnlock()
		if free {
			p.appendMu.Unlock()
		}
	}
	if len(idle) == 0 || !s.offsets.due(s.cfg.SegmentAge) {
		return nil
	}
	if err := s.offsets.write(all); err != nil {
		return err
	}
	for p, next := range idle {
		p.mu.Lock()
		p.sealedTo = max(p.sealedTo, next)
		p.mu.Unlock()
	}
	return nil
}

// seal turns a frozen tail into a segment:
//
//  1. It writes the remaining bodies, the index, the meta and the footer.
//  2. It syncs the file, renames it, and syncs the folder.
//  3. It adds the segment to the view and then removes the tail, so that a query finds the
//     chunks in at least one of them.
//  4. It advances the sealed offset.
func (s *Store) seal(p *partition, t *tail, scratch []byte) ([]byte, error) {
	if err := s.flush(p, t); err != nil {
		return scratch, err
	}
	m := &segmentMeta{
		Num: t.num, Bodies: t.size(),
		MinBase: t.minBase.String(), MaxBase: t.maxBase.String(), MinTime: t.minTime, MaxTime: t.maxTime,
		Parts: []partRange{{p.Topic, p.Partition, t.from, t.to}},
	}
	scratch, err := appendSections(scratch[:0], m, t.rows, t.users.hashes, t.bases.hashes)
	if err != nil {
		return scratch, err
	}
	seg, err := s.commit(t.blob, t.path, m, scratch)
	if err != nil {
		return scratch, err
	}
	s.replaceView([]*segment{seg}, nil)
	p.mu.Lock()
	p.frozen = p.frozen[1:]
	p.sealedTo = t.to
	a := t.takeArrays()
	p.mu.Unlock()
	t.blob.release()
	<-p.slots
	select {
	case s.freeArrays <- a:
	default:
	}
	return scratch, nil
}

// commit appends the sections after the bodies of a file and makes the file a sealed segment. If a
// sync or rename fails, the content of the disk is unknown. Then commit stops all writing of the
// Store for good.
func (s *Store) commit(b *blob, path string, m *segmentMeta, sections []byte) (*segment, error) {
	const piece = 1 << 20
	for off := 0; off < len(sections); off += piece {
		end := min(off+piece, len(sections))
		if _, err := b.WriteAt(sections[off:end], m.Bodies+int64(off)); err != nil {
			return nil, fmt.Errorf("write %s: %w", b.name, err)
		}
	}
	for _, step := range []func() error{
		b.SyncData,
		func() error { return s.cfg.FS.Rename(path, s.path(b.name)) },
		func() error { return s.cfg.FS.SyncDir(s.cfg.Dir) },
	} {
		if err := step(); err != nil {
			err = notify.Unavailable("history", 0, fmt.Errorf("seal %s: %w", b.name, err))
			s.stopWriting(err)
			return nil, err
		}
	}
	s.cached.add(b, m.Bodies+int64(len(sections)), s.cfg.CacheBytes)
	return newSegment(b, m, m.Bodies+int64(len(sections)))
}

// cachedSegments contains the newest segments, which may stay in the page cache.
type cachedSegments struct {
	mu    sync.Mutex
	list  []cachedSegment // oldest first
	bytes int64
}

type cachedSegment struct {
	*blob
	size int64
}

// maxCachedSegments is the largest number of segments in cachedSegments, even if they are small. Each
// segment is an open file.
const maxCachedSegments = 64

// add adds the newest segment. Then it removes the oldest segments until at most maxCachedSegments
// segments with at most maxBytes bytes together are left.
func (c *cachedSegments) add(b *blob, size, maxBytes int64) {
	b.hold()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list, c.bytes = append(c.list, cachedSegment{b, size}), c.bytes+size
	for c.bytes > maxBytes || len(c.list) > maxCachedSegments {
		old := c.list[0]
		old.Forget()
		old.release()
		c.list, c.bytes = c.list[1:], c.bytes-old.size
	}
}

// remove releases a segment whose file will be deleted.
func (c *cachedSegments) remove(b *blob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.list, func(x cachedSegment) bool { return x.blob == b }); i >= 0 {
		c.bytes -= c.list[i].size
		c.list = slices.Delete(c.list, i, i+1)
		b.release()
	}
}

// close releases all segments.
func (c *cachedSegments) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.list {
		b.release()
	}
	c.list, c.bytes = nil, 0
}

// appendSections appends everything that comes after the bodies, and completes m.
func appendSections(b []byte, m *segmentMeta, rows []row, users, bases []uint64) ([]byte, error) {
	m.Chunks, m.Receivers = len(rows), len(users)
	m.UserBits, m.BaseBits = dirBits(len(users)), dirBits(len(bases))
	at := func(from int) section {
		return section{m.Bodies + int64(from), int64(len(b) - from), crc32.Checksum(b[from:], castagnoli)}
	}
	for i := range rows {
		b = appendRow(b, &rows[i])
	}
	m.Rows = at(0)

	n := len(b)
	for o, chunk := uint32(0), 0; int(o) < len(users); o += strideLen {
		for chunk+1 < len(rows) && rows[chunk+1].start <= o {
			chunk++
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(chunk))
	}
	m.Strides = at(n)

	n = len(b)
	b = appendIndex(b, users, m.UserBits)
	m.Users = at(n)

	n = len(b)
	b = appendIndex(b, bases, m.BaseBits)
	m.Bases = at(n)
	return appendFooter(b, m, m.Bodies+int64(len(b)))
}

// offsetProgress wakes goroutines that wait for offsets.
type offsetProgress struct {
	mu      sync.Mutex
	ch      chan struct{} // closed and replaced when an offset has changed
	waiting int
}

// moved wakes all waiting goroutines. If no goroutine waits, it only takes the lock.
func (g *offsetProgress) moved() {
	g.mu.Lock()
	if g.waiting > 0 {
		close(g.ch)
		g.ch = make(chan struct{})
		g.waiting = 0
	}
	g.mu.Unlock()
}

// wait returns a channel that is closed when an offset changes. The caller must check the offsets
// after this call, not before it. Otherwise the caller could miss a change.
func (g *offsetProgress) wait() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting++
	return g.ch
}

// Sync waits until every record below the given offsets has been appended. If ctx ends first, it
// returns notify.KindUnavailable.
func (s *Store) Sync(ctx context.Context, wants map[Part]int64) error {
	for {
		moved := s.progress.wait()
		behind := Part{}
		for tp, want := range wants {
			if want > 0 && s.partOf(tp).appendedTo.Load() < want {
				behind = tp
				break
			}
		}
		if behind == (Part{}) {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return notify.Unavailable("history", time.Second, fmt.Errorf("history is behind the log in partition %v: %w", behind, ctx.Err()))
		}
	}
}
