package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A consumer in this process reads the broker's files: through the network every
// record was read, copied and sent twice, once for the workers and once for the
// history, on the goroutine that also appends, which was 11% of what a receiver of
// a fan-out cost. It sees what a fetch would: batches below the high watermark,
// which is what was acknowledged. The broker is not asked for that, since it
// answers between two batches and their fsyncs only: producers of this process
// say what they were acknowledged (Appended), and twice a second the broker is
// asked for what others may have appended (noteEnds).

// height is how far a partition is known to be acknowledged.
type height struct {
	end     atomic.Int64
	waiting atomic.Int32
	mu      sync.Mutex
	grown   chan struct{} // closed and replaced when end has grown

	reads reads
}

// raise makes end at least to.
func (h *height) raise(to int64) {
	for {
		was := h.end.Load()
		if to <= was {
			return
		}
		if h.end.CompareAndSwap(was, to) {
			break
		}
	}
	if h.waiting.Load() > 0 {
		h.mu.Lock()
		close(h.grown)
		h.grown = make(chan struct{})
		h.mu.Unlock()
	}
}

// above waits until end is above offset and returns it.
func (h *height) above(ctx context.Context, offset int64) (int64, error) {
	for {
		if end := h.end.Load(); end > offset {
			return end, nil
		}
		h.waiting.Add(1)
		h.mu.Lock()
		grown := h.grown
		h.mu.Unlock()
		if h.end.Load() <= offset { // else it grew before somebody was known to wait
			select {
			case <-grown:
			case <-ctx.Done():
			}
		}
		h.waiting.Add(-1)
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
}

// noteHeights learns the high watermarks of the configured topics.
func (b *Broker) noteHeights(topic string, infos []*kfake.PartitionInfo) {
	for i, p := range infos {
		if h := b.heights[place{topic, int32(i)}]; h != nil {
			h.raise(p.HighWatermark)
		}
	}
}

// Appended says that records below next were acknowledged: those who read the
// partition need not wait until the broker is asked.
func (b *Broker) Appended(tp log.TopicPartition, next int64) {
	if h := b.heights[place{tp.Topic, tp.Partition}]; h != nil {
		h.raise(next)
	}
}

// Local reads the broker's files; nil for a broker in memory, whose records can
// be had over the network only.
func (b *Broker) Local() log.Local {
	if b.cfg.Dir == "" {
		return nil
	}
	return local{b}
}

type local struct{ b *Broker }

// Open implements log.Local.
func (l local) Open(tp log.TopicPartition, offset int64) (log.Tail, error) {
	h := l.b.heights[place{tp.Topic, tp.Partition}]
	if h == nil {
		return nil, notify.Unavailable("log", time.Second, fmt.Errorf("%s: no such partition", tp))
	}
	if end := h.end.Load(); offset < 0 || offset > end {
		// Perhaps somebody else has appended since the broker was asked.
		if info := l.b.cluster.PartitionInfo(tp.Topic, tp.Partition); info != nil {
			h.raise(info.HighWatermark)
		}
		if offset < 0 || offset > h.end.Load() {
			return nil, gone(tp, offset)
		}
	}
	h.reads.opened()
	return &tail{tp: tp, dir: place{tp.Topic, tp.Partition}.folder(l.b.cfg.Dir), height: h, next: offset}, nil
}

func gone(tp log.TopicPartition, offset int64) error {
	return &notify.Error{Kind: notify.KindGone, Code: "offset_out_of_range", Msg: fmt.Sprintf("the log does not hold %s@%d", tp, offset), Err: kerr.OffsetOutOfRange}
}

// tail implements log.Tail. Its file stays open when the broker removes it, so
// what it reads it reads to the end.
type tail struct {
	tp     log.TopicPartition
	dir    string
	height *height
	next   int64 // offset to return next

	f     *os.File // nil: not found yet
	base  int64    // offset of the file's first batch
	pos   int64    // of a batch in it that ends behind next, or of its end
	ahead []byte   // scratch
}

// Close implements log.Tail.
func (t *tail) Close() error {
	t.height.reads.closed()
	if t.f == nil {
		return nil
	}
	return t.f.Close()
}

const (
	// readAhead is how much is read at once while batches are small.
	readAhead = 64 << 10
	// maxRead is above the largest batch anybody configures.
	maxRead = 256 << 20
)

// Next implements log.Tail.
func (t *tail) Next(ctx context.Context) (log.Fetched, error) {
	for {
		end, err := t.height.above(ctx, t.next)
		if err != nil {
			return log.Fetched{}, err
		}
		f := log.Fetched{End: end}
		if err := t.fetch(ctx, &f); err != nil {
			return log.Fetched{}, err
		}
		if len(f.Records) > 0 {
			return f, nil
		}
		if err := ctx.Err(); err != nil { // only control records, or the file goes on elsewhere
			return log.Fetched{}, err
		}
	}
}

// fetch returns the batches at pos; none at the end of a file.
func (t *tail) fetch(ctx context.Context, f *log.Fetched) error {
	if t.f == nil {
		if err := t.find(); err != nil {
			return err
		}
	}
	e, mine := t.height.reads.begin(spot{t.base, t.pos, t.next})
	if mine {
		defer func() { t.height.reads.end(e, spot{t.base, t.pos, t.next}, *f) }() // whatever happens here, others wait
		return t.read(f)
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if len(e.found.Records) == 0 {
		return t.read(f)
	}
	f.Records, f.Epoch, f.End = e.found.Records, e.found.Epoch, max(f.End, e.found.End)
	t.pos, t.next = e.behind.pos, e.behind.next
	return nil
}

// read reads the batches at pos; it returns without any at the end of a file.
//
// A batch that begins below the end is acknowledged as a whole: the end may lie
// within it while the callers whose records it holds are told one by one.
// Batches before one that is damaged are returned without an error.
func (t *tail) read(f *log.Fetched) error {
	if t.ahead == nil {
		t.ahead = make([]byte, readAhead)
	}
	n, err := t.f.ReadAt(t.ahead, t.pos)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("kfake: %s@%d: %w", t.tp, t.next, err)
	}
	if n == 0 {
		return t.roll()
	}
	size := 0 // of the batches that are wanted and there
	for size < n {
		more := sizeOf(t.ahead[size:n])
		if more > int64(n-size) || n-size >= 8 && int64(binary.BigEndian.Uint64(t.ahead[size:])) >= f.End {
			break
		}
		size += int(more)
	}
	var raw []byte // kept by the records, and so no longer than they need
	if size > 0 {
		raw = slices.Clone(t.ahead[:size])
	} else {
		whole := sizeOf(t.ahead[:n])
		if whole > maxRead {
			return fmt.Errorf("kfake: %s@%d: the batch at byte %d of %s says it has %d bytes", t.tp, t.next, t.pos, t.f.Name(), whole)
		}
		raw = make([]byte, whole)
		copy(raw, t.ahead[:n])
		if _, err := t.f.ReadAt(raw[min(n, len(raw)):], t.pos+int64(n)); err != nil {
			return fmt.Errorf("kfake: %s@%d: %w", t.tp, t.next, err)
		}
	}
	for at := 0; at < len(raw); {
		n, err := t.readBatch(f, raw[at:])
		switch {
		case err == nil:
		case len(f.Records) > 0:
			return nil // and the next call begins with it
		default:
			return err
		}
		at += n
	}
	return nil
}

// readBatch adds the records of the batch that raw begins with and goes on behind it.
func (t *tail) readBatch(f *log.Fetched, raw []byte) (size int, err error) {
	b, ok := readBatch(raw, 0)
	switch {
	case !ok:
		return 0, fmt.Errorf("kfake: %s@%d: the batch at byte %d of %s is damaged", t.tp, t.next, t.pos, t.f.Name())
	case b.first > t.next:
		return 0, gone(t.tp, t.next)
	case b.next() > t.next:
		recs, err := appendRecords(f.Records, t.tp, raw[:b.size], t.next)
		if err != nil {
			return 0, fmt.Errorf("kfake: %s@%d: %w", t.tp, b.first, err)
		}
		f.Records = recs
		f.Epoch, t.next, f.End = b.epoch, b.next(), max(f.End, b.next())
	}
	t.pos += int64(b.size)
	return b.size, nil
}

// sizeOf is the size of the batch that raw begins with; that of a header where
// not even that is there.
func sizeOf(raw []byte) int64 {
	if len(raw) < batchHeader {
		return batchHeader
	}
	return int64(binary.BigEndian.Uint32(raw[atLength:])) + atEpoch
}

// find opens the file that holds next and stands at its batch.
func (t *tail) find() error {
	bases, err := segmentBases(t.dir)
	if err != nil {
		return err
	}
	i, exact := slices.BinarySearch(bases, t.next)
	if !exact {
		if i--; i < 0 {
			return gone(t.tp, t.next)
		}
	}
	if err := t.open(bases[i]); err != nil {
		return err
	}
	var header [batchHeader]byte
	for { // by headers alone
		if _, err := t.f.ReadAt(header[:], t.pos); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("kfake: %w", err)
		}
		first := int64(binary.BigEndian.Uint64(header[:]))
		if first+int64(int32(binary.BigEndian.Uint32(header[atLast:]))) >= t.next {
			return nil
		}
		t.pos += sizeOf(header[:])
	}
}

