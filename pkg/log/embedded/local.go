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

// A consumer in this process reads the broker's files directly. When consumers used the network,
// every record was read, copied and sent twice: for the workers and for the history. The goroutine
// that also appends did this work, which was 11% of the cost of a receiver of a fan-out.
//
// The consumer reads the same batches as a client that fetches: the acknowledged batches, which are
// below the high watermark. It does not ask the broker for the high watermark, because the broker
// does not answer while it writes and fsyncs a batch. Instead, the producers of this process report
// acknowledged appends (Appended). For appends of other clients, the broker is asked twice a second
// (writeEndsIfMoved).

// ackedEnd is the offset below which all records of a partition are known to be acknowledged.
type ackedEnd struct {
	end     atomic.Int64
	waiting atomic.Int32
	mu      sync.Mutex
	grown   chan struct{} // closed and replaced when the field end has grown; mu guards this field

	reads reads
}

// raise sets the field end to newEnd if newEnd is higher, and then wakes the waiting readers.
func (h *ackedEnd) raise(newEnd int64) {
	for {
		was := h.end.Load()
		if newEnd <= was {
			return
		}
		if h.end.CompareAndSwap(was, newEnd) {
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

// waitAbove waits until the field end is greater than offset, and returns it. If ctx ends first,
// waitAbove returns ctx's error.
func (h *ackedEnd) waitAbove(ctx context.Context, offset int64) (int64, error) {
	for {
		if end := h.end.Load(); end > offset {
			return end, nil
		}
		h.waiting.Add(1)
		h.mu.Lock()
		grown := h.grown
		h.mu.Unlock()
		if h.end.Load() <= offset { // otherwise the end grew before h.waiting was raised, and no signal will follow
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

// raiseAckedEnds raises the acknowledged ends of a topic to the broker's high watermarks.
func (b *Broker) raiseAckedEnds(topic string, infos []*kfake.PartitionInfo) {
	for i, p := range infos {
		if h := b.ackedEnds[place{topic, int32(i)}]; h != nil {
			h.raise(p.HighWatermark)
		}
	}
}

// Appended tells the readers of the partition tp that all records before the offset next were
// acknowledged. Without this call, the readers would wait until this package asks the broker again.
func (b *Broker) Appended(tp log.TopicPartition, next int64) {
	if h := b.ackedEnds[place{tp.Topic, tp.Partition}]; h != nil {
		h.raise(next)
	}
}

// Local returns a reader of the broker's files. For a broker in memory it returns nil: its records can
// be read only over the network.
func (b *Broker) Local() log.Local {
	if b.cfg.Dir == "" {
		return nil
	}
	return local{b}
}

type local struct{ b *Broker }

// Open implements log.Local.
func (l local) Open(tp log.TopicPartition, offset int64) (log.Tail, error) {
	h := l.b.ackedEnds[place{tp.Topic, tp.Partition}]
	if h == nil {
		return nil, notify.Unavailable("log", time.Second, fmt.Errorf("partition %s does not exist", tp))
	}
	if end := h.end.Load(); offset < 0 || offset > end {
		// Another client may have appended records since the broker was last asked for its end.
		if info := l.b.cluster.PartitionInfo(tp.Topic, tp.Partition); info != nil {
			h.raise(info.HighWatermark)
		}
		if offset < 0 || offset > h.end.Load() {
			return nil, errGone(tp, offset)
		}
	}
	h.reads.opened()
	return &tail{tp: tp, dir: place{tp.Topic, tp.Partition}.folder(l.b.cfg.Dir), acked: h, next: offset}, nil
}

func errGone(tp log.TopicPartition, offset int64) error {
	return &notify.Error{Kind: notify.KindGone, Code: "offset_out_of_range", Msg: fmt.Sprintf("the log does not hold offset %d of partition %s", offset, tp), Err: kerr.OffsetOutOfRange}
}

// tail implements log.Tail. It keeps the file that it reads open. So it can read that file to the
// end even if the broker removes it meanwhile.
type tail struct {
	tp    log.TopicPartition
	dir   string
	acked *ackedEnd
	next  int64 // offset of the next record to return

	f     *os.File // open file; nil: no file was opened yet
	base  int64    // first offset of the file
	pos   int64    // position in the file: that of the batch with the offset next, or the end of the file
	ahead []byte   // read buffer
}

// Close implements log.Tail.
func (t *tail) Close() error {
	t.acked.reads.closed()
	if t.f == nil {
		return nil
	}
	return t.f.Close()
}

const (
	// readAhead is the number of bytes of one read, while batches are small.
	readAhead = 64 << 10
	// maxRead is greater than the largest batch size that can be configured.
	maxRead = 256 << 20
)

// Next implements log.Tail.
func (t *tail) Next(ctx context.Context) (log.Fetched, error) {
	for {
		end, err := t.acked.waitAbove(ctx, t.next)
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
		if err := ctx.Err(); err != nil { // the read found only control records, or the next record is in the next file
			return log.Fetched{}, err
		}
	}
}

// fetch reads the batches at the position t.pos and adds their records to f. At the end of a file
// it adds no record. If another reader reads or has read the same position, fetch takes the records
// of that reader.
func (t *tail) fetch(ctx context.Context, f *log.Fetched) error {
	if t.f == nil {
		if err := t.openAtNext(); err != nil {
			return err
		}
	}
	e, mine := t.acked.reads.claimRead(readPos{t.base, t.pos, t.next})
	if mine {
		defer func() { t.acked.reads.finishRead(e, readPos{t.base, t.pos, t.next}, *f) }() // also after an error, because another reader may wait
		return t.readBatches(f)
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if len(e.found.Records) == 0 {
		return t.readBatches(f)
	}
	f.Records, f.Epoch, f.End = e.found.Records, e.found.Epoch, max(f.End, e.found.End)
	t.pos, t.next = e.behind.pos, e.behind.next
	return nil
}

// readBatches reads the batches at t.pos and adds their records to f. At the end of a file it opens
// the next file and adds no record.
//
// If a batch begins below the acknowledged end, the whole batch is acknowledged. The end may be
// inside the batch, because the callers whose records share a batch report their acknowledgements
// one by one. If a later batch is damaged, readBatches adds the records before it and returns no
// error.
func (t *tail) readBatches(f *log.Fetched) error {
	if t.ahead == nil {
		t.ahead = make([]byte, readAhead)
	}
	n, err := t.f.ReadAt(t.ahead, t.pos)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("embedded log: reading offset %d of partition %s: %w", t.next, t.tp, err)
	}
	if n == 0 {
		return t.openNextFile()
	}
	size := 0 // bytes of the complete batches in the buffer that begin below the acknowledged end
	for size < n {
		more := sizeOf(t.ahead[size:n])
		if more > int64(n-size) || n-size >= 8 && int64(binary.BigEndian.Uint64(t.ahead[size:])) >= f.End {
			break
		}
		size += int(more)
	}
	var raw []byte // records alias raw, so raw has no unused bytes
	if size > 0 {
		raw = slices.Clone(t.ahead[:size])
	} else {
		whole := sizeOf(t.ahead[:n])
		if whole > maxRead {
			return fmt.Errorf("embedded log: reading offset %d of partition %s: the header of the batch at byte %d of %s states a size of %d bytes; the maximum is %d bytes", t.next, t.tp, t.pos, t.f.Name(), whole, maxRead)
		}
		raw = make([]byte, whole)
		copy(raw, t.ahead[:n])
		if _, err := t.f.ReadAt(raw[min(n, len(raw)):], t.pos+int64(n)); err != nil {
			return fmt.Errorf("embedded log: reading offset %d of partition %s: %w", t.next, t.tp, err)
		}
	}
	for at := 0; at < len(raw); {
		n, err := t.readBatch(f, raw[at:])
		switch {
		case err == nil:
		case len(f.Records) > 0:
			return nil // the next call reports the damaged batch
		default:
			return err
		}
		at += n
	}
	return nil
}

// readBatch adds the records of one batch to f, and moves t.pos and t.next to the following batch.
// The batch is at the beginning of the bytes raw. readBatch returns the size of the batch.
func (t *tail) readBatch(f *log.Fetched, raw []byte) (size int, err error) {
	b, ok := readBatch(raw, 0)
	switch {
	case !ok:
		return 0, fmt.Errorf("embedded log: reading offset %d of partition %s: the batch at byte %d of %s is damaged", t.next, t.tp, t.pos, t.f.Name())
	case b.first > t.next:
		return 0, errGone(t.tp, t.next)
	case b.next() > t.next:
		recs, err := appendRecords(f.Records, t.tp, raw[:b.size], t.next)
		if err != nil {
			return 0, fmt.Errorf("embedded log: reading the batch at offset %d of partition %s: %w", b.first, t.tp, err)
		}
		f.Records = recs
		f.Epoch, t.next, f.End = b.epoch, b.next(), max(f.End, b.next())
	}
	t.pos += int64(b.size)
	return b.size, nil
}

// sizeOf returns the size of the batch at the beginning of the given bytes. If these are fewer
// bytes than a header has, it returns the size of a header.
func sizeOf(raw []byte) int64 {
	if len(raw) < batchHeader {
		return batchHeader
	}
	return int64(binary.BigEndian.Uint32(raw[atLength:])) + atEpoch
}

// openAtNext opens the file that contains the offset t.next, and sets t.pos to the batch with this
// offset.
func (t *tail) openAtNext() error {
	bases, err := segmentBases(t.dir)
	if err != nil {
		return err
	}
	i, exact := slices.BinarySearch(bases, t.next)
	if !exact {
		if i--; i < 0 {
			return errGone(t.tp, t.next)
		}
	}
	if err := t.open(bases[i]); err != nil {
		return err
	}
	var header [batchHeader]byte
	for { // reads only the headers of batches
		if _, err := t.f.ReadAt(header[:], t.pos); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("embedded log: %w", err)
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
		return errGone(t.tp, t.next) // removed after the list was read
	}
	if err != nil {
		return fmt.Errorf("embedded log: %w", err)
	}
	if t.f != nil {
		_ = t.f.Close() // the file was only read, so an error of Close loses nothing
	}
	t.f, t.base, t.pos = f, base, 0
	return nil
}

// openNextFile opens the next file of the partition, which begins at the offset at which the
// present file ends.
func (t *tail) openNextFile() error {
	bases, err := segmentBases(t.dir)
	if err != nil {
		return err
	}
	if i, _ := slices.BinarySearch(bases, t.base+1); i < len(bases) {
		// If files after the present file were removed, the opened file begins after t.next.
		// readBatch then returns errGone.
		return t.open(bases[i])
	}
	return fmt.Errorf("embedded log: the last file %s ends at byte %d and does not hold offset %d of partition %s", t.f.Name(), t.pos, t.next, t.tp)
}

const segmentSuffix = ".dat"

// segmentBases returns the first offsets of a partition's files, ascending.
func segmentBases(dir string) ([]int64, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("embedded log: %w", err)
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
