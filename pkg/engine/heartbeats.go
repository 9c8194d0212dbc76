package engine

import (
	"context"
	"time"
)

// Heartbeat is one live member of a group.
type Heartbeat struct {
	Owner string
	Value string        // the value of the member's last Beat
	Age   time.Duration // time since the member's last Beat
}

// Heartbeats lists the live members of a group, so that the members can divide work among them.
// Membership does not prove that a member owns anything: leases and terms decide which member may
// do which work.
//
// A group has a version greater than 0. The version changes whenever a member joins, leaves,
// expires or changes its value, and no version is used twice. So a member reads the list only
// after the version has changed. While nothing changes, each member only sends its Beats, and the
// cost of a member does not grow with the size of the group.
type Heartbeats interface {
	// Beat makes owner a member of group for ttl from now, with value. It returns the
	// version of the group.
	Beat(ctx context.Context, group, owner, value string, ttl time.Duration) (version int64, err error)
	// Alive returns the members of group, ordered by owner, and the version of the group.
	// knownVersion is a version that an earlier call returned. If the group still has this
	// version, Alive returns no members.
	Alive(ctx context.Context, group string, knownVersion int64) (members []Heartbeat, version int64, err error)
	// Leave ends the membership of owner before its ttl is over. It changes nothing if
	// owner is not a member.
	Leave(ctx context.Context, group, owner string) error
}
