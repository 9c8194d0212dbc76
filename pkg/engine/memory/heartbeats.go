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
	mu    sync.Mutex
	beats map[member]beat
}

type member struct{ group, owner string }

type beat struct{ at, until time.Time }

// NewHeartbeats returns groups without members.
func NewHeartbeats() *Heartbeats { return &Heartbeats{beats: map[member]beat{}} }

func (h *Heartbeats) Beat(ctx context.Context, group, owner string, ttl time.Duration) error {
	if err := check(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.beats[member{group, owner}] = beat{now, now.Add(ttl)}
	return nil
}

func (h *Heartbeats) Alive(ctx context.Context, group string) ([]engine.Heartbeat, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	var out []engine.Heartbeat
	for m, b := range h.beats {
		switch {
		case !now.Before(b.until):
			delete(h.beats, m)
		case m.group == group:
			out = append(out, engine.Heartbeat{Owner: m.owner, Age: now.Sub(b.at)})
		}
	}
	slices.SortFunc(out, func(a, b engine.Heartbeat) int { return cmp.Compare(a.Owner, b.Owner) })
	return out, nil
}

func (h *Heartbeats) Leave(ctx context.Context, group, owner string) error {
	if err := check(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.beats, member{group, owner})
	return nil
}
