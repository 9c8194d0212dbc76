package log

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Group is a member of a consumer group. Its method Run does the work. All other methods may be
// called at any time, from any goroutine.
type Group struct {
	cfg     GroupConfig
	handler Handler

	mu       sync.Mutex // guards the fields assigned and commits
	assigned map[TopicPartition]*assignment
	commits  commitCounts

	// The channel committing has room for one token, so it works as a lock. A goroutine puts a
	// token into it before it reads the low-water marks and commits them, and so does a revocation
	// before it removes its partitions. So this member never commits after the next owner of a
	// partition has committed; such a late commit would lower the committed offset.
	committing chan struct{}
}

// commitCounts holds the counters that Stats returns.
type commitCounts struct{ done, failed, resets, failures uint64 }

// NewGroup returns a member that has not joined its group yet. Run joins the group.
func NewGroup(cfg GroupConfig, h Handler) (*Group, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	g := &Group{cfg: cfg, handler: h, assigned: make(map[TopicPartition]*assignment), committing: make(chan struct{}, 1)}
	next := cfg.Events.Failed
	g.cfg.Events.Failed = func(tp TopicPartition, cause error) {
		g.count(func(c *commitCounts) { c.failures++ })
		if next != nil {
			next(tp, cause)
		}
	}
	return g, nil
}

func (g *Group) count(f func(*commitCounts)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(&g.commits)
}

// errRejoin ends a session because the log does not contain the next offset any more. Run then
// joins the group again, which compares the committed offsets with the log.
var errRejoin = errors.New("log: the log does not contain the next offset of a partition any more")

// commitTimeout is the timeout of one commit.
const commitTimeout = 5 * time.Second

// Run joins the group and passes records to the handler until ctx ends. Then it stops reading,
// waits up to DrainTimeout until the handler's records are done, commits, leaves the group, and
// returns nil. It returns an error if a handler does not return after the handler's context has
// ended.
func (g *Group) Run(ctx context.Context) error {
	for {
		err := g.runSession(ctx)
		switch {
		case !errors.Is(err, errRejoin):
			return err
		case ctx.Err() != nil:
			return nil
		}
		if !notify.Sleep(ctx, g.cfg.RetryBackoff) {
			return nil
		}
	}
}

// runSession joins the group, works until ctx ends or until errRejoin, and leaves the group.
func (g *Group) runSession(ctx context.Context) error {
	base := context.WithoutCancel(ctx) // a drain continues after ctx has ended
	var member *membership
	if g.cfg.Conn.Local == nil { // the embedded log needs no membership, because all members of its groups are in this process
		member = newMembership(g.cfg.SessionTimeout)
		base = context.WithValue(base, membershipKey{}, member)
	}
	polling, stopPolling := context.WithCancelCause(ctx)
	defer stopPolling(nil)
	cl, err := g.cfg.Conn.client(g.options(base, stopPolling)...)
	if err != nil {
		return fmt.Errorf("log: creating the client of group %s: %w", g.cfg.Group, err)
	}
	if g.cfg.Conn.Local != nil {
		cl.PauseFetchTopics(g.cfg.Conn.wireNames(g.cfg.Topics)...)
	}
	ticking, stopTicking := context.WithCancel(base)
	var wg sync.WaitGroup
	wg.Go(func() { g.commitEvery(ticking, cl) })
	confirming, stopConfirming := context.WithCancel(base)
	var confirms sync.WaitGroup
	if member != nil {
		confirms.Go(func() { g.confirmEvery(confirming, cl, member) })
	}

	g.pollRecords(polling, cl, stopPolling)
	cause := context.Cause(polling)

	stopTicking()
	wg.Wait()
	err = g.leaveGroup(base, cl)
	stopConfirming() // not earlier: handlers call AwaitOwnership while they drain
	confirms.Wait()
	if err == nil && errors.Is(cause, errRejoin) {
		return errRejoin
	}
	return err
}

