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

// frozen is a full tail on its way to the sealer.
type frozen struct {
	p *part
	t *tail
}

// sealQueue is first in, first out; its length is bounded by the parts' slots.
type sealQueue struct {
	mu    sync.Mutex
	tails []frozen
	wake  chan struct{} // one token: something may be queued
}

func (q *sealQueue) push(f frozen) {
	q.mu.Lock()
	q.tails = append(q.tails, f)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *sealQueue) pop() (f frozen, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.tails) == 0 {
		return f, false
	}
	f = q.tails[0]
	q.tails = append(q.tails[:0], q.tails[1:]...)
	return f, true
}

// sealAll seals what is queued, in order, so that a partition's sealed offset
// only ever passes what is durable.
func (s *Store) sealAll(ctx context.Context) error {
	var scratch []byte
	for {
		f, ok := s.queue.pop()
		if !ok {
			select {
			case <-s.queue.wake:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for pause := (notify.Pause{Most: 5 * time.Second}); ; {
			var err error
			if scratch, err = s.seal(f.p, f.t, scratch); err == nil {
				break
			}
			if err := s.failed.Load(); err != nil {
				return *err
			}
			s.cfg.Log.Error("history cannot seal a segment, will try again", "part", f.p.Part, "err", err)
			if !pause.Wait(ctx) {
				return ctx.Err()
			}
		}
	}
}

// ageAll freezes tails that are old enough, and moves sealed offsets of
// partitions that had nothing to keep.
func (s *Store) ageAll(ctx context.Context) error {
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
				continue // busy: it seals by size, or is met at the next tick
			}
			var err error
			if p.active != nil && time.Since(p.active.born) >= s.cfg.SegmentAge {
				err = s.freeze(ctx, p)
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

// sealEmpty moves the sealed offset of partitions that saw nothing to keep for
// the age of a segment.
func (s *Store) sealEmpty() error {
	idle := map[*part]int64{}
	all := map[Part]int64{}
	for _, p := range s.allParts() {
		free := p.appendMu.TryLock() // else a chunk may be on its way in
		p.mu.RLock()
		all[p.Part] = p.sealed
		if next := p.next.Load(); free && p.active == nil && len(p.frozen) == 0 && next > p.sealed {
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
		p.sealed = max(p.sealed, next)
		p.mu.Unlock()
	}
	return nil
}

// seal makes a frozen tail a segment:
//
//  1. write the rest of the bodies, the index, meta and footer
//  2. sync the file, rename it, sync the folder
//  3. list the segment, then forget the tail: a reader sees at least one
//  4. move the sealed offset
func (s *Store) seal(p *part, t *tail, scratch []byte) ([]byte, error) {
	if err := s.flush(p, t); err != nil {
		return scratch, err
	}
	m := &meta{
		Num: t.num, Bodies: t.size(),
		MinBase: t.minBase.String(), MaxBase: t.maxBase.String(), MinTime: t.minTime, MaxTime: t.maxTime,
		Parts: []span{{p.Topic, p.Partition, t.from, t.to}},
	}
	scratch, err := appendSections(scratch[:0], m, t.rows, t.users.hashes, t.bases.hashes)
	if err != nil {
		return scratch, err
	}
	seg, err := s.commit(t.blob, t.path, m, scratch)
	if err != nil {
		return scratch, err
	}
	s.install([]*segment{seg}, nil)
	p.mu.Lock()
	p.frozen = p.frozen[1:]
	p.sealed = t.to
	a := t.take()
	p.mu.Unlock()
	t.blob.release()
	<-p.slots
	select {
	case s.free <- a:
	default:
	}
	return scratch, nil
}

// commit appends the sections behind the bodies of a file and makes it a
// sealed segment. After an error of a sync nothing can be known of what the
// disk holds, so it is final.
func (s *Store) commit(b *blob, path string, m *meta, sections []byte) (*segment, error) {
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
			s.fail(err)
			return nil, err
		}
	}
	s.recent.add(b, m.Bodies+int64(len(sections)), s.cfg.CacheBytes)
	return newSegment(b, m, m.Bodies+int64(len(sections)))
}

// recent is the newest segments, which may stay in the page cache.
type recent struct {
	mu    sync.Mutex
	list  []cached // the oldest first
	bytes int64
}

type cached struct {
	*blob
	size int64
}

// mostRecent is how many segments are held, however small: each is an open file.
const mostRecent = 64

// add makes a segment the newest, and forgets the oldest beyond so many bytes.
func (c *recent) add(b *blob, size, most int64) {
	b.hold()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list, c.bytes = append(c.list, cached{b, size}), c.bytes+size
	for c.bytes > most || len(c.list) > mostRecent {
		old := c.list[0]
		old.Forget()
		old.release()
		c.list, c.bytes = c.list[1:], c.bytes-old.size
	}
}

// remove lets go of a segment whose file goes away.
func (c *recent) remove(b *blob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.list, func(x cached) bool { return x.blob == b }); i >= 0 {
		c.bytes -= c.list[i].size
		c.list = slices.Delete(c.list, i, i+1)
		b.release()
	}
}

// close releases all.
func (c *recent) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.list {
		b.release()
	}
	c.list, c.bytes = nil, 0
}

// appendSections appends what lies behind the bodies and completes m.
func appendSections(b []byte, m *meta, rows []row, users, bases []uint64) ([]byte, error) {
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

// progress wakes those who wait for offsets.
type progress struct {
	mu      sync.Mutex
	ch      chan struct{} // closed and replaced when an offset moved
	waiting int
}

// moved wakes all waiters; it costs a lock when there are none.
func (g *progress) moved() {
	g.mu.Lock()
	if g.waiting > 0 {
		close(g.ch)
		g.ch = make(chan struct{})
		g.waiting = 0
	}
	g.mu.Unlock()
}

func (g *progress) wait() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting++
	return g.ch
}

// Sync waits until every record below the given offsets was appended.
func (s *Store) Sync(ctx context.Context, wants map[Part]int64) error {
	for {
		moved := s.progress.wait()
		behind := Part{}
		for tp, want := range wants {
			if want > 0 && s.partOf(tp).next.Load() < want {
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
			return notify.Unavailable("history", time.Second, fmt.Errorf("%v is behind: %w", behind, ctx.Err()))
		}
	}
}
