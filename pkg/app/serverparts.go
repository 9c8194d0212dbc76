package app

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/outcomehook"
	"github.com/notifyd/notifyd/pkg/store"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// servers is what a process over shared engines keeps beside its stages.
type servers struct {
	probe       *log.Probe // nil: the log says itself whether it is there
	historian   history.Historian
	dispatchers *cluster.Peers
	standings   *cluster.Standings
	lag         atomic.Pointer[[]Lag]
	checks      []serverCheck
	listen      func(ctx context.Context) error // wakes who follows preferences; nil: polls do
	seen        *store.Seen                     // in front of outcome rows; nil: they are read
	limits      *limit.Shared                   // nil: each process has its own
}

// serverCheck looks at one engine for the doctor.
type serverCheck func(ctx context.Context, fs *findings)

// followEvery is how often what operators changed in another process is read.
const followEvery = time.Second

// buildServers makes the parts that only processes over shared engines have.
func (n *Node) buildServers() error {
	if n.own != nil {
		return nil
	}
	return n.addGroup(log.GroupConfig{
		Group: history.WritersGroup, CommitEvery: 100 * time.Millisecond, MaxPollRecords: 2000, MaxInFlight: 4000,
	}, history.Writer{To: n.servers.historian})
}

// addServerParts adds the inner parts of a process whose engines are servers.
func (n *Node) addServerParts(ps parts, do cluster.Tasks) {
	s := n.servers
	if s.probe != nil {
		ps["log probe"] = s.probe.Run
	}
	if len(do.Lanes) == 0 { // nobody here calls anyone
		delete(ps, "preferences")
		delete(ps, "cancels")
		delete(ps, "committer")
	} else if s.listen != nil {
		ps["changes of preferences"] = s.listen
	}
	if s.seen != nil {
		ps["seen-filter"] = s.seen.Run
	}
	ps["follower"] = n.follow
	if groups := n.lagGroups(do); len(groups) > 0 {
		ps["lags"] = func(ctx context.Context) error { return n.watchLags(ctx, groups) }
	}
	ps["standing"] = func(ctx context.Context) error { return s.standings.Share(ctx, do.Lanes, n.ownStanding) }
	if len(n.clock.Servers) > 0 {
		ps["clock"] = n.clock.Run
	}
	if do.Operator {
		ps["group "+history.WritersGroup] = n.group(history.WritersGroup).Run
		for name, run := range n.purges() {
			ps[name] = n.alone(name, run)
		}
		ps["trim"] = n.alone("trim", n.trimLog)
	}
}

// lagGroups returns the groups whose lag a process with these tasks reads. The API
// and operators tell of all of them; a worker reads its own alone, because hundreds
// of workers would ask the brokers for every topic and group every two seconds.
func (n *Node) lagGroups(do cluster.Tasks) (groups []string) {
	if do.API || do.Operator {
		return n.groupNames
	}
	for _, l := range do.Lanes {
		groups = append(groups, l.Group(), l.RetryGroup())
	}
	return groups
}

// watchLags reads how far groups are behind, over all processes, until ctx ends.
func (n *Node) watchLags(ctx context.Context, groups []string) error {
	for ctx.Err() == nil {
		call, stop := context.WithTimeout(ctx, 5*time.Second)
		ls, err := n.readLags(call, groups)
		stop()
		if err == nil {
			n.servers.lag.Store(&ls)
		} else if ctx.Err() == nil {
			n.log.Warn("how far groups are behind cannot be read", "err", err)
		}
		notify.Sleep(ctx, 2*time.Second)
	}
	return nil
}

// topicsOf are the topics of a group.
func topicsOf(group string) []string {
	switch group {
	case history.WritersGroup:
		return notify.FirstTopics()
	case outcomehook.FollowGroup:
		return []string{notify.TopicOutcomes}
	case deadletter.DeadLetterGroup:
		return []string{notify.TopicFailed, trigger.TopicDLQ}
	}
	for _, l := range notify.Lanes() {
		switch group {
		case l.Group():
			return []string{l.Topic()}
		case l.RetryGroup():
			return []string{l.DLQTopic()}
		}
	}
	return nil
}

func (n *Node) readLags(ctx context.Context, groups []string) ([]Lag, error) {
	topics := map[string]bool{}
	for _, g := range groups {
		for _, t := range topicsOf(g) {
			topics[t] = true
		}
	}
	all := slices.Sorted(maps.Keys(topics))
	starts, err := n.admin.StartOffsets(ctx, all...)
	if err != nil {
		return nil, err
	}
	ends, err := n.admin.EndOffsets(ctx, all...)
	if err != nil {
		return nil, err
	}
	var out []Lag
	for _, g := range groups {
		at, err := n.admin.Committed(ctx, g)
		if err != nil {
			return nil, err
		}
		for _, topic := range topicsOf(g) {
			l := Lag{Group: g, Topic: topic}
			for tp, end := range ends {
				if tp.Topic == topic {
					l.Lag += max(end-max(at[tp], starts[tp]), 0)
				}
			}
			out = append(out, l)
		}
	}
	return out, nil
}

// sharedLags returns the lag of each group that this process reads (see lagGroups), as
// all processes together have it. In flight is only what this process works on.
func (n *Node) sharedLags() []Lag {
	last := n.servers.lag.Load()
	if last == nil {
		return nil
	}
	out := slices.Clone(*last)
	for i := range out {
		l := &out[i]
		for _, p := range n.group(l.Group).Stats().Partitions {
			if p.TP.Topic != l.Topic {
				continue
			}
			l.InFlight += p.InFlight
			if p.Paused {
				l.Paused++
			}
		}
	}
	return out
}

// follow applies what operators changed through another process: which lanes and
// campaigns are paused, and which circuits of callers are held.
func (n *Node) follow(ctx context.Context) error {
	for ctx.Err() == nil {
		notify.Sleep(ctx, followEvery)
		call, stop := context.WithTimeout(ctx, 5*time.Second)
		var err error
		for _, follow := range []func(context.Context) error{n.lanes.Follow, n.campaigns.Follow, n.circuits.Follow} {
			if err = follow(call); err != nil {
				break
			}
		}
		if err == nil && n.tasks.Operator {
			err = n.feeds.Join(call)
		}
		stop()
		if err != nil && ctx.Err() == nil {
			n.log.Warn("what operators changed cannot be read", "err", err)
		}
	}
	return nil
}
