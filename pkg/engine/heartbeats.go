package engine

import (
	"context"
	"time"
)

// Heartbeat is one live member of a group.
type Heartbeat struct {
	Owner string
	Value string        // of the member's last beat
	Age   time.Duration // since the member's last beat
}

// Heartbeats lists the live members of a group, so that they can share work. It is no proof
// of ownership: leases and terms decide which member may do what.
//
// A group has a version above 0. The version changes whenever a member joins, leaves,
// expires or changes its value, and no version is used twice. So members read the list only
// after a change, and the cost of a group without changes grows with the number of its
// members, not with its square.
type Heartbeats interface {
	// Beat makes owner a member of group for ttl from now, with value. It returns the
	// version of the group.
	Beat(ctx context.Context, group, owner, value string, ttl time.Duration) (version int64, err error)
	// Alive returns the members of group, ordered by owner, and its version. known is a
	// version returned earlier. If the group still has that version, Alive returns no
	// members.
	Alive(ctx context.Context, group string, known int64) (members []Heartbeat, version int64, err error)
	// Leave ends owner's membership before its ttl is over. It changes nothing if owner is
	// not a member.
	Leave(ctx context.Context, group, owner string) error
}
