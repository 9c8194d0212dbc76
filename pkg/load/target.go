package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Target takes one request.
type Target interface {
	// Send sends it and returns what became of its messages. An error is that of
	// all of them: what is then stored is not known. The request's body may be
	// reused after the return.
	Send(ctx context.Context, r *Request) (Ack, error)
}

// Request is what a step sends at once.
type Request struct {
	Step     *Step
	N        int64         // number of the request in its step
	Seq      uint64        // of its first message
	Size     int           // messages
	Intended time.Duration // since the run's start
	Body     []byte
	Key      string // Idempotency-Key; empty: none
	WantIDs  bool   // somebody asks for them

	kind kind
	data *data
	mark uint64 // of its first message in the ledger of a null step
}

// Ack is a good answer.
type Ack struct {
	Request  int64
	Accepted int
	Rejected int
	// Of a fan-out Base and Count, its receivers; otherwise the ids accepted, where
	// they were wanted.
	Base  notify.Base
	Count int
	IDs   []string
	Step  *Step
}

// HTTP is a Target over the API's client. Retries of the client must be 0: a
// failure is a figure.
type HTTP struct{ Client *api.Client }

var paths = [...]string{
	kindSingle: "/v1/notifications", kindBatch: "/v1/notifications:batch",
	kindFanout: "/v1/notifications:fanout", kindTrigger: "/v1/triggers",
}

// Send implements Target.
func (h *HTTP) Send(ctx context.Context, r *Request) (Ack, error) {
	reply, err := h.Client.Post(ctx, paths[r.kind], api.TypeJSON, r.Body, r.Key)
	if err != nil {
		return Ack{}, err
	}
	ack, err := r.read(reply.Body)
	if err != nil {
		return Ack{}, &notify.Error{Kind: notify.KindInternal, Code: "bad_answer", Msg: "the server's answer is not the JSON expected", Err: err}
	}
	return ack, nil
}

// read understands an answer.
func (r *Request) read(reply []byte) (Ack, error) {
	switch r.kind {
	case kindSingle:
		var a api.Accepted
		err := json.Unmarshal(reply, &a)
		return Ack{Accepted: 1, IDs: []string{a.NotificationID}}, err
	case kindTrigger:
		var a api.TriggerAccepted
		err := json.Unmarshal(reply, &a)
		return Ack{Accepted: 1, IDs: []string{a.TriggerID}}, err
	case kindBatch:
		return r.readBatch(reply)
	}
	var f api.FanoutResult
	if err := json.Unmarshal(reply, &f); err != nil {
		return Ack{}, err
	}
	id, err := notify.ParseID(f.FirstID)
	return Ack{Accepted: f.Accepted, Rejected: f.RejectedCount, Base: id.Base, Count: r.Size}, err
}

// readBatch reads only the counts at the end where nobody asks for the ids:
// decoding a thousand results would cost the generator more than the server spent
// on them.
func (r *Request) readBatch(reply []byte) (Ack, error) {
	var b api.BatchResult
	if at := bytes.LastIndex(reply, []byte(`],"accepted":`)); !r.WantIDs && at >= 0 {
		if err := json.Unmarshal(append([]byte{'{'}, reply[at+2:]...), &b); err != nil {
			return Ack{}, err
		}
		return Ack{Accepted: b.Accepted, Rejected: b.Rejected}, nil
	}
	if err := json.Unmarshal(reply, &b); err != nil {
		return Ack{}, err
	}
	a := Ack{Accepted: b.Accepted, Rejected: b.Rejected}
	for i := range b.Results {
		if b.Results[i].Error == nil {
			a.IDs = append(a.IDs, b.Results[i].NotificationID)
		}
	}
	return a, nil
}

// sink is the target of null steps: it takes everything, and remembers the
// sequence number of each message, twice what a bitmap needs: what was promised,
// and what came.
type sink struct {
	promised, came bitset
}

// take marks the messages from..to-1.
func (s *sink) take(from, to uint64) (repeated int) {
	s.promised.set(from, to)
	return s.came.set(from, to)
}

// Send implements Target.
func (s *sink) Send(_ context.Context, r *Request) (Ack, error) {
	s.take(r.mark, r.mark+uint64(r.Size))
	return Ack{Accepted: r.Size}, nil
}

// classOf says what kind of failure an error is, for counting.
func classOf(err error) (class, code string) {
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e.Kind.String(), or(e.Code, "error")
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "transport", "timeout"
	case errors.Is(err, context.Canceled):
		return "transport", "stopped"
	}
	return "transport", "error"
}

// bitset is a growing set of numbers, one bit each, for many goroutines.
type bitset struct {
	mu    sync.RWMutex
	pages []*bitPage
}

const pageBits = 1 << 21 // 256 KiB

type bitPage [pageBits / 64]uint64

func (b *bitset) page(n uint64) *bitPage {
	b.mu.RLock()
	if n < uint64(len(b.pages)) && b.pages[n] != nil {
		p := b.pages[n]
		b.mu.RUnlock()
		return p
	}
	b.mu.RUnlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	for uint64(len(b.pages)) <= n {
		b.pages = append(b.pages, nil)
	}
	if b.pages[n] == nil {
		b.pages[n] = new(bitPage)
	}
	return b.pages[n]
}

// set sets from..to-1 and returns how many of them were set already.
func (b *bitset) set(from, to uint64) (repeated int) {
	for from < to {
		p := b.page(from / pageBits)
		end := min(to, (from/pageBits+1)*pageBits)
		for from < end {
			i := from % pageBits / 64
			stop := min(end, from&^63+64)
			mask := ^uint64(0) << (from & 63)
			if stop&63 != 0 {
				mask &= ^uint64(0) >> (64 - stop&63)
			}
			was := atomic.OrUint64(&p[i], mask)
			repeated += bits.OnesCount64(was & mask)
			from = stop
		}
	}
	return repeated
}

// missing counts what is set in b and not in o, and names the first few.
func (b *bitset) missing(o *bitset, most int) (n int64, some []uint64) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var none bitPage
	for k, p := range b.pages {
		if p == nil {
			continue
		}
		q := o.at(k)
		if q == nil {
			q = &none
		}
		for i := range p {
			rest := atomic.LoadUint64(&p[i]) &^ atomic.LoadUint64(&q[i])
			n += int64(bits.OnesCount64(rest))
			for ; rest != 0 && len(some) < most; rest &= rest - 1 {
				some = append(some, uint64(k)*pageBits+uint64(i)*64+uint64(bits.TrailingZeros64(rest)))
			}
		}
	}
	return n, some
}

func (b *bitset) at(k int) *bitPage {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if k >= len(b.pages) {
		return nil
	}
	return b.pages[k]
}
