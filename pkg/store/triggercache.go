package store

import (
	"strings"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// triggerHeads remembers headers of rows that are about to be swapped: those
// just read, and those of claims. A swap that finds its row here reads nothing;
// a look into a busy memtable costs 4 us, and a call has two swaps.
//
// What is remembered is what is stored, or nobody who holds the row's lock would
// look: a writer forgets the row before its group is filled and remembers what
// it wrote once that is durable, both under the row's lock; a reader, who has no
// lock, is believed only if no writer came by since before it read.
type triggerHeads [256]headStripe

type headStripe struct {
	mu    sync.Mutex
	seq   uint64 // of writers
	slots []headSlot
}

// A slot has one header: what is not here is read. There are 65,536 slots, 8 MB: a busy
// dispatcher has read 32,768 rows and not swapped them yet.
type headSlot struct {
	id string
	h  triggerHeader
}

const stripeSlots = 256

func (c *triggerHeads) of(id string) (s *headStripe, slot int) {
	h := uint32(notify.HashUser([]byte(id[max(len(id)-12, 0):])))
	return &c[h>>24], int(h>>8) % stripeSlots
}

// get must be called with the row's lock held.
func (c *triggerHeads) get(id string) (h triggerHeader, ok bool) {
	s, slot := c.of(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.slots) == 0 || s.slots[slot].id != id {
		return h, false
	}
	return s.slots[slot].h, true
}

// reading is to be handed to found with what is read after it.
func (c *triggerHeads) reading(id string) (seq uint64) {
	s, _ := c.of(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seq
}

// found remembers what was read, unless a writer came by.
func (c *triggerHeads) found(id string, h triggerHeader, seq uint64) {
	s, slot := c.of(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seq == seq {
		s.put(slot, id, h)
	}
}

// writing forgets a row that is about to be written.
func (c *triggerHeads) writing(id string) {
	s, slot := c.of(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	s.forget(slot, id)
}

// wrote remembers a claim as it was written: its outcome comes soon. A reader may
// have remembered the row between writing and the moment it became visible; what
// it read is over.
func (c *triggerHeads) wrote(id string, h triggerHeader) {
	s, slot := c.of(id)
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
	h.caller = strings.Clone(h.caller) // it may be a part of a whole row
	s.slots[slot] = headSlot{id, h}
}
