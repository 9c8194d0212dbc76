package app

import (
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// trimEvery is how often the log of servers is trimmed.
const trimEvery = time.Minute

// keepRead is how long records stay that other services read beside our groups, of
// notifications-failed and the like. It is as long as rows of triggers are kept.
const keepRead = 30 * 24 * time.Hour

// trimLog removes records that every group of ours has committed and that are older
// than kafka.keep. Kafka's own retention is off for these topics: it would remove
// what a paused lane, or a process that is down, has not read.
func (n *Node) trimLog(ctx context.Context) error {
	for ctx.Err() == nil {
		call, stop := context.WithTimeout(ctx, 30*time.Second)
		err := n.trimOnce(call, time.Now())
		stop()
		if err != nil && ctx.Err() == nil {
			n.log.Warn("the log cannot be trimmed", "err", err)
		}
		notify.Sleep(ctx, trimEvery)
	}
	return nil
}

func (n *Node) trimOnce(ctx context.Context, now time.Time) error {
	var lanes, read []string
	done := map[string][]map[log.TopicPartition]int64{} // what the groups of a topic have committed
	for _, g := range n.groupNames {
		at, err := n.admin.Committed(ctx, g)
		if err != nil {
			return err
		}
		for _, t := range topicsOf(g) {
			if done[t] = append(done[t], at); len(done[t]) > 1 {
				continue
			}
			switch t {
			case notify.TopicFailed, notify.TopicOutcomes, trigger.TopicDLQ:
				read = append(read, t)
			default:
				lanes = append(lanes, t)
			}
		}
	}
	starts, err := n.admin.StartOffsets(ctx, slices.Concat(lanes, read)...)
	if err != nil {
		return err
	}
	below := map[log.TopicPartition]int64{}
	for _, kind := range []struct {
		topics []string
		keep   time.Duration
	}{{lanes, n.cfg.Kafka.Keep}, {read, keepRead}} {
		young, err := n.admin.OffsetsSince(ctx, now.Add(-kind.keep), kind.topics...)
		if err != nil {
			return err
		}
		for tp, at := range young {
			for _, committed := range done[tp.Topic] {
				at = min(at, committed[tp]) // 0: this group has read nothing
			}
			// One record stays: its age shows an audit how far the log reaches back.
			if at--; at > starts[tp] {
				below[tp] = at
			}
		}
	}
	if len(below) == 0 {
		return nil
	}
	return n.admin.DeleteRecords(ctx, below)
}
