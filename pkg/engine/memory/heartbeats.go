package memory

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Heartbeats keeps signs of life of one process, on the monotonic clock.
type Heartbeats struct {
	mu     sync.Mutex
	groups map[string]*group
}

type group struct {
	version int64
	beats   map[string]beat // by owner
	expires time.Time       // no member's time is over before
}

type beat struct {
	value     string
	at, until time.Time
}

// NewHeartbeats returns groups without members.
func NewHeartbeats() *Heartbeats { return &Heartbeats{groups: map[string]*group{}} }

// settleLocked returns a group after it has removed the members whose time is over.
func (h *Heartbeats) settleLocked(name string, now time.Time) *group {
	g := h.groups[name]
	if g == nil {
		g = &group{version: 1, beats: map[string]beat{}, expires: now}
		h.groups[name] = g
	}
	if now.Before(g.expires) {
		return g
	}
	g.expires = now.Add(time.Hour)
	for owner, b := range g.beats {
		if now.Before(b.until) {
			g.expires = earlier(g.expires, b.until)
		} else {
			delete(g.beats, owner)
			g.version++
		}
	}
	return g
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (h *Heartbeats) Beat(ctx context.Context, group, owner, value string, ttl time.Duration) (int64, error) {
	if err := check(ctx); err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	g := h.settleLocked(group, now)
	if was, is := g.beats[owner]; !is || was.value != value {
		g.version++
	}
	g.beats[owner] = beat{value, now, now.Add(ttl)}
	g.expires = earlier(g.expires, now.Add(ttl))
	return g.version, nil
}

func (h *Heartbeats) Alive(ctx context.Context, group string, known int64) (out []engine.Heartbeat, version int64, err error) {
	if err := check(ctx); err != nil {
		return nil, 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	g := h.settleLocked(group, now)
	if g.version == known {
		return nil, known, nil
	}
	for owner, b := range g.beats {
		out = append(out, engine.Heartbeat{Owner: owner, Value: b.value, Age: now.Sub(b.at)})
	}
	slices.SortFunc(out, func(a, b engine.Heartbeat) int { return cmp.Compare(a.Owner, b.Owner) })
	return out, g.version, nil
}

func (h *Heartbeats) Leave(ctx context.Context, group, owner string) error {
	if err := check(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.settleLocked(group, time.Now())
	if _, is := g.beats[owner]; is {
		delete(g.beats, owner)
		g.version++
	}
	return nil
}
