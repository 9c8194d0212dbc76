package embedded

import (
	"slices"
	"sync"

	"github.com/notifyd/notifyd/pkg/log"
)

// reads are the latest reads of a partition's files. Where a partition has two readers
// in this process, the workers and the history, they stand at the same place most often:
// the one that comes second takes what the first has read, checked and split into
// records, which it waits for: 3 ns and 20 bytes of memory a receiver (P6).
type reads struct {
	mu     sync.Mutex
	open   int       // readers
	latest [2]*piece // not taken yet
	turn   int       // the next to be replaced
}

// piece is what lies at a place. It is not written to once done is closed.
type piece struct {
	at, behind spot
	found      log.Fetched // without records: nobody can take it
	done       chan struct{}
}

// spot is where a reader stands: a file, a byte of it, an offset.
type spot struct{ base, pos, next int64 }

// opened and closed count the readers. Nothing is kept for one alone.
func (r *reads) opened() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open++
}

func (r *reads) closed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open--; r.open < 2 {
		clear(r.latest[:])
	}
}

// begin returns what is known of a place, or is about to be, and forgets it; mine: the
// caller is to read it and to call end.
func (r *reads) begin(at spot) (_ *piece, mine bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, e := range r.latest {
		if e != nil && e.at == at {
			r.latest[i] = nil
			return e, false
		}
	}
	e := &piece{at: at, done: make(chan struct{})}
	if r.open > 1 {
		r.latest[r.turn] = e
		r.turn = (r.turn + 1) % len(r.latest)
	}
	return e, true
}

// end says what was read and where the reader stands now. Without records it is
// forgotten.
func (r *reads) end(e *piece, behind spot, found log.Fetched) {
	if len(found.Records) == 0 {
		r.mu.Lock()
		if i := slices.Index(r.latest[:], e); i >= 0 {
			r.latest[i] = nil
		}
		r.mu.Unlock()
	}
	found.Records = slices.Clip(found.Records) // who appends to them has others
	e.behind, e.found = behind, found
	close(e.done)
}