func (t *tail) open(base int64) error {
	f, err := os.Open(filepath.Join(t.dir, strconv.FormatInt(base, 10)+segmentSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return gone(t.tp, t.next) // removed since it was listed
	}
	if err != nil {
		return fmt.Errorf("kfake: %w", err)
	}
	if t.f != nil {
		_ = t.f.Close() // it was only read
	}
	t.f, t.base, t.pos = f, base, 0
	return nil
}

// roll goes on in the next file, which begins where this one ends.
func (t *tail) roll() error {
	bases, err := segmentBases(t.dir)
	if err != nil {
		return err
	}
	if i, _ := slices.BinarySearch(bases, t.base+1); i < len(bases) {
		return t.open(bases[i]) // which begins behind next if what was between is removed
	}
	return fmt.Errorf("kfake: %s ends at byte %d, before %s@%d", t.f.Name(), t.pos, t.tp, t.next)
}

const segmentSuffix = ".dat"

// segmentBases lists the first offsets of a partition's files.
func segmentBases(dir string) ([]int64, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("kfake: %w", err)
	}
	var bases []int64
	for _, e := range names {
		if stem, ok := strings.CutSuffix(e.Name(), segmentSuffix); ok {
			if base, err := strconv.ParseInt(stem, 10, 64); err == nil {
				bases = append(bases, base)
			}
		}
	}
	slices.Sort(bases)
	return bases, nil
}
