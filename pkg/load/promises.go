package load

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// promises holds the acknowledged messages and matches them with their arrivals. Each match gives
// one end-to-end time. When all messages of a promise have arrived, the promise is removed, unless
// there are several ledgers: then a message may still arrive at another ledger.
// Promises that do not fit into memory go to files (promisefiles.go). At the end the files are
// matched, one after the other.
type promises struct {
	keepIDs bool // true: keep the ids, not only the number of messages
	memory  int  // bytes; 0: promiseMemory
	shards  int  // number of ledgers that report arrivals; 0: one ledger

	mu       sync.Mutex // guards the fields up to promisedEarly; workers lock it for each answer
	messages int64      // number of acknowledged messages
	open     map[notify.Base]promise
	others   []otherPromise // triggers
	// early holds arrivals that have no promise yet: an arrival may be read before the answer to
	// its request.
	early         map[notify.Base][]arrival
	earlyCount    int           // number of arrivals in the map early
	promisedEarly []notify.Base // keys of the map early whose promise was added later

	joining   sync.Mutex // guards the fields below; must be locked before mu
	delivered int64
	repeated  int64 // single messages that arrived at two ledgers
	examples  []string
	files     *promiseFiles // nil: everything fits into memory
}

// promise is the acknowledgement of one single notification or of one fan-out.
type promise struct {
	dueMoment        // due times of its messages
	count     uint32 // receivers of the fan-out; 0: a single notification
	rejected  uint32
	came      uint32
	ledgers   uint64 // bit i is set if messages of the promise arrived at ledger i
}

// complete reports whether all messages of the promise that the server accepted have arrived.
func (p *promise) complete() bool { return p.came >= max(p.count, 1)-p.rejected }

// dueMoment says when a message was due to be sent. For a scheduled message it also says when the
// message was due to be delivered.
type dueMoment struct {
	intended    time.Duration // since the run's start
	scheduledAt int64         // ns since 1970; 0: not scheduled
	step        *stepRun
}

type otherPromise struct {
	id string
	dueMoment
}

// arrival says that n messages of a base arrived at a ledger for the first time.
type arrival struct {
	base   notify.Base
	at     int64 // ns since 1970
	n      uint32
	ledger uint8
}

const (
	promiseMemory = 128 << 20
	promiseBytes  = 128 // memory of a promise in a map; an arrival needs about as much
	joinAtOnce    = 1000
)

func (p *promises) addAck(s *stepRun, r *Request, a *Ack) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.Count > 0 {
		p.messages += int64(a.Count - a.Rejected)
	} else {
		p.messages += int64(a.Accepted)
	}
	if !p.keepIDs {
		return
	}
	d := dueMoment{intended: r.Intended, step: s}
	if at, later := s.data.scheduledTime(uint64(r.N), r.Intended); later || r.kind == kindTrigger {
		d.scheduledAt = at.UnixNano()
	}
	if a.Count > 0 {
		p.addPromise(a.Base, promise{dueMoment: d, count: uint32(a.Count), rejected: uint32(a.Rejected)})
		return
	}
	for _, id := range a.IDs {
		if n, err := notify.ParseID(id); err == nil && !n.FanOut {
			p.addPromise(n.Base, promise{dueMoment: d})
		} else {
			p.others = append(p.others, otherPromise{id, d})
		}
	}
}

// addPromise adds one promise. The caller holds mu.
func (p *promises) addPromise(b notify.Base, one promise) {
	if p.open == nil {
		p.open = map[notify.Base]promise{}
	}
	p.open[b] = one
	if _, ok := p.early[b]; ok {
		p.promisedEarly = append(p.promisedEarly, b)
	}
}

func (p *promises) total() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.messages
}

// otherIDs returns at most limit ids of promised triggers, the oldest promises first.
func (p *promises) otherIDs(limit int) (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range min(len(p.others), limit) {
		ids = append(ids, p.others[i].id)
	}
	return ids
}

