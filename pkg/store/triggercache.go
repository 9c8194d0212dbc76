package store

import (
	"strings"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// triggerHeads caches the headers of rows that will soon be swapped: of rows that were just read,
// and of claims. For a cached header a swap reads nothing from the store. A read of a busy memtable
// costs 4 us, and a callback has two swaps.
//
// A goroutine that holds the row's lock never gets an outdated header from the cache. A writer
// holds the row's lock. It removes the header before it fills its batch (invalidate), and adds the
// new header when the batch is durable (addWritten). A reader does not hold the lock. It calls
// beginRead before it reads the row, and addRead afterwards. addRead caches the header only if no
// writer has changed the row's stripe (headStripe) between the two calls.
type triggerHeads [256]headStripe

type headStripe struct {
	mu    sync.Mutex // guards the fields below
	seq   uint64     // each writer increases it
	slots []headSlot
}

// headSlot holds the header of one row. The header of another row with the same slot replaces it.
// There are 65,536 slots, which take 8 MB. A busy dispatcher has up to 32,768 rows that it has read
// and not swapped yet.
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

// beginRead returns the current sequence number of the row's stripe. The caller then reads the row,
// and passes the number to addRead.
func (c *triggerHeads) beginRead(id string) (seq uint64) {
	s, _ := c.slotOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seq
}

// addRead caches a header that was read. It does nothing if a writer has changed the stripe since
// beginRead returned the number seq.
func (c *triggerHeads) addRead(id string, h triggerHeader, seq uint64) {
	s, slot := c.slotOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seq == seq {
		s.put(slot, id, h)
	}
}

// invalidate removes the header of a row that is about to be written. The caller holds the row's lock.
func (c *triggerHeads) invalidate(id string) {
	s, slot := c.slotOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	s.forget(slot, id)
}

// addWritten is called after a row was written. If the row is a claim, it caches the header,
// because the claim will soon be swapped. Otherwise it removes the header from the cache: a reader
// may have cached the old header before the write was visible.
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
	h.caller = strings.Clone(h.caller) // without the clone it could keep a whole row in memory
	s.slots[slot] = headSlot{id, h}
}
