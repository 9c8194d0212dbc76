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

// Times of the heartbeats of processes that share a limit.
const (
	peerBeat = time.Second
	peerTTL  = 10 * time.Second
)

// Peers lists the processes that do the same work as this process. They share one limit. A new
// process counts at once. A process that disappears still counts for peerTTL. So if all data of
// Redis is lost, no process uses the whole limit.
type Peers struct {
	beats engine.Heartbeats
	group string
	self  string

	// version is the group's version from the last read. Only one goroutine at a time uses it:
	// first the goroutine of DelayStart, and then the goroutine of Run, which DelayStart starts.
	version int64

	mu       sync.Mutex           // guards the fields below
	alive    []string             // result of the last read
	gone     map[string]time.Time // by name: when a disappeared process was last seen; monotonic
	lastRead time.Time            // when the last successful read was made
	names    []string             // alive, gone and self, sorted
}

// NewPeers returns the Peers of a group for this process, whose name is self. Before DelayStart or
// Run, the list contains only this process.
func NewPeers(beats engine.Heartbeats, group, self string) *Peers {
	return &Peers{beats: beats, group: group, self: self, gone: map[string]time.Time{}, names: []string{self}}
}

// Run sends a heartbeat and reads the group every peerBeat until ctx ends. Then it leaves the
// group.
func (p *Peers) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		_ = p.beatAndRead(ctx) // while Redis is unreachable, the names do not change
		notify.Sleep(ctx, peerBeat)
	}
	call, stop := context.WithTimeout(context.WithoutCancel(ctx), peerBeat)
	defer stop()
	_ = p.beats.Leave(call, p.group, p.self) // if this fails, the heartbeat expires
	return nil
}

// beatAndRead sends one heartbeat, and reads the members of the group if they have changed.
func (p *Peers) beatAndRead(ctx context.Context) error {
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
	p.update(members, version != p.version, time.Now())
	p.version = version
	return nil
}

// update applies the result of a read at the time now. If changed is true, the parameter members
// contains the processes that are alive. If changed is false, the same processes are alive as
// before, and members is not used.
func (p *Peers) update(members []engine.Heartbeat, changed bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.lastRead
	// While Redis was unreachable, this process could see no other process. So each disappeared
	// process counts for peerTTL from now on.
	if now.Sub(last) > 3*peerBeat {
		last = now
		for owner := range p.gone {
			p.gone[owner] = now
		}
	}
	p.lastRead = now
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

// hasOthers reports whether there is another process in the group.
func (p *Peers) hasOthers() bool { return len(p.Names()) > 1 }

// Share returns this process's part of a limit. The parts of all processes add up to the limit. If
// the limit is less than the number of processes, each process gets 1.
func (p *Peers) Share(limit int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	part := limit / len(p.names)
	if at, _ := slices.BinarySearch(p.names, p.self); at < limit%len(p.names) {
		part++
	}
	return max(part, 1)
}

// DelayStart wraps the function run, which uses a share of a limit. If there are other processes,
// DelayStart waits before it calls run: first every other process must see this process, and the
// calls that the other processes began with their larger shares must end. The parameter longestCall
// is the longest time of a call. Without other processes, DelayStart calls run at once.
func (p *Peers) DelayStart(longestCall time.Duration, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for p.beatAndRead(ctx) != nil && ctx.Err() == nil {
			notify.Sleep(ctx, peerBeat)
		}
		beating := make(chan struct{})
		on, stop := context.WithCancel(context.WithoutCancel(ctx))
		go func() { defer close(beating); _ = p.Run(on) }()
		defer func() { stop(); <-beating }()
		if p.hasOthers() {
			notify.Sleep(ctx, longestCall+3*peerBeat)
		}
		if ctx.Err() != nil {
			return nil
		}
		return run(ctx)
	}
}

// Names returns the processes of the group, including this process, sorted.
func (p *Peers) Names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.names)
}
