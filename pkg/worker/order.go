package worker

import "sync"

// order keeps, per partition, the order of first attempts per user: an envelope
// may call the provider once every earlier envelope that shares a user with it
// has had its first results.
//
// Users are known by a slot of a table of hashes: a collision makes two
// envelopes wait for each other's users without need, and never lets one pass.
// A large envelope would touch most slots, so it is a barrier instead: it waits
// for all before it, and all behind it wait for it.
type order struct {
	mu      sync.Mutex
	slots   []uint32 // last envelope (its number) per slot
	next    uint32   // number of the next envelope; 0 is none
	barrier uint32   // last large envelope
	open    map[uint32]*turn
}

const (
	orderSlots   = 1 << 16
	barrierFrom  = 512 // receivers; above, collisions would make it wait anyway
	orderSlotMax = orderSlots - 1
)

// turn is one envelope's place.
type turn struct {
	n      uint32
	before int // envelopes it waits for
	left   bool
	behind []*turn
	ready  chan struct{}
}

// come reports whether all before it have left.
func (t *turn) come() bool {
	select {
	case <-t.ready:
		return true
	default:
		return false
	}
}

func newOrder() *order {
	return &order{slots: make([]uint32, orderSlots), next: 1, open: map[uint32]*turn{}}
}

// enter gives the next envelope its turn. Called in the order of the log.
// hashes are those of its users, unless it is a barrier.
func (o *order) enter(hashes []uint64, receivers uint32) *turn {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := &turn{n: o.next, ready: make(chan struct{})}
	o.next++
	if receivers >= barrierFrom {
		for _, u := range o.open {
			t.before++
			u.behind = append(u.behind, t)
		}
		o.barrier = t.n
	} else {
		o.after(t, o.barrier)
		for _, h := range hashes {
			s := &o.slots[h&orderSlotMax]
			o.after(t, *s)
			*s = t.n
		}
	}
	o.open[t.n] = t
	if t.before == 0 {
		close(t.ready)
	}
	return t
}

// after makes t wait for envelope n, once, if that is still open.
func (o *order) after(t *turn, n uint32) {
	u, ok := o.open[n]
	if !ok || u == t {
		return
	}
	if l := len(u.behind); l > 0 && u.behind[l-1] == t {
		return
	}
	t.before++
	u.behind = append(u.behind, t)
}

// leave ends a turn: its users have had their first results. One that leaves
// without having waited (it was finished before, expired or cancelled) stays in
// the line until those before it have left: who is behind waits for them, too.
func (o *order) leave(t *turn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t.left = true
	if t.before > 0 || o.open[t.n] != t {
		return
	}
	for gone := []*turn{t}; len(gone) > 0; {
		t, gone = gone[len(gone)-1], gone[:len(gone)-1]
		delete(o.open, t.n)
		for _, u := range t.behind {
			if u.before--; u.before == 0 {
				close(u.ready)
				if u.left {
					gone = append(gone, u)
				}
			}
		}
		t.behind = nil
	}
}
