package load

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Observer is the ledger of a run whose providers are in this process. The providers call Observe
// for every call that they accept. Observer keeps one bit per receiver. It keeps each arrival until
// the arrival is matched with its promise.
type Observer struct {
	mu       sync.Mutex
	bases    map[notify.Base]*seenReceivers
	ids      int64
	repeated int64
	examples []string
	arrivals []arrival // arrivals that have not been matched with their promises
}

// seenReceivers says which receivers of one request arrived. It has a bit for each receiver index.
type seenReceivers struct {
	bits  []uint64
	count int64
}

// NewObserver returns an empty Observer.
func NewObserver() *Observer { return &Observer{bases: map[notify.Base]*seenReceivers{}} }

// Observe records a call whose items a provider accepted. Any goroutine may use Observe. It keeps no
// reference to the call.
func (o *Observer) Observe(call *notify.Call) {
	if len(call.Items) == 0 {
		return
	}
	now := time.Now().UnixNano()
	o.mu.Lock()
	defer o.mu.Unlock()
	var s *seenReceivers
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
				s = &seenReceivers{}
				o.bases[b] = s
			}
		}
		word := int(it.Index / 64)
		if word >= len(s.bits) {
			s.bits = append(s.bits, make([]uint64, max(word+1-len(s.bits), len(s.bits)))...)
		}
		mask := uint64(1) << (it.Index % 64)
		if s.bits[word]&mask != 0 {
			if it.Addr == 0 { // a delivery to another address of the same receiver is not a duplicate
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

func (o *Observer) markStart(context.Context) error { return nil }

func (o *Observer) countArrivals(context.Context, bool) (arrivalCounts, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return arrivalCounts{ids: o.ids, duplicates: o.repeated, examples: append([]string(nil), o.examples...)}, nil
}

func (o *Observer) listMissing(_ context.Context, p *promises, most int) (delivered int64, ids []string, err error) {
	delivered, _, _ = p.countJoined()
	err = p.eachUnfinished(func(b notify.Base, one *promise) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		if one.count == 0 && len(ids) < most {
			ids = append(ids, notify.ID{Base: b}.String())
		}
		s := o.bases[b]
		if s == nil {
			s = &seenReceivers{}
		}
		for j := uint32(0); j < one.count && len(ids) < most; j++ {
			if int(j/64) >= len(s.bits) || s.bits[j/64]>>(j%64)&1 == 0 {
				ids = append(ids, notify.ID{Base: b, Index: j, FanOut: true}.String())
			}
		}
		return len(ids) < most
	})
	return delivered, append(ids, p.otherIDs(most-len(ids))...), err
}

func (o *Observer) joinArrivals(_ context.Context, p *promises, f onArrival) error {
	o.mu.Lock()
	list := o.arrivals
	o.arrivals = nil
	o.mu.Unlock()
	return p.join(list, f)
}

func (o *Observer) joinTriggerCalls(context.Context, *promises, onArrival) error { return nil }