// counts returns the earlier and the present numbers of partitions of a topic. The parameter wire
// is the name of the topic at the brokers, with Conn.Prefix.
func (g *Group) counts(wire string) []int {
	if g.cfg.Counts == nil {
		return nil
	}
	return g.cfg.Counts(g.cfg.Conn.productName(wire))
}

func (g *Group) options(base context.Context, rejoin context.CancelCauseFunc) []kgo.Opt {
	balancers := []kgo.GroupBalancer{kgo.CooperativeStickyBalancer()}
	if g.cfg.Owner != "" {
		balancers = []kgo.GroupBalancer{byOwner{g.cfg.Owner, g.counts}, kgo.CooperativeStickyBalancer()}
	}
	return []kgo.Opt{
		kgo.ConsumerGroup(g.cfg.Conn.wireName(g.cfg.Group)),
		kgo.Balancers(balancers...),
		kgo.ConsumeTopics(g.cfg.Conn.wireNames(g.cfg.Topics)...),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(g.cfg.SessionTimeout),
		kgo.HeartbeatInterval(min(time.Second, g.cfg.SessionTimeout/4)), // also the longest time until a member learns of a rebalance
		kgo.RebalanceTimeout(max(30*time.Second, 2*g.cfg.RevokeWait, g.cfg.SessionTimeout)),
		kgo.FetchMaxWait(g.cfg.FetchWait),
		kgo.FetchMaxPartitionBytes(4 << 20),
		kgo.FetchMaxBytes(32 << 20),
		kgo.OnPartitionsAssigned(func(_ context.Context, cl *kgo.Client, tps map[string][]int32) { g.onAssigned(base, cl, tps) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, cl *kgo.Client, tps map[string][]int32) { g.onRevoked(base, cl, tps) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, tps map[string][]int32) { g.onLost(base, tps) }),
		kgo.AdjustFetchOffsetsFn(func(ctx context.Context, os map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
			return g.checkPositions(ctx, os, rejoin)
		}),
	}
}

// pollRecords passes fetched records to their assignments until ctx ends.
func (g *Group) pollRecords(ctx context.Context, cl *kgo.Client, rejoin context.CancelCauseFunc) {
	for ctx.Err() == nil {
		fs := cl.PollRecords(ctx, g.cfg.MaxPollRecords)
		fs.EachPartition(func(p kgo.FetchTopicPartition) {
			tp := g.cfg.Conn.fromWire(p.Topic, p.Partition)
			if p.Err != nil {
				g.fetchError(ctx, tp, p.Err, rejoin)
			}
			g.mu.Lock()
			a := g.assigned[tp]
			g.mu.Unlock()
			if a != nil {
				a.pushFetched(p.Records, p.HighWatermark)
			}
		})
		cl.AllowRebalance()
	}
}

func (g *Group) fetchError(ctx context.Context, tp TopicPartition, err error, rejoin context.CancelCauseFunc) {
	if ctx.Err() != nil {
		return
	}
	_, lost := errors.AsType[*kgo.ErrDataLoss](err)
	if lost || errors.Is(err, kerr.OffsetOutOfRange) {
		g.cfg.Events.trouble(fmt.Errorf("reading %s: %w", tp, err))
		rejoin(errRejoin)
		return
	}
	g.cfg.Events.trouble(translate(fmt.Errorf("reading %s: %w", tp, err)))
}

func (g *Group) onAssigned(base context.Context, cl *kgo.Client, tps map[string][]int32) {
	for topic, ps := range tps {
		for _, p := range ps {
			a := newAssignment(base, g, cl, g.cfg.Conn.fromWire(topic, p))
			g.mu.Lock()
			g.assigned[a.tp] = a
			g.mu.Unlock()
			go a.run() // releaseAssignments waits for this goroutine
			if f := g.cfg.Events.Assigned; f != nil {
				f(a.tp)
			}
		}
	}
}

