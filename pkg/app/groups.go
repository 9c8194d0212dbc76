package app

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/outcomehook"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// groups are the consumer groups that this process may run: how far each has read, and
// what of the log all of them are done with.
type groups struct {
	list   []*log.Group
	names  []string // of list
	shared bool     // other processes have members too: how far they have read is in the log
	admin  *log.Admin
	log    *slog.Logger

	archive *archive.Archiver // what it has not read is not trimmed; nil: there is none

	read atomic.Pointer[[]api.GroupLag] // of shared groups, as one process read them last for all
}

// topicsOf are the topics of every group.
var topicsOf = func() map[string][]string {
	of := map[string][]string{
		history.WritersGroup:       notify.FirstTopics(),
		outcomehook.FollowGroup:    {notify.TopicOutcomes},
		deadletter.DeadLetterGroup: {notify.TopicFailed, trigger.TopicDLQ},
	}
	for _, l := range notify.Lanes() {
		of[l.Group()], of[l.RetryGroup()] = []string{l.Topic()}, []string{l.DLQTopic()}
	}
	return of
}()

// connOf is how a group reaches the log. The groups of lanes that are not bulk read from
// leaders, whatever the rack: at rest a follower gives a record out half a second later than
// its leader does, and somebody waits for a code.
func connOf(group string, conn log.Conn) log.Conn {
	for _, l := range notify.Lanes() {
		if !l.Bulk && (group == l.Group() || group == l.RetryGroup()) {
			conn.Rack = ""
		}
	}
	return conn
}

// groupOf is the group that works on a topic; the history's only copies.
func groupOf(topic string) string {
	for group, topics := range topicsOf {
		if group != history.WritersGroup && slices.Contains(topics, topic) {
			return group
		}
	}
	return ""
}

func (gs *groups) add(name string, g *log.Group) {
	gs.list, gs.names = append(gs.list, g), append(gs.names, name)
}

// of returns a group by its name.
func (gs *groups) of(name string) *log.Group { return gs.list[slices.Index(gs.names, name)] }

// partitions calls fn with where each partition of each group stands.
func (gs *groups) partitions(fn func(group string, p *log.PartitionStats)) {
	for i, g := range gs.list {
		stats := g.Stats()
		for k := range stats.Partitions {
			fn(gs.names[i], &stats.Partitions[k])
		}
	}
}

// held says of each partition that stands at a record of a newer release where and why.
func (gs *groups) held() (out []string) {
	gs.partitions(func(group string, p *log.PartitionStats) {
		if p.Held != nil {
			out = append(out, fmt.Sprintf("%s of %s stands: %v", p.TP, group, p.Held))
		}
	})
	slices.Sort(out)
	return out
}

// lags returns how far the groups are behind, of shared groups as all processes together
// are. In flight is only what this process works on.
func (gs *groups) lags() []api.GroupLag {
	var out []api.GroupLag
	if gs.shared {
		last := gs.read.Load()
		if last == nil {
			return nil
		}
		out = slices.Clone(*last)
	} else {
		for _, name := range gs.names {
			out = append(out, api.GroupLag{Group: name}) // nothing is assigned yet
		}
	}
	gs.partitions(func(group string, p *log.PartitionStats) {
		k := slices.IndexFunc(out, func(l api.GroupLag) bool { return l.Group == group && (l.Topic == p.TP.Topic || l.Topic == "") })
		switch {
		case k >= 0:
		case gs.shared:
			return // it is not watched
		default: // of a group that reads more than one topic, each by itself
			k = slices.IndexFunc(out, func(l api.GroupLag) bool { return l.Group == group }) + 1
			out = slices.Insert(out, k, api.GroupLag{Group: group})
		}
		l := &out[k]
		if l.Topic = p.TP.Topic; !gs.shared {
			l.Lag += max(p.Lag(), 0) // below 0: its end is not known yet
		}
		l.InFlight += p.InFlight
		if p.Paused {
			l.Paused++
		}
	})
	return out
}

// watched returns the groups that a process with these tasks tells the lag of. The API and
// operators tell of all of them, a worker of its own.
func (gs *groups) watched(do cluster.Tasks) (names []string) {
	if do.API || do.Operator {
		return gs.names
	}
	for _, l := range do.Lanes {
		names = append(names, l.Group(), l.RetryGroup())
	}
	return names
}

// take notes how far the named groups are behind, of what was read of all.
func (gs *groups) take(all []api.GroupLag, names []string) {
	all = slices.DeleteFunc(all, func(l api.GroupLag) bool { return !slices.Contains(names, l.Group) })
	gs.read.Store(&all)
}

// readLags asks the brokers how far each group is behind, over all processes.
func (gs *groups) readLags(ctx context.Context) (out []api.GroupLag, err error) {
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	topics := map[string]bool{}
	for _, g := range gs.names {
		for _, t := range topicsOf[g] {
			topics[t] = true
		}
	}
	all := slices.Sorted(maps.Keys(topics))
	starts, err := gs.admin.StartOffsets(ctx, all...)
	if err != nil {
		return nil, err
	}
	ends, err := gs.admin.EndOffsets(ctx, all...)
	if err != nil {
		return nil, err
	}
	for _, g := range gs.names {
		at, err := gs.admin.Committed(ctx, g)
		if err != nil {
			return nil, err
		}
		for _, topic := range topicsOf[g] {
			l := api.GroupLag{Group: g, Topic: topic}
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

// lagName names a lag in a list: by its group, and by the topic too where the group
// reads more than one.
func lagName(l *api.GroupLag, all []api.GroupLag) string {
	if slices.ContainsFunc(all, func(o api.GroupLag) bool { return o.Group == l.Group && o.Topic != l.Topic }) {
		return l.Group + " " + l.Topic
	}
	return l.Group
}

// allDone reports whether nothing of lags waits; a group that was assigned no topic
// yet has not looked.
func allDone(lags []api.GroupLag) bool {
	return !slices.ContainsFunc(lags, func(l api.GroupLag) bool { return l.Topic == "" || l.Lag > 0 || l.InFlight > 0 })
}
