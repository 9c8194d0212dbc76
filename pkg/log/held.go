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

// membership keeps the last heartbeat of this member that the broker answered. If the broker gets
// no heartbeat from a member for the session timeout, it gives the member's partitions to other
// members. So if a heartbeat was answered, the member certainly owns its partitions for the session
// timeout after it sent the heartbeat.
type membership struct {
	limit time.Duration // somewhat shorter than the session timeout, because clocks drift
	last  atomic.Pointer[confirmation]
}

// confirmation is a heartbeat that the broker has answered.
type confirmation struct {
	sent time.Time
	next chan struct{} // closed when a newer confirmation replaces this confirmation
}

type membershipKey struct{}

// WithHeld returns a context for tests. With this context, AwaitOwnership does not ask a group. It
// calls isOwner every 50 ms until isOwner returns true.
func WithHeld(ctx context.Context, isOwner func() bool) context.Context {
	return context.WithValue(ctx, membershipKey{}, isOwner)
}

func newMembership(session time.Duration) *membership {
	m := &membership{limit: session * 9 / 10}
	m.last.Store(&confirmation{next: make(chan struct{})})
	return m
}

// provesOwnership returns true if no other member can own the partitions at the given time. It
// measures the elapsed time with both clocks and uses the longer time: the monotonic clock may stop
// while the machine is suspended, and the wall clock may be set back.
func (c *confirmation) provesOwnership(limit time.Duration, now time.Time) bool {
	return !c.sent.IsZero() && now.Sub(c.sent) < limit && now.Round(0).Sub(c.sent.Round(0)) < limit
}

func (m *membership) confirm(sent time.Time) {
	old := m.last.Swap(&confirmation{sent: sent, next: make(chan struct{})})
	close(old.next)
}

// AwaitOwnership waits until this member certainly owns its partition. ctx must be the context that
// Handler.Assigned got, or a context derived from it. AwaitOwnership returns nil if no other member
// was given the partition before the call. If ctx has ended, it returns ctx's error.
//
// A process may have been paused or disconnected for longer than the session timeout. Its
// AwaitOwnership then waits until the group answers a heartbeat, or until the partition is taken
// from the process. If ctx does not come from a group, or if the log is embedded, AwaitOwnership
// only checks ctx.
func AwaitOwnership(ctx context.Context) error {
	if held, ok := ctx.Value(membershipKey{}).(func() bool); ok {
		for !held() && ctx.Err() == nil {
			time.Sleep(50 * time.Millisecond)
		}
		return ctx.Err()
	}
	m, _ := ctx.Value(membershipKey{}).(*membership)
	for m != nil {
		c := m.last.Load()
		if c.provesOwnership(m.limit, time.Now()) {
			break
		}
		select {
		case <-c.next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err() // checked last: if ctx has not ended now, it had not ended while provesOwnership ran
}

// confirmEvery sends heartbeats to the group's coordinator until ctx ends, and notes in m when it
// sent the last heartbeat that was answered. The client also sends heartbeats, but it does not
// report their results.
func (g *Group) confirmEvery(ctx context.Context, cl *kgo.Client, m *membership) {
	every := min(time.Second, g.cfg.SessionTimeout/4)
	for {
		wait := every
		if !g.confirm(ctx, cl, m) && !m.last.Load().provesOwnership(m.limit, time.Now()) {
			wait = min(100*time.Millisecond, every)
		}
		if !notify.Sleep(ctx, wait) {
			return
		}
	}
}

func (g *Group) confirm(ctx context.Context, cl *kgo.Client, m *membership) bool {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group = g.cfg.Conn.wireName(g.cfg.Group)
	if req.MemberID, req.Generation = cl.GroupMetadata(); req.MemberID == "" || req.Generation < 0 {
		return false
	}
	ctx, stop := context.WithTimeout(ctx, g.cfg.SessionTimeout/3)
	defer stop()
	sent := time.Now()
	resp, err := req.RequestWith(ctx, cl)
	// An answer with an error does not confirm the membership. The broker answers so during a
	// rebalance: then the member must join again, and the group removes a member that joins too
	// late.
	if err != nil || kerr.ErrorForCode(resp.ErrorCode) != nil {
		return false
	}
	m.confirm(sent)
	return true
}