// onRevoked waits until the handler's records of these partitions are done. Then it commits the
// low-water marks and removes the assignments. So the next owner starts at the offset at which this
// member ended.
func (g *Group) onRevoked(base context.Context, cl *kgo.Client, tps map[string][]int32) {
	as := g.assignmentsOf(tps)
	if len(as) == 0 {
		return
	}
	g.drain(base, as, g.cfg.RevokeWait)
	g.committing <- struct{}{}
	as = g.stillAssigned(as) // leaveGroup may have removed some of them meanwhile
	g.commit(base, cl, as)
	g.removeAssignments(as)
	<-g.committing
	_ = g.releaseAssignments(base, as, false) // releaseAssignments has reported the error to Events
}

// onLost removes the assignments of partitions that another member may already own.
func (g *Group) onLost(base context.Context, tps map[string][]int32) {
	as := g.assignmentsOf(tps)
	g.committing <- struct{}{}
	g.removeAssignments(as)
	<-g.committing
	_ = g.releaseAssignments(base, as, true)
}

// leaveGroup drains all partitions, commits and leaves the group.
func (g *Group) leaveGroup(base context.Context, cl *kgo.Client) error {
	g.mu.Lock()
	as := make([]*assignment, 0, len(g.assigned))
	for _, a := range g.assigned {
		as = append(as, a)
	}
	g.mu.Unlock()
	g.drain(base, as, g.cfg.DrainTimeout)
	g.committing <- struct{}{}
	as = g.stillAssigned(as) // onRevoked may have removed some of them meanwhile
	g.commit(base, cl, as)
	g.removeAssignments(as)
	<-g.committing
	err := g.releaseAssignments(base, as, false)

	ctx, stop := context.WithTimeout(base, commitTimeout)
	defer stop()
	cl.AllowRebalance()
	if lerr := cl.LeaveGroupContext(ctx); lerr != nil {
		g.cfg.Events.trouble(translate(lerr)) // without LeaveGroup the group removes the member after the session timeout
	}
	cl.CloseAllowingRebalance()
	// CloseAllowingRebalance starts a goroutine that leaves the group a second time. It also polls
	// once more, and this poll blocks rebalances, so that the goroutine would wait for ever.
	// AllowRebalance ends the wait.
	cl.AllowRebalance()
	return err
}

func (g *Group) assignmentsOf(tps map[string][]int32) []*assignment {
	g.mu.Lock()
	defer g.mu.Unlock()
	var as []*assignment
	for topic, ps := range tps {
		for _, p := range ps {
			if a := g.assigned[g.cfg.Conn.fromWire(topic, p)]; a != nil {
				as = append(as, a)
			}
		}
	}
	return as
}

// stillAssigned returns the given assignments, without those that were removed.
func (g *Group) stillAssigned(assignments []*assignment) []*assignment {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []*assignment
	for _, a := range assignments {
		if g.assigned[a.tp] == a {
			out = append(out, a)
		}
	}
	return out
}

func (g *Group) removeAssignments(as []*assignment) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range as {
		if g.assigned[a.tp] == a {
			delete(g.assigned, a.tp)
		}
	}
}

func (g *Group) drain(base context.Context, as []*assignment, limit time.Duration) {
	ctx, stop := context.WithTimeout(base, limit)
	defer stop()
	var wg sync.WaitGroup
	for _, a := range as {
		wg.Go(func() { a.drain(ctx) })
	}
	wg.Wait()
}

// releaseAssignments ends assignments. It waits up to RevokeWait until their handlers have returned.
func (g *Group) releaseAssignments(base context.Context, as []*assignment, lost bool) error {
	ctx, stop := context.WithTimeout(base, g.cfg.RevokeWait)
	defer stop()
	var errs []error
	for _, a := range as {
		a.cancel() // cancel all assignments before waiting for the first one
	}
	for _, a := range as {
		if err := a.cancelAndWait(ctx); err != nil {
			g.cfg.Events.trouble(err)
			errs = append(errs, err)
		}
		if f := g.cfg.Events.Gone; f != nil {
			f(a.tp, lost)
		}
	}
	return errors.Join(errs...)
}
