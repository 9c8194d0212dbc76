package load

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Observer is the ledger of a run whose providers are in this process: they tell
// it of every call they take. It keeps a bit a receiver, and what came until it is joined
// with what was promised.
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

// NewObserver returns an empty one.
func NewObserver() *Observer { return &Observer{bases: map[notify.Base]*seen{}} }

// Take tells it of a call whose items a provider accepted. It may be called from
// any goroutine and keeps nothing of call.
func (o *Observer) Take(call *notify.Call) {
	if len(call.Items) == 0 {
		return
	}
	now := time.Now().UnixNano()
	o.mu.Lock()
	defer o.mu.Unlock()
	var s *seen
	var base notify.Base
	n := uint32(0)
	flush := func() {
		if n > 0 {
			o.arrivals = append(o.arrivals, arrival{base: base, at: now, n: n})
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

func (o *Observer) came(context.Context, bool) (came, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return came{ids: o.ids, duplicates: o.repeated, examples: append([]string(nil), o.examples...)}, nil
}

func (o *Observer) missing(_ context.Context, p *promises, most int) (delivered int64, ids []string, err error) {
	delivered, _, _ = p.joined()
	err = p.unfinished(func(b notify.Base, one *promise) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		if one.count == 0 && len(ids) < most {
			ids = append(ids, notify.ID{Base: b}.String())
		}
		s := o.bases[b]
		if s == nil {
			s = &seen{}
		}
		for j := uint32(0); j < one.count && len(ids) < most; j++ {
			if int(j/64) >= len(s.bits) || s.bits[j/64]>>(j%64)&1 == 0 {
				ids = append(ids, notify.ID{Base: b, Index: j, Fan: true}.String())
			}
		}
		return len(ids) < most
	})
	return delivered, append(ids, p.otherIDs(most-len(ids))...), err
}

func (o *Observer) times(_ context.Context, p *promises, f took) error {
	o.mu.Lock()
	list := o.arrivals
	o.arrivals = nil
	o.mu.Unlock()
	return p.join(list, f)
}

func (o *Observer) last(context.Context, *promises, took) error { return nil }
