package embedded

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/internal/atomicfile"
)

// checker reads every batch of a log before the broker does. The broker would
// cut a segment at its first bad checksum, with a warning, and give the offsets
// of what it cut out again: records behind the damage would be gone too, and
// groups and the history, which stand behind them, would take the next ones for
// done.
type checker struct {
	cfg     Config
	now     time.Time
	buffers sync.Pool // *bytes.Buffer

	mu sync.Mutex
	checked
	found  []Loss         // of this start
	todo   []func() error // what mends it, after the losses are written down
	healed int
}

// checked is what a check found.
type checked struct {
	losses []Loss // of this start and of those before
	torn   []Torn
	ends   ends            // as written down last
	next   map[place]int64 // the offset behind the last record of each partition

	commits map[place]map[string]int64 // by group
}

// check finds what is wrong with the log in cfg.Dir, writes down what is lost,
// and mends the segments.
func check(cfg Config) (_ checked, err error) {
	c := &checker{cfg: cfg, now: time.Now(), buffers: sync.Pool{New: func() any { return new(bytes.Buffer) }}}
	c.next = map[place]int64{}
	if c.ends, err = readEnds(cfg.Dir); err != nil {
		return checked{}, err
	}
	if c.commits, err = readCommits(cfg.Dir); err != nil {
		return checked{}, err
	}
	parts, err := c.partitions()
	if err != nil {
		return checked{}, err
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0)) // a segment of each is in memory
	for p, segments := range parts {
		g.Go(func() error {
			next, err := c.partition(p, segments)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.next[p] = next
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return checked{}, err
	}
	if c.losses, err = addLosses(cfg.Dir, c.found); err != nil {
		return checked{}, err
	}
	for _, mend := range c.todo {
		if err := mend(); err != nil {
			return checked{}, fmt.Errorf("kfake: mending: %w", err)
		}
	}
	if c.healed > 0 {
		cfg.Logger.Warn("the log had damaged headers of batches, and they could be written anew", "batches", c.healed)
	}
	for _, l := range c.found {
		cfg.Logger.Error("the log has lost records", "topic", l.Topic, "partition", l.Partition, "from", l.From, "to", l.To)
	}
	for _, t := range c.torn {
		cfg.Logger.Info("removed a write that a crash cut short", "topic", t.Topic, "partition", t.Partition, "offset", t.Offset, "bytes", t.Bytes)
	}
	return c.checked, nil
}

// partitions returns the partitions of the log, those that had records when
// their ends or a group's position were written down included, and the first
// offsets of their segments, in order.
func (c *checker) partitions() (map[place][]int64, error) {
	parts := map[place][]int64{}
	for topic, bs := range c.ends.Parts {
		for i, b := range bs {
			if b.End > 0 {
				parts[place{topic, int32(i)}] = nil
			}
		}
	}
	for p, of := range c.commits {
		for _, at := range of {
			if at > 0 {
				parts[p] = nil
			}
		}
	}
	for topic, of := range c.cfg.Kept {
		for i, at := range of {
			if at > 0 {
				parts[place{topic, i}] = nil
			}
		}
	}
	err := eachSegment(c.cfg.Dir, func(folder string, base, _ int64) {
		if p, ok := placeOf(folder); ok {
			parts[p] = append(parts[p], base)
		}
	})
	for _, segments := range parts {
		slices.Sort(segments)
	}
	return parts, err
}

// placeOf is the partition a folder of the broker is for.
func placeOf(folder string) (p place, ok bool) {
	i := strings.LastIndexByte(folder, '-')
	if i < 0 {
		return p, false
	}
	topic, err := url.PathUnescape(folder[:i])
	n, err2 := strconv.ParseInt(folder[i+1:], 10, 32)
	return place{topic, int32(n)}, err == nil && err2 == nil && n >= 0
}

func (p place) folder(dir string) string {
	return filepath.Join(dir, "partitions", fmt.Sprintf("%s-%d", url.PathEscape(p.topic), p.partition))
}

// known returns the end that a partition had at least, by what others than its
// segments say.
func (c *checker) known(p place) int64 {
	at, _ := c.ends.of(p)
	end := max(at.End, c.cfg.Kept[p.topic][p.partition])
	for _, committed := range c.commits[p] {
		end = max(end, committed)
	}
	return max(end, snapshotEnd(p.folder(c.cfg.Dir)))
}

// read reads a file into a buffer that is used again: fresh memory for every
// segment took longer than checking them.
func read(buf *bytes.Buffer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	buf.Reset()
	buf.Grow(int(info.Size()) + bytes.MinRead)
	_, err = buf.ReadFrom(f)
	return err
}

// snapshotEnd is the end that a graceful stop wrote down. It may be an old one.
func snapshotEnd(folder string) int64 {
	raw, err := os.ReadFile(filepath.Join(folder, "snapshot.json"))
	if err != nil {
		return 0
	}
	var s struct {
		End int64 `json:"high_watermark"`
	}
	if json.Unmarshal(raw, &s) != nil {
		return 0
	}
	return s.End
}

// partition checks one partition and returns where it ends.
func (c *checker) partition(p place, segments []int64) (next int64, err error) {
	known := c.known(p)
	folder := p.folder(c.cfg.Dir)
	if len(segments) == 0 {
		if known > 0 {
			at, _ := c.ends.of(p)
			c.end(p, &mended{next: min(at.Start, known)}, min(at.Start, known), known, nil)
		}
		return known, nil
	}
	buf := c.buffers.Get().(*bytes.Buffer)
	defer c.buffers.Put(buf)
	next = segments[0]
	latest := int64(0)
	for i, base := range segments {
		s := span{first: base, follows: -1}
		if i+1 < len(segments) {
			s.follows = segments[i+1]
		} else {
			s.known = known
		}
		if base < next {
			return 0, fmt.Errorf("kfake: %s/%d: segment %d begins before the one before it ends, at %d", p.topic, p.partition, base, next)
		}
		if err := read(buf, filepath.Join(folder, fmt.Sprintf("%d.dat", base))); err != nil {
			return 0, fmt.Errorf("kfake: %w", err)
		}
		raw := buf.Bytes() // until the next one
		if i == 0 {
			c.beginning(p, base, raw)
		}
		index, err := os.ReadFile(filepath.Join(folder, fmt.Sprintf("%d.idx", base)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, fmt.Errorf("kfake: %w", err)
		}
		if end, at, _, ok := whole(raw, index, s); ok && end >= s.known {
			next, latest = end, max(latest, at)
			continue
		}
		m := mend(raw, index, s)
		for _, g := range m.gaps {
			if g.after == 0 {
				g.after = latest
			}
			c.lost(p, g)
		}
		m.latest = max(m.latest, latest)
		if s.follows < 0 {
			c.end(p, &m, base, known, index)
		} else {
			c.write(folder, base, m.raw)
		}
		next, latest = m.next, m.latest
		c.mu.Lock()
		c.healed += m.healed
		c.mu.Unlock()
	}
	return next, nil
}

// beginning finds segments that are gone from the front of a partition: only a
// trim takes them away, and it writes the new start down before.
func (c *checker) beginning(p place, first int64, raw []byte) {
	at, ok := c.ends.of(p)
	if !ok || at.Start >= first || at.Start >= at.End {
		return
	}
	g := gap{from: at.Start, to: first, before: c.now.UnixMilli()}
	epoch := int32(0)
	if b, ok := readBatch(raw, 0); ok {
		g.before, epoch = b.from, b.epoch
	}
	c.lost(p, g)
	c.write(p.folder(c.cfg.Dir), g.from, markers(g.from, g.to, epoch, g.before))
}

// end mends the last segment of a partition, whose tail is either a write that
// a crash cut short or records that were there.
func (c *checker) end(p place, m *mended, base, known int64, index []byte) {
	to := known
	if len(m.tail) > 0 && m.next >= known && c.ends.sameBoot() && len(m.gaps) == 0 && m.healed == 0 {
		// The index entry is written behind the batch, and no kill takes back
		// what was written: with one, the batch was whole.
		if _, written := indexEpoch(index, batches(m.raw)); written {
			to = m.next + countOf(m.tail)
		}
	}
	switch {
	case m.next < to:
		g := gap{from: m.next, to: to, bytes: m.tail, after: m.latest, before: c.now.UnixMilli()}
		c.lost(p, g)
		m.raw = append(m.raw, markers(g.from, g.to, m.epoch, max(g.after, 0))...)
		m.next = to
	case len(m.tail) > 0:
		c.mu.Lock()
		c.torn = append(c.torn, Torn{p.topic, p.partition, m.next, len(m.tail)})
		c.mu.Unlock()
	}
	c.write(p.folder(c.cfg.Dir), base, m.raw)
}

func batches(raw []byte) (n int) {
	for pos := 0; ; n++ {
		b, ok := readBatch(raw, pos)
		if !ok {
			return n
		}
		pos += b.size
	}
}

// countOf is how many records a damaged batch held: what its header says if
// that can be, else one, for there was one at least.
func countOf(raw []byte) int64 {
	if len(raw) < batchHeader {
		return 1
	}
	n := int64(int32(binary.BigEndian.Uint32(raw[atCount:])))
	last := int64(int32(binary.BigEndian.Uint32(raw[atLast:])))
	if n != last+1 || n < 1 || n > int64(len(raw)) {
		return 1
	}
	return n
}

// lost notes a gap, and keeps what lies in its place for whoever looks into it.
func (c *checker) lost(p place, g gap) {
	l := Loss{
		Topic: p.topic, Partition: p.partition, From: g.from, To: g.to, Found: c.now.UTC().Truncate(time.Millisecond),
		Committed: maps.Clone(c.commits[p]), Kept: c.cfg.Kept[p.topic][p.partition], After: g.after, Before: g.before,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(g.bytes) > 0 {
		l.File = filepath.Join("damaged", fmt.Sprintf("%s-%d-%d-%d.bin", url.PathEscape(p.topic), p.partition, g.from, g.to))
		kept := append([]byte(nil), g.bytes...)
		c.todo = append(c.todo, func() error {
			file := filepath.Join(c.cfg.Dir, l.File)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				return err
			}
			return atomicfile.WriteFile(file, kept)
		})
	}
	c.found = append(c.found, l)
}

// write replaces a segment and its index. The broker's snapshot of the
// partition goes first: it speaks of the old ones.
func (c *checker) write(folder string, base int64, raw []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.todo = append(c.todo, func() error {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return err
		}
		if err := os.Remove(filepath.Join(folder, "snapshot.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return errors.Join(
			atomicfile.WriteFile(filepath.Join(folder, fmt.Sprintf("%d.dat", base)), raw),
			atomicfile.WriteFile(filepath.Join(folder, fmt.Sprintf("%d.idx", base)), indexOf(raw)))
	})
}
