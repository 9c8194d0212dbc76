package app

import (
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// keepFailed is how many of the latest records of notifications-failed the embedded log never
// trims, because other services read this topic too. It also never trims the same number of records
// of triggers-dlq.
const keepFailed = 100_000

// trimOffsets returns an offset for each partition. The records below it may be trimmed, because
// all groups have committed them. In topics of first attempts, the history has also sealed these
// records.
func (gs *groups) trimOffsets(sealed map[history.Part]int64) map[string]map[int32]int64 {
	out := map[string]map[int32]int64{}
	gs.partitions(func(_ string, p *log.PartitionStats) {
		if out[p.TP.Topic] == nil {
			out[p.TP.Topic] = map[int32]int64{}
		}
		at := p.Committed
		if p.TP.Topic == notify.TopicFailed || p.TP.Topic == trigger.TopicDLQ {
			at -= keepFailed // other services read these topics too
		}
		if at > 0 {
			out[p.TP.Topic][p.TP.Partition] = at
		}
	})
	first := notify.FirstTopics()
	for topic, parts := range out {
		if !slices.Contains(first, topic) {
			continue
		}
		for part, at := range parts {
			parts[part] = min(at, sealed[history.Part{Topic: topic, Partition: part}])
		}
	}
	return out
}

// trimEvery is the time between two trims of the topics in Kafka.
const trimEvery = time.Minute

// keepRead is how long records stay in topics that other services also read, such as
// notifications-failed. Rows of triggers are kept for the same time.
const keepRead = 30 * 24 * time.Hour

// trim removes records every trimEvery. A record is removed if every group of notifyd has committed
// it and if it is older than minAge, or older than keepRead in a topic that other services also
// read. A record that is not archived yet stays for up to archive.wait longer. Kafka's own
// retention is off for these topics: it would remove records that a paused lane, or a process that
// is down, has not read.
func (gs *groups) trim(ctx context.Context, minAge time.Duration) error {
	for ctx.Err() == nil {
		call, stop := context.WithTimeout(ctx, 30*time.Second)
		err := gs.trimOnce(call, minAge, time.Now())
		stop()
		if err != nil && ctx.Err() == nil {
			gs.log.Warn("the log cannot be trimmed; the next trim tries again", "err", err)
		}
		notify.Sleep(ctx, trimEvery)
	}
	return nil
}

func (gs *groups) trimOnce(ctx context.Context, keep time.Duration, now time.Time) error {
	var lanes, read []string
	done := map[string][]map[log.TopicPartition]int64{} // key: topic; value: the commits of each group that reads the topic
	for _, g := range gs.names {
		at, err := gs.admin.Committed(ctx, g)
		if err != nil {
			return err
		}
		for _, t := range topicsOf[g] {
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
	starts, err := gs.admin.StartOffsets(ctx, slices.Concat(lanes, read)...)
	if err != nil {
		return err
	}
	archived, err := gs.archivedOffsets(ctx, now.Add(-keep))
	if err != nil {
		return err
	}
	below := map[log.TopicPartition]int64{}
	for _, kind := range []struct {
		topics []string
		keep   time.Duration
	}{{lanes, keep}, {read, keepRead}} {
		young, err := gs.admin.OffsetsSince(ctx, now.Add(-kind.keep), kind.topics...)
		if err != nil {
			return err
		}
		for tp, at := range young {
			for _, committed := range done[tp.Topic] {
				at = min(at, committed[tp]) // 0 if this group has read nothing
			}
			if until, waits := archived[tp]; waits {
				at = min(at, until)
			}
			// Keep one more record. Its time shows an audit how far back the log goes.
			if at--; at > starts[tp] {
				below[tp] = at
			}
		}
	}
	if len(below) == 0 {
		return nil
	}
	return gs.admin.DeleteRecords(ctx, below)
}

// archivedOffsets returns an offset for each partition that the archive reads. The records below it
// may be removed: they are archived, or they have waited for the archive longer than archive.wait.
// The result is empty if there is no archive.
func (gs *groups) archivedOffsets(ctx context.Context, keptSince time.Time) (map[log.TopicPartition]int64, error) {
	if gs.archive == nil {
		return nil, nil
	}
	at, err := gs.archive.Positions(ctx)
	if err != nil {
		return nil, err
	}
	old, err := gs.admin.OffsetsSince(ctx, keptSince.Add(-gs.archive.Status(ctx, keptSince).Wait), notify.FirstTopics()...)
	for tp := range old {
		old[tp] = max(old[tp], at[history.Part(tp)])
	}
	return old, err
}
