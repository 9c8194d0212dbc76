package engine

import (
	"context"
	"time"
)

// Heartbeat is a sign of life of one member of a group.
type Heartbeat struct {
	Owner string
	Value string        // that its last beat gave
	Age   time.Duration // since its last beat
}

// Heartbeats says who is there, so that members of a group can share work. It
// decides nothing: who may do what is for leases and terms.
//
// A group has a version above 0. It is another one after each time that a member joined,
// left, ran out of time or changed its value, and no version comes again. So members read
// the others only when something has changed, and what a group at rest costs grows with its
// members, not with their square.
type Heartbeats interface {
	// Beat says that owner is alive; it is a member of group for ttl from now, with a value.
	// It returns the version of the group.
	Beat(ctx context.Context, group, owner, value string, ttl time.Duration) (version int64, err error)
	// Alive returns the members of group, ordered by owner, and its version. While known, a
	// version returned earlier, is still the version, it returns no members.
	Alive(ctx context.Context, group string, known int64) (members []Heartbeat, version int64, err error)
	// Leave ends owner's membership before its ttl is over. Leaving a group one
	// is not in changes nothing.
	Leave(ctx context.Context, group, owner string) error
}
