package worker

import "sync"

// userOrder keeps the order of first attempts per user within a partition. The provider may be
// called for an envelope when every earlier envelope that shares a user with it has first results.
//
// A user is identified by a slot of a hash table. If two users have the same slot, an envelope may
// wait without need, but it never overtakes another. A large envelope would use very many slots. So
// it is a barrier instead: it waits for all earlier envelopes, and all later envelopes wait for it.
type userOrder struct {
	mu        sync.Mutex
	slots     []uint32              // by slot: number of the last envelope
	next      uint32                // number of the next envelope; starts at 1, because 0 in a slot means no envelope
	barrier   uint32                // number of the last large envelope
	openTurns map[uint32]*orderTurn // turns that have not ended, by number
}

const (
	orderSlots   = 1 << 16
	barrierFrom  = 512 // an envelope with at least so many receivers is a barrier; see userOrder
	orderSlotMax = orderSlots - 1
)

// orderTurn is the place of one envelope in the order. userOrder.mu guards all fields except ready.
type orderTurn struct {
	number   uint32        // in the order of the log
	waitsFor int           // number of envelopes that it waits for
	left     bool          // the method leave was called for this turn
	waiting  []*orderTurn  // turns that wait for this turn
	ready    chan struct{} // closed when this turn waits for no other turn
}

// hasCome returns true if the envelope waits for no other envelope.
func (t *orderTurn) hasCome() bool {
	select {
	case <-t.ready:
		return true
	default:
		return false
	}
}

func newUserOrder() *userOrder {
	return &userOrder{slots: make([]uint32, orderSlots), next: 1, openTurns: map[uint32]*orderTurn{}}
}

// enter gives the next envelope its turn. It must be called in the order of the log. The parameter
// hashes contains the hashes of the envelope's users; a barrier needs none.
func (o *userOrder) enter(hashes []uint64, receivers uint32) *orderTurn {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := &orderTurn{number: o.next, ready: make(chan struct{})}
	o.next++
	if receivers >= barrierFrom {
		for _, u := range o.openTurns {
			t.waitsFor++
			u.waiting = append(u.waiting, t)
		}
		o.barrier = t.number
	} else {
		o.waitFor(t, o.barrier)
		for _, h := range hashes {
			s := &o.slots[h&orderSlotMax]
			o.waitFor(t, *s)
			*s = t.number
		}
	}
	o.openTurns[t.number] = t
	if t.waitsFor == 0 {
		close(t.ready)
	}
	return t
}

// waitFor makes t wait for envelope n, unless n has ended or t already waits for n. o.mu must be
// held.
func (o *userOrder) waitFor(t *orderTurn, n uint32) {
	u, ok := o.openTurns[n]
	if !ok || u == t {
		return
	}
	if l := len(u.waiting); l > 0 && u.waiting[l-1] == t {
		return
	}
	t.waitsFor++
	u.waiting = append(u.waiting, t)
}

// leave ends a turn: its users have their first results. An envelope may leave while it still waits
// for others, because it expired, was cancelled or was finished before. Then it stays in the order
// until all these others have left, because later envelopes must also wait for them.
func (o *userOrder) leave(t *orderTurn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t.left = true
	if t.waitsFor > 0 || o.openTurns[t.number] != t {
		return
	}
	for gone := []*orderTurn{t}; len(gone) > 0; {
		t, gone = gone[len(gone)-1], gone[:len(gone)-1]
		delete(o.openTurns, t.number)
		for _, u := range t.waiting {
			if u.waitsFor--; u.waitsFor == 0 {
				close(u.ready)
				if u.left {
					gone = append(gone, u)
				}
			}
		}
		t.waiting = nil
	}
}
