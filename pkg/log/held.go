package log

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/pkg/notify"
)

// membership is what a member knows of its place in the group. The broker gives a
// member's partitions to others once it has heard nothing of the member for the
// session timeout. So the partitions are surely held until that long after the
// last heartbeat that the broker answered was sent.
type membership struct {
	limit time.Duration // somewhat below the session timeout, for clocks run apart
	last  atomic.Pointer[confirmation]
}

type confirmation struct {
	sent time.Time
	next chan struct{} // closed by the next one
}

type membershipKey struct{}

// WithHeld returns a context for which Held asks held every 50 ms, in place of a
// group: for tests.
func WithHeld(ctx context.Context, held func() bool) context.Context {
	return context.WithValue(ctx, membershipKey{}, held)
}

func newMembership(session time.Duration) *membership {
	m := &membership{limit: session * 9 / 10}
	m.last.Store(&confirmation{next: make(chan struct{})})
	return m
}

// holds reports whether no other member can have the partitions now. It believes
// the clock that says more: the monotonic one may stand while a machine is
// suspended, the wall clock may be set.
func (c *confirmation) holds(limit time.Duration, now time.Time) bool {
	return !c.sent.IsZero() && now.Sub(c.sent) < limit && now.Round(0).Sub(c.sent.Round(0)) < limit
}

func (m *membership) confirm(sent time.Time) {
	old := m.last.Swap(&confirmation{sent: sent, next: make(chan struct{})})
	close(old.next)
}

// Held waits until the partition whose Assigned was given ctx, or a parent of it,
// is surely this member's, and returns nil, or ctx's error once ctx has ended. When
// it returns nil, no other member was given the partition before the call.
// A process that was paused, or cut off, for longer than the session timeout waits
// here until the group has answered it or taken the partition away. For a context
// that no group made, and over a log of this process, it looks at ctx alone.
func Held(ctx context.Context) error {
	if held, ok := ctx.Value(membershipKey{}).(func() bool); ok {
		for !held() && ctx.Err() == nil {
			time.Sleep(50 * time.Millisecond)
		}
		return ctx.Err()
	}
	m, _ := ctx.Value(membershipKey{}).(*membership)
	for m != nil {
		c := m.last.Load()
		if c.holds(m.limit, time.Now()) {
			break
		}
		select {
		case <-c.next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err() // a context that has not ended had not when holds was asked
}

// confirmEvery asks the group's coordinator whether the member is in the group,
// until ctx ends. The client's own heartbeats do not tell what came of them.
func (g *Group) confirmEvery(ctx context.Context, cl *kgo.Client, m *membership) {
	every := min(time.Second, g.cfg.SessionTimeout/4)
	for {
		wait := every
		if !g.confirm(ctx, cl, m) && !m.last.Load().holds(m.limit, time.Now()) {
			wait = min(100*time.Millisecond, every)
		}
		if !notify.Sleep(ctx, wait) {
			return
		}
	}
}

func (g *Group) confirm(ctx context.Context, cl *kgo.Client, m *membership) bool {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group = g.cfg.Conn.wire(g.cfg.Group)
	if req.MemberID, req.Generation = cl.GroupMetadata(); req.MemberID == "" || req.Generation < 0 {
		return false
	}
	ctx, stop := context.WithTimeout(ctx, g.cfg.SessionTimeout/3)
	defer stop()
	sent := time.Now()
	resp, err := req.RequestWith(ctx, cl)
	// A rebalance under way confirms nothing: the group drops a member that joins late.
	if err != nil || kerr.ErrorForCode(resp.ErrorCode) != nil {
		return false
	}
	m.confirm(sent)
	return true
}
