package load

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Observer is the ledger of a run whose providers are in this process: they tell
// it of every call they take. It keeps a bit a receiver, and 24 bytes a call until
// the promise it keeps is known.
type Observer struct {
	mu       sync.Mutex
	bases    map[notify.Base]*seen
	ids      int64
	repeated int64
	examples []string
	arrivals []arrival // not joined with their promises yet
}

// seen is what came of one request.
type seen struct {
	bits  []uint64
	count int64
}

type arrival struct {
	base notify.Base
	at   time.Time
	n    int64
}

// NewObserver returns an empty one.
func NewObserver() *Observer { return &Observer{bases: map[notify.Base]*seen{}} }

// Take tells it of a call whose items a provider accepted. It may be called from
// any goroutine and keeps nothing of call.
func (o *Observer) Take(call *notify.Call) {
	if len(call.Items) == 0 {
		return
	}
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	var s *seen
	var base notify.Base
	n := int64(0)
	flush := func() {
		if n > 0 {
			o.arrivals = append(o.arrivals, arrival{base, now, n})
		}
		n = 0
	}
	for i := range call.Items {
		it := &call.Items[i]
		if b := it.Key.Chunk.Base; s == nil || b != base {
			flush()
			base = b
			if s = o.bases[b]; s == nil {
				s = &seen{}
				o.bases[b] = s
			}
		}
		word := int(it.Index / 64)
		if word >= len(s.bits) {
			s.bits = append(s.bits, make([]uint64, max(word+1-len(s.bits), len(s.bits)))...)
		}
		mask := uint64(1) << (it.Index % 64)
		if s.bits[word]&mask != 0 {
			if it.Addr == 0 { // a second address is no second delivery
				o.repeated++
				if len(o.examples) < 10 {
					id := it.ID()
					o.examples = append(o.examples, id.String())
				}
			}
			continue
		}
		s.bits[word] |= mask
		s.count++
		o.ids++
		n++
	}
	flush()
}

func (o *Observer) begin(context.Context) error { return nil }

func (o *Observer) came(context.Context) (came, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return came{ids: o.ids, duplicates: o.repeated, examples: append([]string(nil), o.examples...)}, nil
}

func (o *Observer) missing(_ context.Context, p *promises, most int) (delivered int64, ids []string, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range p.singles {
		if o.bases[p.singles[i].base] != nil {
			delivered++
		} else if len(ids) < most {
			ids = append(ids, notify.ID{Base: p.singles[i].base}.String())
		}
	}
	for i := range p.fans {
		f := &p.fans[i]
		s := o.bases[f.base]
		if s == nil {
			s = &seen{}
		}
		delivered += s.count
		for j := uint32(0); s.count < int64(f.count-f.rejected) && j < f.count && len(ids) < most; j++ {
			if int(j/64) >= len(s.bits) || s.bits[j/64]>>(j%64)&1 == 0 {
				ids = append(ids, notify.ID{Base: f.base, Index: j, Fan: true}.String())
			}
		}
	}
	for _, t := range p.others {
		if len(ids) < most {
			ids = append(ids, t.id)
		}
	}
	return delivered, ids, nil
}

// times joins what came with what was promised, all of it; what it has joined it
// forgets.
func (o *Observer) times(_ context.Context, p *promises, f func(*due, time.Time, int64)) (bool, error) {
	o.mu.Lock()
	list := o.arrivals
	o.arrivals = nil
	o.mu.Unlock()
	var rest []arrival
	p.mu.Lock()
	for _, a := range list {
		if d := p.byBase[a.base]; d != nil {
			f(d, a.at, a.n)
		} else {
			rest = append(rest, a)
		}
	}
	p.mu.Unlock()
	o.mu.Lock()
	o.arrivals = append(rest, o.arrivals...)
	o.mu.Unlock()
	return false, nil
}
