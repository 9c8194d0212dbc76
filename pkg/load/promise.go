package load

import (
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// promises remembers what was acknowledged, to ask for it in the end: 32 bytes a
// single message, 64 a fan-out.
type promises struct {
	keep bool // somebody will ask

	mu      sync.Mutex
	n       int64 // messages
	singles []promise
	fans    []promise
	others  []otherPromise       // triggers
	byBase  map[notify.Base]*due // of those not joined yet, where deliveries are watched
	watch   bool
}

// promise is a single notification or a fan-out.
type promise struct {
	base     notify.Base
	due             // of it
	count    uint32 // receivers; 0: a single
	rejected uint32
}

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
		p.fans = append(p.fans, promise{base: a.Base, due: d, count: uint32(a.Count), rejected: uint32(a.Rejected)})
		p.note(a.Base, d)
		return
	}
	for _, id := range a.IDs {
		if n, err := notify.ParseID(id); err == nil && !n.Fan {
			p.singles = append(p.singles, promise{base: n.Base, due: d})
			p.note(n.Base, d)
		} else {
			p.others = append(p.others, otherPromise{id, d})
		}
	}
}

func (p *promises) note(b notify.Base, d due) {
	if p.watch {
		p.byBase[b] = &d
	}
}

func (p *promises) total() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}
