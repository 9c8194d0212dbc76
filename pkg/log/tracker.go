package log

// tracker keeps the low-water mark of one partition: the offset below which the handler has
// finished every record that it got. Only this offset may be committed, because a committed offset
// n means that all records before n are done. Records may be finished in any order. The mutex of
// the type assignment guards the tracker.
type tracker struct {
	pending []*Msg // records in offset order; records before the index head are done
	head    int
	low     int64 // low-water mark: the next offset to commit; -1: unknown
	moved   bool  // true: the low-water mark has moved over at least one done record
	epoch   int32 // leader epoch of the last record below the low-water mark; -1: unknown
}

func newTracker(low int64) tracker { return tracker{low: low, epoch: -1} }

// add appends records. They must be in the order of their offsets and must come after all records
// that were added before.
func (t *tracker) add(msgs []*Msg) {
	if t.head > 0 && (t.head == len(t.pending) || t.head > 1024 && t.head > len(t.pending)/2) {
		n := copy(t.pending, t.pending[t.head:])
		clear(t.pending[n:])
		t.pending, t.head = t.pending[:n], 0
	}
	t.pending = append(t.pending, msgs...)
}

// advance moves the low-water mark forward to the first record that is not done. It returns true if
// the low-water mark has moved.
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
