package load

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

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
