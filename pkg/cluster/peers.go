package cluster

import (
	"context"
	"maps"
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

	version int64 // of the group, as of the last look; of the goroutine that looks: After's, then Run's

	mu       sync.Mutex
	alive    []string             // as of the last look
	gone     map[string]time.Time // not among alive any more, and when each was last; monotonic
	answered time.Time            // of the last look
	names    []string             // alive, gone and self, in order
}

// NewPeers returns the peers of a group as self sees them; it knows nobody before After
// or Run.
func NewPeers(beats engine.Heartbeats, group, self string) *Peers {
	return &Peers{beats: beats, group: group, self: self, gone: map[string]time.Time{}, names: []string{self}}
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
	var members []engine.Heartbeat
	if err == nil && version != p.version {
		members, version, err = p.beats.Alive(call, p.group, p.version)
	}
	if err != nil {
		return err
	}
	p.note(members, version != p.version, time.Now())
	p.version = version
	return nil
}

// note notes a look at now: if changed, members are those that are alive, else they are
// those of the look before.
func (p *Peers) note(members []engine.Heartbeat, changed bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.answered
	if now.Sub(last) > 3*peerBeat { // none could be seen meanwhile
		last = now
		for owner := range p.gone {
			p.gone[owner] = now
		}
	}
	p.answered = now
	if changed {
		for _, owner := range p.alive {
			p.gone[owner] = last
		}
		p.alive = nil
		for _, h := range members {
			p.alive = append(p.alive, h.Owner)
			delete(p.gone, h.Owner)
		}
	}
	for owner, at := range p.gone {
		if now.Sub(at) > peerTTL {
			delete(p.gone, owner)
			changed = true
		}
	}
	if changed {
		p.names = slices.AppendSeq(append([]string{p.self}, p.alive...), maps.Keys(p.gone))
		slices.Sort(p.names)
		p.names = slices.Compact(p.names)
	}
}

// others reports whether another process does the same.
func (p *Peers) others() bool { return len(p.Names()) > 1 }

// Share is this process's part of a limit: those of all add up to it, as long as
// it is not below their number.
func (p *Peers) Share(limit int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	part := limit / len(p.names)
	if at, _ := slices.BinarySearch(p.names, p.self); at < limit%len(p.names) {
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
	return slices.Clone(p.names)
}
