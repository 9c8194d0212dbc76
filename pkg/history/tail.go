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

// maxFrozen is how many full tails of a partition may wait for the sealer
// before Append waits.
const maxFrozen = 2

// part is the growing end of one partition of the log.
type part struct {
	Part
	next  atomic.Int64  // every record below was appended
	slots chan struct{} // one per frozen tail

	appendMu sync.Mutex // held by the one appender; before mu
	hashes   []uint64   // the appender's, of the chunk it looks at

	mu     sync.RWMutex
	active *tail   // nil: no chunk since the last seal
	frozen []*tail // full, oldest first
	sealed int64   // the log may be trimmed below
}

func newPart(tp Part, sealed int64) *part {
	p := &part{Part: tp, slots: make(chan struct{}, maxFrozen), sealed: sealed}
	p.next.Store(sealed)
	return p
}

// tail is a segment that grows: bodies go to its file, the index stays in
// memory. Its fields are guarded by the part's mu; only the appender and, once
// frozen, the sealer change them, so these two read without it.
type tail struct {
	num      uint64
	blob     *blob
	path     string
	born     time.Time
	from, to int64 // offsets; to is set when frozen
	arrays

	minBase, maxBase notify.Base
	minTime, maxTime int64

	// Bodies: [0, flushed) is in the file, then writing, then buf.
	flushed int64
	writing []byte
}

// arrays is the memory of a tail, used again for later ones.
type arrays struct {
	rows         []row
	users, bases chain
	buf, spare   []byte
}

func (a *arrays) reset() {
	a.rows = a.rows[:0]
	a.users.reset()
	a.bases.reset()
	a.buf, a.spare = a.buf[:0], a.spare[:0]
}

func newTail(num uint64, b *blob, path string, from int64, a arrays) *tail {
	t := &tail{num: num, blob: b, path: path, born: time.Now(), from: from, arrays: a, minTime: math.MaxInt64, maxTime: math.MinInt64}
	t.buf = append(t.buf, fileHeader...)
	return t
}

// size is where the bodies end.
func (t *tail) size() int64 { return t.flushed + int64(len(t.writing)) + int64(len(t.buf)) }

// note adds a chunk's row and widens the bounds.
func (t *tail) note(r row, ms int64) {
	if len(t.rows) == 0 || bytes.Compare(r.base[:], t.minBase[:]) < 0 {
		t.minBase = r.base
	}
	if len(t.rows) == 0 || bytes.Compare(r.base[:], t.maxBase[:]) > 0 {
		t.maxBase = r.base
	}
	t.minTime, t.maxTime = min(t.minTime, ms), max(t.maxTime, ms)
	t.rows = append(t.rows, r)
}

// rowOf returns the chunk that holds an ordinal.
func (t *tail) rowOf(ordinal uint32) *row {
	return &t.rows[sort.Search(len(t.rows), func(i int) bool { return t.rows[i].start > ordinal })-1]
}

// take gives the arrays back: the segment answers from now on. A reader that
// still holds the tail finds all bodies in the file.
func (t *tail) take() arrays {
	a := t.arrays
	a.reset()
	t.arrays, t.writing, t.flushed = arrays{}, nil, math.MaxInt64
	return a
}

// body reads the body record of r; the caller holds a reference to the blob
// and not the lock.
func (p *part) body(t *tail, r *row) ([]byte, error) {
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
func (p *part) tails() []*tail {
	if p.active == nil {
		return p.frozen
	}
	return append(p.frozen[:len(p.frozen):len(p.frozen)], p.active)
}
