package engine

import (
	"context"
	"time"
)

// Heartbeat is a sign of life of one member of a group.
type Heartbeat struct {
	Owner string
	Age   time.Duration // since its last beat
}

// Heartbeats says who is there, so that members of a group can share work. It
// decides nothing: who may do what is for leases and terms.
type Heartbeats interface {
	// Beat says that owner is alive; it is a member of group for ttl from now.
	Beat(ctx context.Context, group, owner string, ttl time.Duration) error
	// Alive returns the members of group, ordered by owner.
	Alive(ctx context.Context, group string) ([]Heartbeat, error)
	// Leave ends owner's membership before its ttl is over. Leaving a group one
	// is not in changes nothing.
	Leave(ctx context.Context, group, owner string) error
}
