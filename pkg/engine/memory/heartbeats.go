package memory

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Heartbeats stores the members of groups in one process. It uses the monotonic clock.
type Heartbeats struct {
	mu     sync.Mutex // guards groups and their fields
	groups map[string]*group
}

type group struct {
	version     int64
	beats       map[string]beat // by owner
	nextCleanup time.Time       // no member expires before this time; then groupLocked checks all members
}

type beat struct {
	value          string
	beatAt, expiry time.Time
}

// NewHeartbeats returns Heartbeats without members.
func NewHeartbeats() *Heartbeats { return &Heartbeats{groups: map[string]*group{}} }

// groupLocked removes the expired members of a group and returns the group. mu must be held.
func (h *Heartbeats) groupLocked(name string, now time.Time) *group {
	g := h.groups[name]
	if g == nil {
		g = &group{version: 1, beats: map[string]beat{}, nextCleanup: now}
		h.groups[name] = g
	}
	if now.Before(g.nextCleanup) {
		return g
	}
	g.nextCleanup = now.Add(time.Hour)
	for owner, b := range g.beats {
		if now.Before(b.expiry) {
			g.nextCleanup = earlier(g.nextCleanup, b.expiry)
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
	if err := checkContext(ctx); err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	g := h.groupLocked(group, now)
	if was, is := g.beats[owner]; !is || was.value != value {
		g.version++
	}
	g.beats[owner] = beat{value, now, now.Add(ttl)}
	g.nextCleanup = earlier(g.nextCleanup, now.Add(ttl))
	return g.version, nil
}

func (h *Heartbeats) Alive(ctx context.Context, group string, knownVersion int64) (out []engine.Heartbeat, version int64, err error) {
	if err := checkContext(ctx); err != nil {
		return nil, 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	g := h.groupLocked(group, now)
	if g.version == knownVersion {
		return nil, knownVersion, nil
	}
	for owner, b := range g.beats {
		out = append(out, engine.Heartbeat{Owner: owner, Value: b.value, Age: now.Sub(b.beatAt)})
	}
	slices.SortFunc(out, func(a, b engine.Heartbeat) int { return cmp.Compare(a.Owner, b.Owner) })
	return out, g.version, nil
}

func (h *Heartbeats) Leave(ctx context.Context, group, owner string) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.groupLocked(group, time.Now())
	if _, is := g.beats[owner]; is {
		delete(g.beats, owner)
		g.version++
	}
	return nil
}