// join matches arrivals at a ledger, in their order, with their promises. It calls f for each
// arrival that has a promise. It keeps the other arrivals until their promises are added. If the
// promises and arrivals need too much memory, join moves all of them to files, so it may return
// an error of the disk.
func (p *promises) join(list []arrival, f onArrival) error {
	p.joining.Lock()
	defer p.joining.Unlock()
	for len(list) > 0 || p.nonEmpty(&p.promisedEarly) {
		n := min(len(list), joinAtOnce) // match few arrivals at a time, because workers wait for mu
		p.joinSome(list[:n], f)
		list = list[n:]
	}
	p.mu.Lock()
	full := (len(p.open)+p.earlyCount)*promiseBytes > cmp.Or(p.memory, promiseMemory)
	p.mu.Unlock()
	if full {
		return p.moveToFiles()
	}
	return nil
}

func (p *promises) nonEmpty(list *[]notify.Base) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(*list) > 0
}

func (p *promises) joinSome(list []arrival, f onArrival) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.promisedEarly
	p.promisedEarly = nil
	for _, b := range known {
		for _, a := range p.early[b] {
			p.earlyCount--
			p.match(p.open, &a, f)
		}
		delete(p.early, b)
	}
	for i := range list {
		a := &list[i]
		if !p.match(p.open, a, f) {
			if p.early == nil {
				p.early = map[notify.Base][]arrival{}
			}
			p.early[a.base] = append(p.early[a.base], *a)
			p.earlyCount++
		}
	}
}

// match adds an arrival to its promise in the map open. It returns false if the map does not
// contain the promise. The caller holds the lock joining.
func (p *promises) match(open map[notify.Base]promise, a *arrival, f onArrival) bool {
	one, ok := open[a.base]
	if !ok {
		return false
	}
	one.ledgers |= 1 << a.ledger
	if one.count == 0 && one.came > 0 { // the message arrived at another ledger before
		p.repeated++
		if len(p.examples) < 10 {
			p.examples = append(p.examples, notify.ID{Base: a.base}.String())
		}
		open[a.base] = one
		return true
	}
	one.came += a.n
	p.delivered += int64(a.n)
	f(&one.dueMoment, time.Unix(0, a.at), int64(a.n))
	// If there are several ledgers, keep the promise: its message may also arrive at another
	// ledger.
	if p.shards < 2 && one.complete() {
		delete(open, a.base)
		return true
	}
	open[a.base] = one
	return true
}

// countJoined returns how many promised messages have arrived. The result repeated is the number of
// single messages that arrived at a second ledger. The result examples holds ids of some of these
// messages.
func (p *promises) countJoined() (delivered, repeated int64, examples []string) {
	p.joining.Lock()
	defer p.joining.Unlock()
	return p.delivered, p.repeated, slices.Clone(p.examples)
}

// eachUnfinished calls f with each promise that still misses messages, until f returns false. It
// also calls f with each fan-out that arrived at several ledgers, because some of its messages may
// have arrived twice. The caller must call joinFiles first.
func (p *promises) eachUnfinished(f func(b notify.Base, one *promise) bool) error {
	p.joining.Lock()
	defer p.joining.Unlock()
	p.mu.Lock()
	list := maps.Clone(p.open)
	p.mu.Unlock()
	for _, b := range slices.SortedFunc(maps.Keys(list), func(a, b notify.Base) int { return slices.Compare(a[:], b[:]) }) {
		one := list[b]
		if (!one.complete() || one.cameAtSeveral()) && !f(b, &one) {
			return nil
		}
	}
	if p.files == nil {
		return nil
	}
	return p.files.eachPromise(func(b notify.Base, one *promise) bool {
		return one.complete() && !one.cameAtSeveral() || f(b, one)
	})
}

// cameAtSeveral reports whether messages of a fan-out arrived at several ledgers.
func (p *promise) cameAtSeveral() bool { return p.count > 0 && p.ledgers&(p.ledgers-1) != 0 }
