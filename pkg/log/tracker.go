package log

// tracker keeps the low-water mark of one partition: the offset below which
// every record handed out is done. Only that offset may be committed: a commit
// of n says that all before n is finished, whatever the order in which records
// were. It is not safe for concurrent use.
type tracker struct {
	pending []*Msg // in offset order; pending[head:] are not known to be done
	head    int
	low     int64 // next offset to commit; -1: unknown
	moved   bool  // low stands behind a record that is done
	epoch   int32 // leader epoch of that record; -1: unknown
}

func newTracker(low int64) tracker { return tracker{low: low, epoch: -1} }

// add takes records in offset order, each above all before it.
func (t *tracker) add(msgs []*Msg) {
	if t.head > 0 && (t.head == len(t.pending) || t.head > 1024 && t.head > len(t.pending)/2) {
		n := copy(t.pending, t.pending[t.head:])
		clear(t.pending[n:])
		t.pending, t.head = t.pending[:n], 0
	}
	t.pending = append(t.pending, msgs...)
}

// advance moves the mark over what is done at the head and reports whether it
// moved.
func (t *tracker) advance() bool {
	from := t.head
	for t.head < len(t.pending) && t.pending[t.head].done.Load() {
		m := t.pending[t.head]
		t.pending[t.head] = nil // its buffer may go
		t.low, t.epoch = m.Offset+1, m.epoch
		t.head++
	}
	t.moved = t.moved || t.head > from
	return t.head > from
}
