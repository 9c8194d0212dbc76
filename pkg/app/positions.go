package app

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/log"
)

// The log keeps the committed offsets of the consumer groups in one file. Without the file each group
// would start at the first record. Finished work would not be repeated, because its outcome rows exist.
// But the loss of data would stay unnoticed. So the store keeps a copy of the committed offsets, and
// each start compares the file with the copy.

// positions holds committed offsets. The first key is the group, the second key is "topic/partition".
type positions map[string]map[string]int64

const (
	positionsName  = "positions"
	positionsEvery = 5 * time.Second
)

// lostPositions returns the positions that the store's copy has and the log lacks. A position in the
// log that is lower than in the copy is not a loss, because a power cut can cause it. A missing
// position means that the file was removed or emptied.
func (e *embeddedEngines) lostPositions(ctx context.Context) (lost []string, err error) {
	raw, err := e.store.Meta().GetMeta(ctx, positionsName)
	if err != nil || raw == nil {
		return nil, err
	}
	var were positions
	if err := json.Unmarshal(raw, &were); err != nil {
		return nil, fmt.Errorf("the store's copy of the positions cannot be decoded: %w", err)
	}
	have := positionsOf(e.broker.Committed())
	for _, group := range slices.Sorted(maps.Keys(were)) {
		for _, at := range slices.Sorted(maps.Keys(were[group])) {
			if _, ok := have[group][at]; !ok {
				lost = append(lost, fmt.Sprintf("%s at %s (it stood at %d)", group, at, were[group][at]))
			}
		}
	}
	return lost, nil
}

func partitionKey(topic string, partition int32) string {
	return fmt.Sprintf("%s/%d", topic, partition)
}

// positionsOf returns the committed offsets of a map whose keys are group, topic and partition. It
// omits offsets that are 0, because the group has read nothing there.
func positionsOf(groups map[string]map[string]map[int32]int64) positions {
	out := positions{}
	for group, topics := range groups {
		for topic, parts := range topics {
			for part, at := range parts {
				out.put(group, topic, part, at)
			}
		}
	}
	return out
}

func (p positions) put(group, topic string, partition int32, at int64) {
	if at <= 0 {
		return
	}
	if p[group] == nil {
		p[group] = map[string]int64{}
	}
	p[group][partitionKey(topic, partition)] = at
}

// keepPositions writes the copy of the committed offsets to the store every positionsEvery until
// ctx ends. After that it writes the copy one last time.
func (e *embeddedEngines) keepPositions(ctx context.Context, gs *groups, logger *slog.Logger) error {
	tick := time.NewTicker(positionsEvery)
	defer tick.Stop()
	var last string
	for {
		now := positions{}
		select {
		case <-tick.C:
			gs.partitions(func(group string, p *log.PartitionStats) {
				now.put(group, p.TP.Topic, p.TP.Partition, p.Committed)
			})
		case <-ctx.Done(): // the groups have ended and have made their last commits
			all, err := e.broker.CommittedNow()
			if err != nil {
				return err
			}
			now = positionsOf(all)
		}
		raw, err := json.Marshal(now) // the keys are sorted, so equal positions give equal bytes
		if err != nil {
			return err
		}
		if len(now) > 0 && string(raw) != last {
			if err := e.store.Meta().PutMeta(context.WithoutCancel(ctx), positionsName, raw); err == nil {
				last = string(raw)
			} else if e.store.Err() == nil { // if the store has failed, watchStore ends the process
				logger.Warn("the copy of the groups' positions was not stored; the next write tries again", "err", err)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}
