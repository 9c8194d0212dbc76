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

// groups holds the consumer groups that this process may run. It computes the lag of each group,
// and the offsets below which all groups have finished the records of the log.
type groups struct {
	list   []*log.Group
	names  []string // names of the groups in list, in the same order
	shared bool     // true: other processes are members too, so only the brokers know the whole lag
	admin  *log.Admin
	log    *slog.Logger

	archive *archive.Archiver // records that it has not read are not trimmed; nil: there is no archive

	sharedLags atomic.Pointer[[]api.GroupLag] // lags of shared groups; one process reads them from the brokers for all processes
}

// topicsOf holds the topics that each consumer group reads.
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

// connOf returns the connection of a group to the log. The groups of lanes other than bulk lanes
// read from the leaders of the partitions, even if a rack is configured. If there is little
// traffic, a record reaches a follower half a second later than the leader. That is too long for a
// user who waits for an otp code.
func connOf(group string, conn log.Conn) log.Conn {
	for _, l := range notify.Lanes() {
		if !l.Bulk && (group == l.Group() || group == l.RetryGroup()) {
			conn.Rack = ""
		}
	}
	return conn
}

// groupOf returns the group that works on a topic. It ignores the group of the history, because that
// group only copies records.
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

// byName returns the group with the given name.
func (gs *groups) byName(name string) *log.Group { return gs.list[slices.Index(gs.names, name)] }

// partitions calls fn with the statistics of each partition that this process owns, for each group.
func (gs *groups) partitions(fn func(group string, p *log.PartitionStats)) {
	for i, g := range gs.list {
		stats := g.Stats()
		for k := range stats.Partitions {
			fn(gs.names[i], &stats.Partitions[k])
		}
	}
}

// heldPartitions describes each partition that has stopped at a record of a newer release.
func (gs *groups) heldPartitions() (out []string) {
	gs.partitions(func(group string, p *log.PartitionStats) {
		if p.Held != nil {
			out = append(out, fmt.Sprintf("%s of group %s has stopped: %v", p.TP, group, p.Held))
		}
	})
	slices.Sort(out)
	return out
}

// lags returns the lag of each group. For shared groups it is the lag of all processes together.
// The fields InFlight and Paused count only this process.
func (gs *groups) lags() []api.GroupLag {
	var out []api.GroupLag
	if gs.shared {
		last := gs.sharedLags.Load()
		if last == nil {
			return nil
		}
		out = slices.Clone(*last)
	} else {
		for _, name := range gs.names {
			out = append(out, api.GroupLag{Group: name}) // no partition is assigned yet
		}
	}
	gs.partitions(func(group string, p *log.PartitionStats) {
		k := slices.IndexFunc(out, func(l api.GroupLag) bool { return l.Group == group && (l.Topic == p.TP.Topic || l.Topic == "") })
		switch {
		case k >= 0:
		case gs.shared:
			return // this process does not report the lag of the group
		default: // a group that reads several topics has one entry for each topic
			k = slices.IndexFunc(out, func(l api.GroupLag) bool { return l.Group == group }) + 1
			out = slices.Insert(out, k, api.GroupLag{Group: group})
		}
		l := &out[k]
		if l.Topic = p.TP.Topic; !gs.shared {
			l.Lag += max(p.Lag(), 0) // a lag below 0 means that the end is not known yet
		}
		l.InFlight += p.InFlight
		if p.Paused {
			l.Paused++
		}
	})
	return out
}

// watchedGroups returns the groups whose lag a process with these tasks reports. The API and operators
// report all groups. A worker reports only its own groups.
func (gs *groups) watchedGroups(do cluster.Tasks) (names []string) {
	if do.API || do.Operator {
		return gs.names
	}
	for _, l := range do.Lanes {
		names = append(names, l.Group(), l.RetryGroup())
	}
	return names
}

// setLags stores the lags of some groups. The parameter names contains the names of these groups,
// and allLags contains the lags of all groups.
func (gs *groups) setLags(allLags []api.GroupLag, names []string) {
	allLags = slices.DeleteFunc(allLags, func(l api.GroupLag) bool { return !slices.Contains(names, l.Group) })
	gs.sharedLags.Store(&allLags)
}

// readLags asks the brokers for the lag of each group, counted over all processes.
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

// lagName returns the name of a lag in a list: the group. If the group reads several topics, the name
// also contains the topic.
func lagName(l *api.GroupLag, all []api.GroupLag) string {
	if slices.ContainsFunc(all, func(o api.GroupLag) bool { return o.Group == l.Group && o.Topic != l.Topic }) {
		return l.Group + " " + l.Topic
	}
	return l.Group
}

// allDone reports whether no record waits and no record is in flight. A group without assigned topics
// has not read anything yet, so allDone returns false.
func allDone(lags []api.GroupLag) bool {
	return !slices.ContainsFunc(lags, func(l api.GroupLag) bool { return l.Topic == "" || l.Lag > 0 || l.InFlight > 0 })
}
