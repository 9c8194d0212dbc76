package log

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/notify"
)

// hastyCommit is the commit interval while GroupConfig.Hasty returns true.
const hastyCommit = 100 * time.Millisecond

// commitEvery commits the low-water marks at each interval until ctx ends.
func (g *Group) commitEvery(ctx context.Context, cl *kgo.Client) {
	for {
		every := g.cfg.CommitEvery
		if g.cfg.Hasty != nil && g.cfg.Hasty() {
			every = min(every, hastyCommit)
		}
		if !notify.Sleep(ctx, every) {
			return
		}
		g.committing <- struct{}{}
		g.mu.Lock()
		as := make([]*assignment, 0, len(g.assigned))
		for _, a := range g.assigned {
			as = append(as, a)
		}
		g.mu.Unlock()
		g.commit(ctx, cl, as)
		<-g.committing
	}
}

// commit commits the low-water marks that have moved. A low-water mark is committed only if it is
// above the partition's committed offset. So committed offsets only grow, except after a reset (see
// checkPositions). The caller must have put its token into the channel g.committing.
func (g *Group) commit(ctx context.Context, cl *kgo.Client, assignments []*assignment) {
	moved := make(map[TopicPartition]*assignment, len(assignments))
	offsets := make(map[TopicPartition]kgo.EpochOffset, len(assignments))
	for _, a := range assignments {
		if at, ok := a.markToCommit(); ok {
			moved[a.tp], offsets[a.tp] = a, at
		}
	}
	if len(offsets) == 0 {
		return
	}
	ctx, stop := context.WithTimeout(ctx, commitTimeout)
	defer stop()
	var failure error
	cl.CommitOffsetsSync(ctx, nestByTopic(&g.cfg.Conn, offsets), func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			failure = err
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				tp := g.cfg.Conn.fromWire(t.Topic, p.Partition)
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					failure = err
				} else if a := moved[tp]; a != nil {
					a.markCommitted(offsets[tp].Offset)
				}
			}
		}
	})
	g.count(func(c *commitCounts) {
		if failure != nil {
			c.failed++
		} else {
			c.done++
		}
	})
	if failure != nil {
		g.cfg.Events.trouble(translate(fmt.Errorf("committing the offsets of group %s: %w", g.cfg.Group, failure)))
		return
	}
	killpoint.Hit("offsets-committed")
}

// checkPositions checks the committed offsets, which a rebalance has just read, against the log. If
// the log does not contain a committed offset, checkPositions replaces that offset by the first
// offset of the log and calls Events.Reset. The client reads records only after checkPositions has
// returned the positions.
func (g *Group) checkPositions(ctx context.Context, positions map[string]map[int32]kgo.Offset, end context.CancelCauseFunc) (map[string]map[int32]kgo.Offset, error) {
	topics := make([]string, 0, len(positions))
	tps := make(map[string][]int32, len(positions))
	for t, ps := range positions {
		topics = append(topics, t)
		for p := range ps {
			tps[t] = append(tps[t], p)
		}
	}
	as := g.assignmentsOf(tps)
	if len(as) == 0 {
		return positions, nil
	}
	adm := kadm.NewClient(as[0].cl)
	starts, err := adm.ListStartOffsets(ctx, topics...)
	if err != nil {
		return nil, err
	}
	ends, err := adm.ListEndOffsets(ctx, topics...)
	if err != nil {
		return nil, err
	}
	for _, a := range as {
		topic := g.cfg.Conn.wireName(a.tp.Topic)
		start, ok1 := starts.Lookup(topic, a.tp.Partition)
		finish, ok2 := ends.Lookup(topic, a.tp.Partition)
		switch {
		case !ok1 || !ok2:
			return nil, fmt.Errorf("the brokers returned no offsets of partition %s", a.tp)
		case start.Err != nil:
			return nil, start.Err
		case finish.Err != nil:
			return nil, finish.Err
		}
		committed := positions[topic][a.tp.Partition].EpochOffset().Offset
		if committed < 0 { // nothing was ever committed: read the whole log
			a.startAt(start.Offset, -1, finish.Offset, end)
			continue
		}
		if committed >= start.Offset && committed <= finish.Offset {
			a.startAt(committed, committed, finish.Offset, end)
			continue
		}
		g.count(func(c *commitCounts) { c.resets++ })
		if f := g.cfg.Events.Reset; f != nil {
			f(Reset{TP: a.tp, Committed: committed, Start: start.Offset, End: finish.Offset})
		}
		// The new position may be below the committed offset, if the log has lost its end. So start
		// with -1 as the committed offset. The next commit then lowers the committed offset to the
		// position from which records are really read.
		a.startAt(start.Offset, -1, finish.Offset, end)
		positions[topic][a.tp.Partition] = kgo.NewOffset().At(start.Offset).WithEpoch(-1)
	}
	return positions, nil
}

// PartitionStats is the progress of one assigned partition.
type PartitionStats struct {
	TP        TopicPartition
	Committed int64 // committed offset; -1: no commit
	LowWater  int64 // every record below this offset is done
	Next      int64 // offset after the last record read
	HighWater int64 // end of the log, as known at the last read; -1: unknown
	InFlight  int   // number of records read and not done
	Bytes     int   // size of the records that InFlight counts
	Paused    bool
	Held      error // error for which the partition has stopped until this member loses it; nil: it has not stopped
}

// Lag returns the consumer lag: the number of records that are not done. It returns -1 before the first
// read.
func (s *PartitionStats) Lag() int64 {
	if s.HighWater < 0 || s.LowWater < 0 {
		return -1
	}
	return max(s.HighWater-s.LowWater, 0)
}

// GroupStats is a snapshot of this member of the group.
type GroupStats struct {
	Partitions    []PartitionStats
	Commits       uint64 // commits that the broker acknowledged
	CommitsFailed uint64
	Resets        uint64 // committed offsets that were not in the log
	Failures      uint64 // calls of the handler that failed or panicked
}

// Stats returns a snapshot of this member.
func (g *Group) Stats() GroupStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := GroupStats{Commits: g.commits.done, CommitsFailed: g.commits.failed, Resets: g.commits.resets, Failures: g.commits.failures}
	for tp, a := range g.assigned {
		a.mu.Lock()
		s.Partitions = append(s.Partitions, PartitionStats{
			TP: tp, Committed: a.committed, LowWater: a.track.low, Next: a.next, HighWater: a.high,
			InFlight: a.records, Bytes: a.bytes, Paused: a.paused, Held: a.held,
		})
		a.mu.Unlock()
	}
	return s
}
