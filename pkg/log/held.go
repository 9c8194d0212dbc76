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

// membership is what a member knows about its membership in the group. If the broker gets no heartbeat
// from a member for the session timeout, the broker gives the member's partitions to other members.
// The timeout starts at the last heartbeat. So the member certainly owns its partitions for the
// session timeout after it sent the last heartbeat that the broker answered.
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

// holds reports whether it is certain that no other member owns the partitions now. It uses the clock
// that shows more elapsed time, because the monotonic clock may stop while the machine is suspended,
// and the wall clock may be set back.
func (c *confirmation) holds(limit time.Duration, now time.Time) bool {
	return !c.sent.IsZero() && now.Sub(c.sent) < limit && now.Round(0).Sub(c.sent.Round(0)) < limit
}

func (m *membership) confirm(sent time.Time) {
	old := m.last.Swap(&confirmation{sent: sent, next: make(chan struct{})})
	close(old.next)
}

// AwaitOwnership waits until this member certainly owns its partition. ctx must be the context that
// Handler.Assigned got, or a context derived from it. AwaitOwnership returns nil if no other member
// was given the partition before the call. If ctx has ended, it returns ctx's error. A process that
// was paused or disconnected for longer than the session timeout waits in AwaitOwnership until the
// group answers the process or takes the partition from it. If no group made the context, or if the
// log is embedded, AwaitOwnership only checks ctx.
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
		if c.holds(m.limit, time.Now()) {
			break
		}
		select {
		case <-c.next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err() // checked after holds: if ctx has not ended now, it had not ended during holds
}

// confirmEvery sends heartbeats to the group's coordinator until ctx ends, and records the answers in
// m. The client also sends heartbeats, but it does not report their results.
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
	req.Group = g.cfg.Conn.wireName(g.cfg.Group)
	if req.MemberID, req.Generation = cl.GroupMetadata(); req.MemberID == "" || req.Generation < 0 {
		return false
	}
	ctx, stop := context.WithTimeout(ctx, g.cfg.SessionTimeout/3)
	defer stop()
	sent := time.Now()
	resp, err := req.RequestWith(ctx, cl)
	// An answer during a rebalance does not count, because the group removes a member that joins late.
	if err != nil || kerr.ErrorForCode(resp.ErrorCode) != nil {
		return false
	}
	m.confirm(sent)
	return true
}
