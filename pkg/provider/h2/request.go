package h2

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// MaxAnswer is the largest part of an answer's body that is kept, in bytes. If the body is longer,
// the stream is reset.
const MaxAnswer = 64 << 10

// Failure says why a request has no answer.
type Failure uint8

const (
	// Answered: the request has an answer.
	Answered Failure = iota
	// Refused: the server said that it did not process the request, at every try.
	Refused
	// Closing: the server closed the connection and said that it did not process the request, at
	// every try.
	Closing
	// Broken: the stream or the connection failed, or the server's limits do not allow the
	// request.
	Broken
	// TimedOut: the answer did not arrive within Config.Timeout.
	TimedOut
	// Cancelled: the batch was cancelled.
	Cancelled
	// NoConnection: there is no connection. Err is a *Down.
	NoConnection
	// Withheld: Config.Admit returned an error. Err contains that error.
	Withheld
)

// Down is the error of a request for which there was no connection to the provider.
type Down struct {
	RetryAfter time.Duration // time until the next attempt to connect; 0: unknown
	Err        error         // cause; context.Canceled if the pool has stopped
}

func (d *Down) Error() string {
	if d.Err == nil {
		return "no connection to the provider"
	}
	return "no connection to the provider: " + d.Err.Error()
}

func (d *Down) Unwrap() error { return d.Err }

// Request is one POST. The pool owns it from Submit until the batch returns it. At all other times
// the caller may read and write it, and may submit it again.
type Request struct {
	// The fields in this block are the request. Path is the value of :path. OwnFields contains the
	// encoded fields that only this request has (see AppendField).
	Fields    *Fields
	Path      []byte
	OwnFields []byte
	Body      []byte

	Tag int // for the caller's own use

	// The fields below are the result. Answer is valid until the request is submitted again.
	Failure Failure
	// If the request failed and Sent is true, the server may have received the whole request. If
	// the request was answered, Sent is false.
	Sent       bool
	Err        error // set with NoConnection and Withheld, and with Broken if the connection failed
	Status     int
	RetryAfter string // the Retry-After header of an answer other than 2xx; empty: no such header
	Answer     []byte // at most MaxAnswer bytes; may be cut off if the connection failed

	batch *Batch
	tries int

	// State on a connection, guarded by the connection's lock.
	id             uint32
	unwritten      []byte // part of Body that is not in the write buffer yet
	sendWindow     int64  // bytes that the server still accepts on the stream
	ungranted      int    // bytes received since the last WINDOW_UPDATE for the stream
	recvWindow     int    // bytes that the server may still send
	deadline       time.Time
	waitsForWindow bool // the bytes in unwritten wait for window space
	headArrived    bool // the final response head has arrived
	ended          bool // END_STREAM was received

	prev, next *Request // links in the queue, or in the connection's list of requests by age
}

// reset prepares r for the next try.
func (r *Request) reset() {
	r.Failure, r.Sent, r.Err, r.Status, r.RetryAfter, r.Answer = Answered, false, nil, 0, "", r.Answer[:0]
	r.id, r.unwritten, r.ungranted, r.waitsForWindow, r.headArrived, r.ended = 0, nil, 0, false, false, false
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

// queue contains the requests that wait for a stream, by the rank of their batch.
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

// Ranks is the number of different ranks of batches (see Batch.Rank).
const Ranks = 8

// Batch receives the answers of requests that one goroutine submits and waits for. NewBatch makes a
// Batch.
type Batch struct {
	// Rank orders requests that wait for a stream. The lowest rank, 0, is first. A rank of Ranks or
	// more counts as the last rank. Rank may be set only while no request of the batch is in
	// flight.
	Rank int

	mu        sync.Mutex    // guards done and taken
	done      []*Request    // not returned by Take yet
	taken     []*Request    // returned by the last Take
	wake      chan struct{} // contains a token when done may have grown
	cancelled atomic.Bool
}

func (b *Batch) rank() int { return min(b.Rank, Ranks-1) }

// NewBatch returns an empty batch.
func NewBatch() *Batch { return &Batch{wake: make(chan struct{}, 1)} }

// add puts ended requests into the batch and wakes Wait.
func (b *Batch) add(rs []*Request) {
	b.mu.Lock()
	b.done = append(b.done, rs...)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Take returns the requests that have ended since the last call of Take, possibly none. The slice
// is valid until the next call.
func (b *Batch) Take() []*Request {
	b.mu.Lock()
	b.done, b.taken = b.taken[:0], b.done
	b.mu.Unlock()
	return b.taken
}

// Wait waits until at least one request has ended, and returns the same as Take. When ctx ends,
// Wait cancels the requests in flight; they are returned as Cancelled. Requests that are submitted
// later are returned as Cancelled at once.
func (b *Batch) Wait(ctx context.Context, p *Pool) []*Request {
	for {
		if rs := b.Take(); len(rs) > 0 {
			return rs
		}
		if b.cancelled.Load() {
			<-b.wake // every request of the batch will be returned soon
			continue
		}
		select {
		case <-b.wake:
		case <-ctx.Done():
			p.cancelBatch(b)
		}
	}
}

// Cancel cancels the requests that have not ended, as Wait does when its context ends.
func (b *Batch) Cancel(p *Pool) {
	if !b.cancelled.Load() {
		p.cancelBatch(b)
	}
}

// Reset makes a batch usable again. All of its requests must have ended.
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

// deliver puts ended requests into their batches. The caller must not hold a lock.
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
