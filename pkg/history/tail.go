package history

import (
	"bytes"
	"math"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// maxFrozen is how many frozen tails of a partition may wait for the sealer. Before Append freezes
// one more, it waits.
const maxFrozen = 2

// partition is one partition of the log, with its tails.
type partition struct {
	Part
	appendedTo atomic.Int64  // every record below this offset was appended
	slots      chan struct{} // contains one token for each frozen tail

	appendMu sync.Mutex // only one appender at a time; locked before mu
	hashes   []uint64   // scratch memory of the appender, guarded by appendMu

	mu       sync.RWMutex // guards the fields below and the tails
	active   *tail        // nil: no chunk since the last tail was frozen
	frozen   []*tail      // tails that wait for the sealer, oldest first; the slice is replaced, never changed in place
	sealedTo int64        // the log may be trimmed below this offset
}

func newPart(tp Part, sealed int64) *partition {
	p := &partition{Part: tp, slots: make(chan struct{}, maxFrozen), sealedTo: sealed}
	p.appendedTo.Store(sealed)
	return p
}

// tail is a segment that still grows. Its bodies are in its file; its index is in memory. The
// partition's mu guards its fields. Before the tail is frozen, only the appender changes the fields.
// After that, only the sealer changes them. The goroutine that may change the fields may read them
// without the lock, but must hold the lock to write.
type tail struct {
	num       uint64
	blob      *blob
	path      string
	createdAt time.Time
	from, to  int64 // offsets of its records; the field to is set when the tail is frozen
	arrays

	minBase, maxBase notify.Base
	minTime, maxTime int64

	// The bodies are in three places. The first bytes are in the file (the field flushed is their
	// number), the next bytes are in the slice writing, and the last bytes are in the slice buf.
	flushed int64
	writing []byte
}

// arrays is the memory of a tail. New tails reuse the arrays of sealed tails.
type arrays struct {
	rows         []row
	users, bases chain
	buf, spare   []byte
}

// reset empties the arrays and keeps their memory.
func (a *arrays) reset() {
	a.rows = a.rows[:0]
	a.users.reset()
	a.bases.reset()
	a.buf, a.spare = a.buf[:0], a.spare[:0]
}

func newTail(num uint64, b *blob, path string, from int64, a arrays) *tail {
	t := &tail{num: num, blob: b, path: path, createdAt: time.Now(), from: from, arrays: a, minTime: math.MaxInt64, maxTime: math.MinInt64}
	t.buf = append(t.buf, fileHeader...)
	return t
}

// size returns the offset at which the bodies end.
func (t *tail) size() int64 { return t.flushed + int64(len(t.writing)) + int64(len(t.buf)) }

// addRow adds a chunk's row and extends the bounds of base and time.
func (t *tail) addRow(r row, ms int64) {
	if len(t.rows) == 0 || bytes.Compare(r.base[:], t.minBase[:]) < 0 {
		t.minBase = r.base
	}
	if len(t.rows) == 0 || bytes.Compare(r.base[:], t.maxBase[:]) > 0 {
		t.maxBase = r.base
	}
	t.minTime, t.maxTime = min(t.minTime, ms), max(t.maxTime, ms)
	t.rows = append(t.rows, r)
}

// rowOf returns the row of the chunk that contains an ordinal.
func (t *tail) rowOf(ordinal uint32) *row {
	return &t.rows[sort.Search(len(t.rows), func(i int) bool { return t.rows[i].start > ordinal })-1]
}

// takeArrays removes the arrays from a tail whose segment is in the view, and returns them. A query
// that still uses the tail finds all bodies in the file. The caller holds the partition's mu.
func (t *tail) takeArrays() arrays {
	a := t.arrays
	a.reset()
	t.arrays, t.writing, t.flushed = arrays{}, nil, math.MaxInt64
	return a
}

// body reads the body record of r. The caller must have a reference to the tail's file, but must
// not hold mu.
func (p *partition) body(t *tail, r *row) ([]byte, error) {
	b := make([]byte, r.size)
	p.mu.RLock()
	off := r.off - t.flushed
	if off >= 0 {
		src := t.writing
		if off >= int64(len(src)) {
			off -= int64(len(src))
			src = t.buf
		}
		copy(b, src[off:])
	}
	p.mu.RUnlock()
	if off >= 0 {
		return b, nil
	}
	return b, readFull(t.blob, b, r.off)
}

// tails returns the tails, oldest first. The caller holds mu.
func (p *partition) tails() []*tail {
	if p.active == nil {
		return p.frozen
	}
	return append(p.frozen[:len(p.frozen):len(p.frozen)], p.active)
}
