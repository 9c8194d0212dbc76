package load

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// promises remembers what was acknowledged, and joins it with what came: each end-to-end
// time is that of a promise and an arrival. What has come in full is forgotten. What
// there is no room for in memory is in files (promisefiles.go) and joined in the end, a
// part after the other.
type promises struct {
	keep   bool // somebody will ask
	memory int  // bytes; 0: promiseMemory
	shards int  // ledgers that arrivals come from; 0: one

	mu     sync.Mutex
	n      int64 // messages
	open   map[notify.Base]promise
	others []otherPromise // triggers
	early  map[notify.Base][]arrival
	wait   int           // arrivals in early
	known  []notify.Base // of early, promised since

	joining   sync.Mutex // held by join, joinFiles and unfinished; taken before mu
	delivered int64
	repeated  int64 // singles that came at two ledgers
	examples  []string
	files     *promiseFiles // nil: all fits in memory
}

// promise is a single notification or a fan-out.
type promise struct {
	due             // of it
	count    uint32 // receivers; 0: a single
	rejected uint32
	came     uint32
	from     uint64 // a bit for each ledger at which it came
}

// complete reports whether all of it came.
func (p *promise) complete() bool { return p.came >= max(p.count, 1)-p.rejected }

// due says when a message was to be sent, and when it was for.
type due struct {
	intended time.Duration // since the run's start
	at       int64         // ns since 1970, of what was for later; 0: for at once
	step     *stepRun
}

type otherPromise struct {
	id string
	due
}

// arrival says that so many of a base came for the first time at a ledger.
type arrival struct {
	base notify.Base
	at   int64 // ns since 1970
	n    uint32
	from uint8
}

const (
	promiseMemory = 128 << 20
	promiseBytes  = 128 // of memory, of one in a map; about as many of an arrival
	joinAtOnce    = 1000
)

func (p *promises) add(s *stepRun, r *Request, a *Ack) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.Count > 0 {
		p.n += int64(a.Count - a.Rejected)
	} else {
		p.n += int64(a.Accepted)
	}
	if !p.keep {
		return
	}
	d := due{intended: r.Intended, step: s}
	if at, later := s.data.later(uint64(r.N), r.Intended); later || r.kind == kindTrigger {
		d.at = at.UnixNano()
	}
	if a.Count > 0 {
		p.promise(a.Base, promise{due: d, count: uint32(a.Count), rejected: uint32(a.Rejected)})
		return
	}
	for _, id := range a.IDs {
		if n, err := notify.ParseID(id); err == nil && !n.Fan {
			p.promise(n.Base, promise{due: d})
		} else {
			p.others = append(p.others, otherPromise{id, d})
		}
	}
}

// promise remembers one. The lock is held.
func (p *promises) promise(b notify.Base, one promise) {
	if p.open == nil {
		p.open = map[notify.Base]promise{}
	}
	p.open[b] = one
	if _, ok := p.early[b]; ok {
		p.known = append(p.known, b)
	}
}

func (p *promises) total() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

// otherIDs names the first triggers.
func (p *promises) otherIDs(most int) (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range min(len(p.others), most) {
		ids = append(ids, p.others[i].id)
	}
	return ids
}

// join takes what came at a ledger, in its order, and calls f for what was promised.
func (p *promises) join(list []arrival, f took) error {
	p.joining.Lock()
	defer p.joining.Unlock()
	for len(list) > 0 || p.has(&p.known) {
		n := min(len(list), joinAtOnce) // workers wait for mu
		p.joinSome(list[:n], f)
		list = list[n:]
	}
	p.mu.Lock()
	full := (len(p.open)+p.wait)*promiseBytes > cmp.Or(p.memory, promiseMemory)
	p.mu.Unlock()
	if full {
		return p.toFiles()
	}
	return nil
}

func (p *promises) has(list *[]notify.Base) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(*list) > 0
}

func (p *promises) joinSome(list []arrival, f took) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known
	p.known = nil
	for _, b := range known {
		for _, a := range p.early[b] {
			p.wait--
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
			p.wait++
		}
	}
}

// match gives an arrival to its promise, if that is among open. joining is held.
func (p *promises) match(open map[notify.Base]promise, a *arrival, f took) bool {
	one, ok := open[a.base]
	if !ok {
		return false
	}
	one.from |= 1 << a.from
	if one.count == 0 && one.came > 0 { // at another ledger
		p.repeated++
		if len(p.examples) < 10 {
			p.examples = append(p.examples, notify.ID{Base: a.base}.String())
		}
		open[a.base] = one
		return true
	}
	one.came += a.n
	p.delivered += int64(a.n)
	f(&one.due, time.Unix(0, a.at), int64(a.n))
	if p.shards < 2 && one.complete() { // with more, it may come once more
		delete(open, a.base)
		return true
	}
	open[a.base] = one
	return true
}

// joined returns how many messages came of what was promised, and of singles how many
// came at a second ledger, with examples.
func (p *promises) joined() (delivered, repeated int64, examples []string) {
	p.joining.Lock()
	defer p.joining.Unlock()
	return p.delivered, p.repeated, slices.Clone(p.examples)
}

// unfinished calls f with each promise that has not come whole, until f returns false. A
// promise that came at several ledgers is one of them. Call it after joinFiles.
func (p *promises) unfinished(f func(b notify.Base, one *promise) bool) error {
	p.joining.Lock()
	defer p.joining.Unlock()
	p.mu.Lock()
	list := maps.Clone(p.open)
	p.mu.Unlock()
	for _, b := range slices.SortedFunc(maps.Keys(list), func(a, b notify.Base) int { return slices.Compare(a[:], b[:]) }) {
		one := list[b]
		if (!one.complete() || one.several()) && !f(b, &one) {
			return nil
		}
	}
	if p.files == nil {
		return nil
	}
	return p.files.promises(func(b notify.Base, one *promise) bool {
		return one.complete() && !one.several() || f(b, one)
	})
}

// several reports whether parts of a fan-out came at several ledgers.
func (p *promise) several() bool { return p.count > 0 && p.from&(p.from-1) != 0 }
