package simulator

import (
	"sync"

	"github.com/cespare/xxhash/v2"
)

// orderBook remembers, for every address of every user, the highest sequence
// number seen, at a first attempt and at a first delivery. A first one below the
// highest came out of order.
type orderBook struct {
	shards [16]struct {
		mu    sync.Mutex
		users map[uint64]orderState
	}
	mu   sync.Mutex // guards what follows
	late orderTotals
	ex   []Reordered
}

type orderState struct{ tried, taken uint64 }

type orderTotals struct{ deliveries, attempts uint64 }

// keepReordered bounds the examples kept.
const keepReordered = 100

func (o *orderBook) reset() {
	for i := range o.shards {
		s := &o.shards[i]
		s.mu.Lock()
		s.users = map[uint64]orderState{}
		s.mu.Unlock()
	}
	o.mu.Lock()
	o.late, o.ex = orderTotals{}, nil
	o.mu.Unlock()
}

func (o *orderBook) see(e *entry, h hit) {
	key := mix(xxhash.Sum64String(e.user), e.addr^uint64(e.provider.Channel())<<56)
	s := &o.shards[key&15]
	s.mu.Lock()
	was := s.users[key]
	now := was
	if h.firstTry {
		now.tried = max(was.tried, e.userSeq)
	}
	if h.first {
		now.taken = max(was.taken, e.userSeq)
	}
	s.users[key] = now
	s.mu.Unlock()

	lateTry := h.firstTry && e.userSeq < was.tried
	late := h.first && e.userSeq < was.taken
	if !lateTry && !late {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.late.attempts += b2u(lateTry)
	o.late.deliveries += b2u(late)
	if len(o.ex) < keepReordered {
		x := Reordered{User: e.user, ID: e.id, Provider: e.provider, Seq: e.userSeq, After: was.taken, At: e.at, Attempt: lateTry}
		if lateTry {
			x.After = was.tried
		}
		o.ex = append(o.ex, x)
	}
}

func (o *orderBook) report() OrderReport {
	var r OrderReport
	for i := range o.shards {
		s := &o.shards[i]
		s.mu.Lock()
		r.Users += len(s.users)
		s.mu.Unlock()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	r.Reordered, r.ReorderedAttempts = o.late.deliveries, o.late.attempts
	r.Examples = append([]Reordered{}, o.ex...)
	return r
}
