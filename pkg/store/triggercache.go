package store

import (
	"strings"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// triggerHeads caches headers of rows that will be swapped soon: of rows just read, and of claims.
// A swap that finds its row here reads nothing from the store. A read of a busy memtable costs
// 4 us, and a callback has two swaps.
//
// The cache never returns a stale header to a holder of the row's lock. A writer removes the row
// (invalidate) before its batch is filled, and adds what it wrote (addWritten) when that is
// durable, both under the row's lock. A reader has no lock: its header is added (addRead) only
// if no writer has touched the stripe since before the read (beginRead).
type triggerHeads [256]headStripe

type headStripe struct {
	mu    sync.Mutex // guards the fields below
	seq   uint64     // raised by each writer
	slots []headSlot
}

// headSlot holds one header; another row with the same slot replaces it. There are 65,536 slots,
// 8 MB: a busy dispatcher has up to 32,768 rows that it has read and not swapped yet.
type headSlot struct {
	id string
	h  triggerHeader
}

const stripeSlots = 256

func (c *triggerHeads) slotOf(id string) (s *headStripe, slot int) {
	h := uint32(notify.HashUser([]byte(id[max(len(id)-12, 0):])))
	return &c[h>>24], int(h>>8) % stripeSlots
}

// lookUp returns the cached header of a row. The caller holds the row's lock.
func (c *triggerHeads) lookUp(id string) (h triggerHeader, ok bool) {
	s, slot := c.slotOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.slots) == 0 || s.slots[slot].id != id {
		return h, false
	}
	return s.slots[slot].h, true
}

// beginRead returns the sequence that the caller passes to addRead after it has read the row.
func (c *triggerHeads) beginRead(id string) (seq uint64) {
	s, _ := c.slotOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seq
}

// addRead caches a header that was read, unless a writer has touched the stripe since seq.
func (c *triggerHeads) addRead(id string, h triggerHeader, seq uint64) {
	s, slot := c.slotOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seq == seq {
		s.put(slot, id, h)
	}
}

// invalidate removes a row that is about to be written. The caller holds the row's lock.
func (c *triggerHeads) invalidate(id string) {
	s, slot := c.slotOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	s.forget(slot, id)
}

// addWritten caches the header of a claim that was written, because its outcome is swapped soon. For
// other states it only removes the row: a reader may have cached the old header after invalidate
// and before the write became visible.
func (c *triggerHeads) addWritten(id string, h triggerHeader) {
	s, slot := c.slotOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	s.forget(slot, id)
	if h.state == engine.TriggerInFlight {
		s.put(slot, id, h)
	}
}

func (s *headStripe) forget(slot int, id string) {
	if len(s.slots) > 0 && s.slots[slot].id == id {
		s.slots[slot] = headSlot{}
	}
}

func (s *headStripe) put(slot int, id string, h triggerHeader) {
	if s.slots == nil {
		s.slots = make([]headSlot, stripeSlots)
	}
	h.caller = strings.Clone(h.caller) // it may alias a whole row, which the cache would keep
	s.slots[slot] = headSlot{id, h}
}
