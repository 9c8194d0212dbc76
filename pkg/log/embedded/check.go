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

// checker reads every batch of a log before the broker opens the log. Without the check, the broker
// would cut a segment at its first bad checksum and only log a warning. The records after the
// damage would be lost, too, and new records would get the offsets of the lost records. Groups and
// the history have already stored positions after these offsets, so they would skip the new
// records.
type checker struct {
	cfg     Config
	now     time.Time
	buffers sync.Pool // *bytes.Buffer

	mu sync.Mutex // guards the fields below while several goroutines check partitions
	checkResult
	found  []Loss         // losses that this start has found
	todo   []func() error // repairs, which run after the losses were written to the report
	healed int
}

// checkResult is the result of a check.
type checkResult struct {
	losses []Loss // losses of this start and of earlier starts
	torn   []Torn
	ends   ends            // the last stored ends
	next   map[place]int64 // end of each partition

	commits map[place]map[string]int64 // committed offset of each partition and group
}

// check finds the damage of the log in the folder cfg.Dir, writes the losses to the report, and
// repairs the segments. The broker must not have opened the log yet.
func check(cfg Config) (_ checkResult, err error) {
	c := &checker{cfg: cfg, now: time.Now(), buffers: sync.Pool{New: func() any { return new(bytes.Buffer) }}}
	c.next = map[place]int64{}
	if c.ends, err = readEnds(cfg.Dir); err != nil {
		return checkResult{}, err
	}
	if c.commits, err = readCommits(cfg.Dir); err != nil {
		return checkResult{}, err
	}
	parts, err := c.partitions()
	if err != nil {
		return checkResult{}, err
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0)) // each goroutine holds one segment in memory
	for p, segments := range parts {
		g.Go(func() error {
			next, err := c.checkPartition(p, segments)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.next[p] = next
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return checkResult{}, err
	}
	if c.losses, err = addLosses(cfg.Dir, c.found); err != nil {
		return checkResult{}, err
	}
	for _, mend := range c.todo {
		if err := mend(); err != nil {
			return checkResult{}, fmt.Errorf("embedded log: repairing the log: %w", err)
		}
	}
	if c.healed > 0 {
		cfg.Logger.Warn("rewrote damaged batch headers of the log; no record was lost", "batches", c.healed)
	}
	for _, l := range c.found {
		cfg.Logger.Error("the log has lost records", "topic", l.Topic, "partition", l.Partition, "from", l.From, "to", l.To)
	}
	for _, t := range c.torn {
		cfg.Logger.Info("removed a write that a crash cut short", "topic", t.Topic, "partition", t.Partition, "offset", t.Offset, "bytes", t.Bytes)
	}
	return c.checkResult, nil
}

// partitions returns the partitions of the log. For each partition it returns the first offsets of
// the segments, ascending. A partition without segments is also returned if it once had records.
// The stored ends, a committed offset or Config.Kept show this.
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

// placeOf returns the partition to which one of the broker's folders belongs.
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

// knownEnd returns an offset that the end of the partition has certainly reached. It uses all sources
// except the partition's segments.
func (c *checker) knownEnd(p place) int64 {
	at, _ := c.ends.of(p)
	end := max(at.End, c.cfg.Kept[p.topic][p.partition])
	for _, committed := range c.commits[p] {
		end = max(end, committed)
	}
	return max(end, snapshotEnd(p.folder(c.cfg.Dir)))
}

// readFile reads a file into buf. The caller uses buf again for the next file, because allocating
// memory for every segment took longer than the check.
func readFile(buf *bytes.Buffer, name string) error {
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

// snapshotEnd returns the end of the partition that the broker stored at its last graceful stop. The
// end may be outdated. It is 0 if no end is stored.
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

// checkPartition checks one partition and returns its end.
func (c *checker) checkPartition(p place, segments []int64) (next int64, err error) {
	known := c.knownEnd(p)
	folder := p.folder(c.cfg.Dir)
	if len(segments) == 0 {
		if known > 0 {
			at, _ := c.ends.of(p)
			c.mendLast(p, &mended{next: min(at.Start, known)}, min(at.Start, known), known, nil)
		}
		return known, nil
	}
	buf := c.buffers.Get().(*bytes.Buffer)
	defer c.buffers.Put(buf)
	next = segments[0]
	latest := int64(0)
	for i, base := range segments {
		s := segmentContext{first: base, nextFirst: -1}
		if i+1 < len(segments) {
			s.nextFirst = segments[i+1]
		} else {
			s.knownEnd = known
		}
		if base < next {
			return 0, fmt.Errorf("embedded log: %s/%d: the segment that begins at offset %d overlaps the segment before it, which ends at offset %d", p.topic, p.partition, base, next)
		}
		if err := readFile(buf, filepath.Join(folder, fmt.Sprintf("%d.dat", base))); err != nil {
			return 0, fmt.Errorf("embedded log: %w", err)
		}
		raw := buf.Bytes() // valid until the next call of readFile
		if i == 0 {
			c.checkStart(p, base, raw)
		}
		index, err := os.ReadFile(filepath.Join(folder, fmt.Sprintf("%d.idx", base)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, fmt.Errorf("embedded log: %w", err)
		}
		if end, at, _, ok := walkUndamaged(raw, index, s); ok && end >= s.knownEnd {
			next, latest = end, max(latest, at)
			continue
		}
		m := mend(raw, index, s)
		for _, g := range m.gaps {
			if g.after == 0 {
				g.after = latest
			}
			c.addLoss(p, g)
		}
		m.latest = max(m.latest, latest)
		if s.nextFirst < 0 {
			c.mendLast(p, &m, base, known, index)
		} else {
			c.queueRewrite(folder, base, m.raw)
		}
		next, latest = m.next, m.latest
		c.mu.Lock()
		c.healed += m.healed
		c.mu.Unlock()
	}
	return next, nil
}

// checkStart finds missing segments at the start of a partition. The parameter raw is the content
// of the first segment that exists, and base is its first offset. Only a trim may remove segments
// at the start, and it first stores the new first offset of the partition. So all segments from
// that offset on must exist.
func (c *checker) checkStart(p place, base int64, raw []byte) {
	at, ok := c.ends.of(p)
	if !ok || at.Start >= base || at.Start >= at.End {
		return
	}
	g := gap{from: at.Start, to: base, before: c.now.UnixMilli()}
	epoch := int32(0)
	if b, ok := readBatch(raw, 0); ok {
		g.before, epoch = b.from, b.epoch
	}
	c.addLoss(p, g)
	c.queueRewrite(p.folder(c.cfg.Dir), g.from, markers(g.from, g.to, epoch, g.before))
}

// mendLast repairs the last segment of a partition. The bytes after its last undamaged batch are
// either a write that a crash cut, or acknowledged records that were damaged. mendLast decides
// which.
func (c *checker) mendLast(p place, m *mended, base, known int64, index []byte) {
	to := known
	if len(m.tail) > 0 && m.next >= known && c.ends.sameBoot() && len(m.gaps) == 0 && m.healed == 0 {
		// The broker writes the index entry after the batch, and a kill does not undo writes. So a
		// batch that has an index entry was written completely.
		if _, written := indexEpoch(index, countBatches(m.raw)); written {
			to = m.next + countOf(m.tail)
		}
	}
	switch {
	case m.next < to:
		g := gap{from: m.next, to: to, bytes: m.tail, after: m.latest, before: c.now.UnixMilli()}
		c.addLoss(p, g)
		m.raw = append(m.raw, markers(g.from, g.to, m.epoch, max(g.after, 0))...)
		m.next = to
	case len(m.tail) > 0:
		c.mu.Lock()
		c.torn = append(c.torn, Torn{p.topic, p.partition, m.next, len(m.tail)})
		c.mu.Unlock()
	}
	c.queueRewrite(p.folder(c.cfg.Dir), base, m.raw)
}

func countBatches(raw []byte) (n int) {
	for pos := 0; ; n++ {
		b, ok := readBatch(raw, pos)
		if !ok {
			return n
		}
		pos += b.size
	}
}

// countOf returns the number of records of a damaged batch. It returns the number in the batch's header
// if the number is plausible. Otherwise it returns 1, because a batch has at least one record.
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

// addLoss adds a gap to the losses. If bytes were found in the gap, addLoss also plans to write
// them to a file, so that people can examine them.
func (c *checker) addLoss(p place, g gap) {
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

// queueRewrite plans the replacement of a segment and its index, which happens after the losses
// were reported. Before the replacement, the broker's snapshot of the partition is removed, because
// it describes the old files.
func (c *checker) queueRewrite(folder string, base int64, raw []byte) {
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
