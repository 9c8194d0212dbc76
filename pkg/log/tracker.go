package log

// tracker keeps the low-water mark of one partition: the offset below which every record handed
// out is done. Only that offset may be committed: a commit of n says that all records below n
// are done, in whatever order they were finished. The assignment's mutex guards it.
type tracker struct {
	pending []*Msg // in offset order; pending[head:] are not known to be done
	head    int
	low     int64 // next offset to commit; -1: unknown
	moved   bool  // the mark has passed at least one done record
	epoch   int32 // leader epoch of the last record passed; -1: unknown
}

func newTracker(low int64) tracker { return tracker{low: low, epoch: -1} }

// add appends records. Their offsets must ascend and be above all earlier ones.
func (t *tracker) add(msgs []*Msg) {
	if t.head > 0 && (t.head == len(t.pending) || t.head > 1024 && t.head > len(t.pending)/2) {
		n := copy(t.pending, t.pending[t.head:])
		clear(t.pending[n:])
		t.pending, t.head = t.pending[:n], 0
	}
	t.pending = append(t.pending, msgs...)
}

// advance moves the mark over the done records at the head. It reports whether the mark moved.
func (t *tracker) advance() bool {
	from := t.head
	for t.head < len(t.pending) && t.pending[t.head].done.Load() {
		m := t.pending[t.head]
		t.pending[t.head] = nil // releases the record's buffer
		t.low, t.epoch = m.Offset+1, m.epoch
		t.head++
	}
	t.moved = t.moved || t.head > from
	return t.head > from
}
