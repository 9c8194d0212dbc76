package app

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// With servers, one operator process writes a checkpoint every minute. The checkpoint holds the
// committed offsets of each consumer group. It is a row of Cassandra. So each snapshot of Cassandra
// contains the checkpoints that were written before it. RestoreCluster sets the groups back to one of
// these checkpoints.
//
// A checkpoint that is older than a snapshot fits the snapshot. A group commits a record only after the
// rows that result from the record are durable. So the snapshot has the rows of every record below the
// checkpoint. Records above the checkpoint are read again.
const (
	checkpointEvery = time.Minute
	// checkpointsKept is the number of rows: one row for each minute of a day. The nodes of
	// Cassandra are not copied at the same moment. So the newest checkpoint in the copies may be
	// newer than the copies of some other rows. If a snapshot of all nodes takes less than a day,
	// the snapshot still contains a checkpoint from before the start of the snapshot.
	checkpointsKept = 24 * 60
)

// checkpoint holds the committed offsets of the consumer groups at one time.
type checkpoint struct {
	At     time.Time         `json:"at"`     // a time after the committed offsets were read
	Topics map[string]string `json:"topics"` // by topic: the id that the brokers gave to it
	Groups positions         `json:"groups"`
}

// checkpointName returns the name of the row for the checkpoint of a minute. A day later the same row
// is overwritten.
func checkpointName(at time.Time) string {
	return fmt.Sprintf("checkpoint/%04d", at.Unix()/60%checkpointsKept)
}

// groupTopics returns every topic that a consumer group reads, sorted.
func groupTopics() []string {
	topics := map[string]bool{}
	for _, list := range topicsOf {
		for _, t := range list {
			topics[t] = true
		}
	}
	return slices.Sorted(maps.Keys(topics))
}

// readCheckpoint asks the brokers for the committed offsets of every group.
func readCheckpoint(ctx context.Context, admin *log.Admin) (c checkpoint, err error) {
	if c.Topics, err = admin.TopicIDs(ctx, groupTopics()...); err != nil {
		return c, err
	}
	c.Groups = positions{}
	for group := range topicsOf {
		at, err := admin.Committed(ctx, group)
		if err != nil {
			return c, err
		}
		for tp, offset := range at {
			c.Groups.put(group, tp.Topic, tp.Partition, offset)
		}
	}
	c.At = time.Now().UTC()
	return c, nil
}

// writeCheckpoint writes a checkpoint. If the function clock returns an error, the clock of this
// process is wrong. Then the time of the checkpoint would be wrong, so writeCheckpoint writes
// nothing and returns that error.
func writeCheckpoint(ctx context.Context, admin *log.Admin, meta engine.Meta, clock func() error) error {
	if err := clock(); err != nil {
		return err
	}
	c, err := readCheckpoint(ctx, admin)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return meta.PutMeta(ctx, checkpointName(c.At), raw)
}

// keepCheckpoints writes a checkpoint every minute until ctx ends.
func keepCheckpoints(ctx context.Context, n *Node) error {
	for ctx.Err() == nil {
		call, stop := context.WithTimeout(ctx, 30*time.Second)
		err := writeCheckpoint(call, n.admin, n.st.meta, n.clock.Err)
		stop()
		if err != nil && ctx.Err() == nil {
			n.log.Warn("the checkpoint of the consumer groups was not written; a restore would read more of the log again", "err", err)
		}
		notify.Sleep(ctx, checkpointEvery)
	}
	return nil
}

// readCheckpoints returns the stored checkpoints, newest first.
func readCheckpoints(ctx context.Context, meta engine.Meta) (all []checkpoint, err error) {
	for minute := range int64(checkpointsKept) {
		name := checkpointName(time.Unix(60*minute, 0))
		raw, err := meta.GetMeta(ctx, name)
		if err != nil {
			return nil, err
		}
		if raw == nil {
			continue
		}
		var c checkpoint
		if err := json.Unmarshal(raw, &c); err != nil {
			return nil, fmt.Errorf("the stored row %s cannot be decoded: %w", name, err)
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b checkpoint) int { return b.At.Compare(a.At) })
	return all, nil
}
