package cluster

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Heartbeats of processes that divide a limit among themselves.
const (
	peerBeat = time.Second
	peerTTL  = 10 * time.Second
)

// Peers knows which processes do the same as this one, so that a limit that is
// meant for all of them together can be divided. A newcomer counts at once; one
// that is gone only after peerTTL of looks without it, so that an emptied Redis
// gives nobody the whole limit.
type Peers struct {
	beats engine.Heartbeats
	group string
	self  string

	// The last look's, of the goroutine that looks: Run's, and After's before that.
	version int64
	alive   []engine.Heartbeat

	mu       sync.Mutex
	seen     map[string]time.Time // when each was last alive; monotonic
	answered time.Time            // of the last look
}

// NewPeers returns the peers of a group as self sees them; it knows nobody before After
// or Run.
func NewPeers(beats engine.Heartbeats, group, self string) *Peers {
	return &Peers{beats: beats, group: group, self: self, seen: map[string]time.Time{}}
}

// Run beats and looks until ctx ends.
func (p *Peers) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		_ = p.look(ctx) // while nobody answers, what was known stays
		notify.Sleep(ctx, peerBeat)
	}
	call, stop := context.WithTimeout(context.WithoutCancel(ctx), peerBeat)
	defer stop()
	_ = p.beats.Leave(call, p.group, p.self) // else its time runs out
	return nil
}

// look beats once and notes who is there.
func (p *Peers) look(ctx context.Context) error {
	call, stop := context.WithTimeout(ctx, peerBeat)
	defer stop()
	version, err := p.beats.Beat(call, p.group, p.self, "", peerTTL)
	if err == nil && version != p.version {
		var alive []engine.Heartbeat
		if alive, version, err = p.beats.Alive(call, p.group, 0); err == nil {
			p.alive, p.version = alive, version
		}
	}
	if err == nil {
		p.note(p.alive, time.Now())
	}
	return err
}

func (p *Peers) note(alive []engine.Heartbeat, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.answered) > 3*peerBeat { // nobody could be seen meanwhile
		for owner := range p.seen {
			p.seen[owner] = now
		}
	}
	p.answered = now
	for _, h := range alive {
		p.seen[h.Owner] = now
	}
	for owner, at := range p.seen {
		if now.Sub(at) > peerTTL {
			delete(p.seen, owner)
		}
	}
}

// others reports whether another process does the same.
func (p *Peers) others() bool { return len(p.Names()) > 1 }

// Share is this process's part of a limit: those of all add up to it, as long as
// it is not below their number.
func (p *Peers) Share(limit int) int {
	names := p.Names()
	part := limit / len(names)
	if slices.Index(names, p.self) < limit%len(names) {
		part++
	}
	return max(part, 1)
}

// After runs a part that uses shares: beside others only once they all have seen
// this process and what they began before has ended, which takes a call's
// longest time. A process that is alone begins at once.
func (p *Peers) After(calls time.Duration, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for p.look(ctx) != nil && ctx.Err() == nil {
			notify.Sleep(ctx, peerBeat)
		}
		beating := make(chan struct{})
		on, stop := context.WithCancel(context.WithoutCancel(ctx))
		go func() { defer close(beating); _ = p.Run(on) }()
		defer func() { stop(); <-beating }()
		if p.others() {
			notify.Sleep(ctx, calls+3*peerBeat)
		}
		if ctx.Err() != nil {
			return nil
		}
		return run(ctx)
	}
}

// Names are those that are there, this process among them, in order.
func (p *Peers) Names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []string{p.self}
	for owner := range p.seen {
		if owner != p.self {
			out = append(out, owner)
		}
	}
	slices.Sort(out)
	return out
}
