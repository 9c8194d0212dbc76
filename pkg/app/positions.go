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

// The log keeps where each consumer group stands in one file. Without it a group
// would begin anew, as if nothing had ever been read: what was done is known by
// its rows and not done again, but nobody would hear that part of the data is
// gone. So the store keeps a copy, which a start compares.

// positions are offsets by group, then "topic/partition".
type positions map[string]map[string]int64

const (
	positionsName  = "positions"
	positionsEvery = 5 * time.Second
)

// lostPositions compares what the store remembers with what the log has. A
// position that is merely behind is that of a power cut; one that is not there
// was taken away.
func (e *embeddedEngines) lostPositions(ctx context.Context) (lost []string, err error) {
	raw, err := e.store.Meta().GetMeta(ctx, positionsName)
	if err != nil || raw == nil {
		return nil, err
	}
	var were positions
	if err := json.Unmarshal(raw, &were); err != nil {
		return nil, fmt.Errorf("the store's copy of the positions: %w", err)
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

func place(topic string, partition int32) string { return fmt.Sprintf("%s/%d", topic, partition) }

// positionsOf is what groups have committed; what stands at 0 has read nothing.
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
	p[group][place(topic, partition)] = at
}

// keepPositions writes the copy until ctx ends, and once then.
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
		case <-ctx.Done(): // the groups have ended, and committed for the last time
			all, err := e.broker.CommittedNow()
			if err != nil {
				return err
			}
			now = positionsOf(all)
		}
		raw, err := json.Marshal(now) // its keys are in order
		if err != nil {
			return err
		}
		if len(now) > 0 && string(raw) != last {
			if err := e.store.Meta().PutMeta(context.WithoutCancel(ctx), positionsName, raw); err == nil {
				last = string(raw)
			} else if e.store.Err() == nil { // a failed store ends the process by itself
				logger.Warn("keeping the positions", "err", err)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}
