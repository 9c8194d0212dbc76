package h2

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// MaxAnswer is how much of an answer's body is kept, in bytes. What goes beyond
// is refused.
const MaxAnswer = 64 << 10

// Failure says why a request has no answer.
type Failure uint8

const (
	// Answered: there is an answer.
	Answered Failure = iota
	// Refused: the server did not look at it and said so, every time it was tried.
	Refused
	// Closing: likewise, since the connection was being closed.
	Closing
	// Broken: the stream or the connection broke, or could not carry it.
	Broken
	// TimedOut: no answer came in time.
	TimedOut
	// Cancelled: its batch was given up.
	Cancelled
	// NoConnection: there is none, or none any more. Err is a *Down.
	NoConnection
	// Withheld: Config.Admit said no. Err is what it said.
	Withheld
)

// Down says that nothing can be reached now.
type Down struct {
	RetryAfter time.Duration // until the next attempt to connect; 0: not known
	Err        error         // why; context.Canceled when the pool has stopped
}

func (d *Down) Error() string {
	if d.Err == nil {
		return "no connection"
	}
	return "no connection: " + d.Err.Error()
}

func (d *Down) Unwrap() error { return d.Err }

// Request is one POST. The caller may read and write it but from Submit until
// its batch hands it back; then it may be used again.
type Request struct {
	// What is sent. Path is the value of :path, Own the encoded fields that this
	// request does not share (see AppendField).
	Fields *Fields
	Path   []byte
	Own    []byte
	Body   []byte

	Tag int // the caller's own

	// What became of it. Answer is valid until the request is used again.
	Failure    Failure
	Sent       bool  // where it failed: the server may have had all of it
	Err        error // of NoConnection and Withheld, and of Broken where the connection broke
	Status     int
	RetryAfter string // the header of an answer other than 2xx; empty: none
	Answer     []byte // at most MaxAnswer; may be cut where the connection broke

	batch *Batch
	tries int

	// On a connection, guarded by its lock.
	id        uint32
	rest      []byte // of Body, not yet written
	window    int64  // of the stream: what the server still takes
	credit    int    // bytes received whose window was not yet given back
	allowed   int    // bytes the server may still send
	deadline  time.Time
	waiting   bool // rest waits for a window
	afterHead bool // the final header has come
	ended     bool // END_STREAM was read

	prev, next *Request // in the queue, or among the connection's by age
}

// reset prepares r for a try.
func (r *Request) reset() {
	r.Failure, r.Sent, r.Err, r.Status, r.RetryAfter, r.Answer = Answered, false, nil, 0, "", r.Answer[:0]
	r.id, r.rest, r.credit, r.waiting, r.afterHead, r.ended = 0, nil, 0, false, false, false
}

// list is a doubly linked list of requests.
type list struct {
	first, last *Request
	n           int
}

func (l *list) pushBack(r *Request) {
	r.prev, r.next = l.last, nil
	if l.last == nil {
		l.first = r
	} else {
		l.last.next = r
	}
	l.last = r
	l.n++
}

func (l *list) pushFront(r *Request) {
	r.prev, r.next = nil, l.first
	if l.first == nil {
		l.last = r
	} else {
		l.first.prev = r
	}
	l.first = r
	l.n++
}

func (l *list) remove(r *Request) {
	if r.prev == nil {
		l.first = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.last = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
	l.n--
}

// queue is requests that wait for a stream, by the rank of their batch.
type queue struct {
	ranks [Ranks]list
	n     int
}

func (q *queue) pushBack(r *Request)  { q.n++; q.ranks[r.batch.rank()].pushBack(r) }
func (q *queue) pushFront(r *Request) { q.n++; q.ranks[r.batch.rank()].pushFront(r) }
func (q *queue) remove(r *Request)    { q.n--; q.ranks[r.batch.rank()].remove(r) }

// first returns the request to be sent next, or nil.
func (q *queue) first() *Request {
	for i := range q.ranks {
		if r := q.ranks[i].first; r != nil {
			return r
		}
	}
	return nil
}

// Ranks is how many ranks there are.
const Ranks = 8

// Batch is where the answers of requests arrive that one goroutine submits and
// waits for. The zero value is not usable; see NewBatch.
type Batch struct {
	// Rank says which requests are given a stream first while all are taken: the lowest
	// rank, from 0; beyond Ranks is the last. It is set while nothing of the batch is
	// under way.
	Rank int

	mu        sync.Mutex
	done      []*Request
	taken     []*Request
	wake      chan struct{}
	cancelled atomic.Bool
}

func (b *Batch) rank() int { return min(b.Rank, Ranks-1) }

// NewBatch returns an empty batch.
func NewBatch() *Batch { return &Batch{wake: make(chan struct{}, 1)} }

func (b *Batch) add(rs []*Request) {
	b.mu.Lock()
	b.done = append(b.done, rs...)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Take returns the requests that were done since it was last called, perhaps
// none. The slice is valid until the next call.
func (b *Batch) Take() []*Request {
	b.mu.Lock()
	b.done, b.taken = b.taken[:0], b.done
	b.mu.Unlock()
	return b.taken
}

// Wait is Take, but waits until there is one. When ctx ends, whatever is not
// done is given up and comes back as Cancelled; requests submitted afterwards
// come back so at once.
func (b *Batch) Wait(ctx context.Context, p *Pool) []*Request {
	for {
		if rs := b.Take(); len(rs) > 0 {
			return rs
		}
		if b.cancelled.Load() {
			<-b.wake // everything is on its way back
			continue
		}
		select {
		case <-b.wake:
		case <-ctx.Done():
			p.abandon(b)
		}
	}
}

// Cancel gives up whatever is not done, as the end of Wait's context does.
func (b *Batch) Cancel(p *Pool) {
	if !b.cancelled.Load() {
		p.abandon(b)
	}
}

// Reset makes a batch whose requests are all done usable again.
func (b *Batch) Reset() {
	b.cancelled.Store(false)
	select {
	case <-b.wake:
	default:
	}
	clear(b.done[:cap(b.done)])
	clear(b.taken[:cap(b.taken)])
	b.done, b.taken = b.done[:0], b.taken[:0]
}

// deliver hands requests that are done to their batches.
func deliver(rs []*Request) {
	for i := 0; i < len(rs); {
		b, j := rs[i].batch, i+1
		for j < len(rs) && rs[j].batch == b {
			j++
		}
		b.add(rs[i:j])
		i = j
	}
}
