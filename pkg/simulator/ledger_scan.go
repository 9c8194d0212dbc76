package simulator

import (
	"encoding/binary"
	"iter"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// usedSlots yields the used slots of the page, with their indexes.
func (p *pairPage) usedSlots() iter.Seq2[int, *pairSlot] {
	return func(yield func(int, *pairSlot) bool) {
		for m := p.seen; m != 0; m &= m - 1 {
			if i := bits.TrailingZeros64(m); !yield(i, &p.slots[i]) {
				return
			}
		}
	}
}

// runCursor reads the pages of a run in order. It does not need the lock of the ledger.
type runCursor struct {
	r     *ledgerRun
	block int
	buf   []byte // the current block
	rest  []byte // the rest of the block, from the page that head describes; empty: the run has ended
	head  pageHead
}

// newCursor returns a cursor at the first key that is not less than the parameter from.
func newCursor(r *ledgerRun, from *pageKey) (*runCursor, error) {
	c := &runCursor{r: r, block: r.blockOf(from) - 1}
	if from.compare(&r.last) > 0 {
		return c, nil
	}
	err := c.next()
	for err == nil && len(c.rest) > 0 && c.head.key.compare(from) < 0 {
		err = c.next()
	}
	return c, err
}

// next moves the cursor to the next page.
func (c *runCursor) next() (err error) {
	if len(c.rest) > 0 {
		c.rest = c.rest[c.head.length():]
	}
	if len(c.rest) == 0 {
		if c.block++; c.block >= len(c.r.index) {
			return nil
		}
		if c.buf, err = c.r.readBlock(c.block, c.buf); err != nil {
			return err
		}
		c.rest = c.buf
	}
	readHead(c.rest, &c.head)
	return nil
}

// pages yields, in order, the pages whose keys are not less than the parameter from. It yields each
// page once, with the newest versions of its slots. The parameter mem lists the pages that were in
// memory at the start; their current state is read from memory. The other pages are read from the
// runs. No lock is held while the caller uses a page. If reading from disk fails, the iteration
// ends, and Summary reports the error.
func (l *Ledger) pages(mem []pageKey, runs []*ledgerRun, from pageKey) iter.Seq2[*pageKey, *pairPage] {
	return func(yield func(*pageKey, *pairPage) bool) {
		if err := l.eachPage(mem, runs, from, yield); err != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.pairs.noteError(err)
		}
	}
}

func (l *Ledger) eachPage(mem []pageKey, runs []*ledgerRun, from pageKey, yield func(*pageKey, *pairPage) bool) error {
	var list []*runCursor // the newest run first
	for _, r := range slices.Backward(runs) {
		c, err := newCursor(r, &from)
		if err != nil {
			return err
		}
		if len(c.rest) > 0 {
			list = append(list, c)
		}
	}
	var all, one pairPage
	for len(list) > 0 || len(mem) > 0 {
		var k pageKey
		inMemory := len(mem) > 0
		if inMemory {
			k = mem[0]
		}
		for i, c := range list {
			if i == 0 && !inMemory || c.head.key.compare(&k) < 0 {
				k = c.head.key
			}
		}
		all.seen = 0
		if inMemory = inMemory && mem[0] == k; inMemory {
			mem = mem[1:]
			l.mu.Lock()
			l.pairs.loadPage(&k, &all)
			l.mu.Unlock()
		}
		ended := false
		for _, c := range list {
			if c.head.key != k {
				continue
			}
			if !inMemory {
				readPage(c.rest, &c.head, &one)
				all.add(&one)
			}
			if err := c.next(); err != nil {
				return err
			}
			ended = ended || len(c.rest) == 0
		}
		if ended {
			list = slices.DeleteFunc(list, func(c *runCursor) bool { return len(c.rest) == 0 })
		}
		if all.seen != 0 && !yield(&k, &all) {
			return nil
		}
	}
	return nil
}

// allPages yields all pages whose base is not less than the parameter from.
func (l *Ledger) allPages(from notify.Base) iter.Seq2[*pageKey, *pairPage] {
	return func(yield func(*pageKey, *pairPage) bool) {
		l.mu.Lock()
		low := pageKey{base: from}
		mem, runs := l.pairs.pagesInMemory(func(k *pageKey) bool { return k.compare(&low) >= 0 }), slices.Clone(l.pairs.runs)
		l.mu.Unlock()
		l.pages(mem, runs, low)(yield)
	}
}

// All yields every pair, in the order of ids. Each page is a consistent copy. All holds no lock
// while the caller uses a pair.
func (l *Ledger) All() iter.Seq[Delivery] { return l.Since(time.Time{}) }

// Since yields the same pairs as All, but only those whose ids were made at the time in the
// parameter from, or later. If an id contains no time, Since uses the time of its first delivery.
// Since does not read pages of older ids.
func (l *Ledger) Since(from time.Time) iter.Seq[Delivery] {
	return func(yield func(Delivery) bool) {
		l.mu.Lock()
		foreign := maps.Clone(l.foreign)
		l.mu.Unlock()
		var low notify.Base
		if ms := from.UnixMilli(); ms > 0 {
			var b [8]byte
			binary.BigEndian.PutUint64(b[:], uint64(ms)<<16)
			copy(low[:], b[:6])
		}
		for k, p := range l.allPages(low) {
			if k.base.Time().Before(from) || !k.fan && foreign[k.id(0)] != "" {
				continue
			}
			for i, s := range p.usedSlots() {
				if !yield(deliveryOf(k.id(i).String(), *s)) {
					return
				}
			}
		}
		for _, text := range foreign {
			for _, d := range l.Lookup(text) {
				if !d.At.Before(from) && !yield(d) {
					return
				}
			}
		}
	}
}
