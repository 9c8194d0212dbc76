package app

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/log/embedded"
	"github.com/notifyd/notifyd/pkg/notify"
)

// watchStore returns an error at the first failure of the store's disk. The error ends the process.
// After such a failure this process does not know which data is durable. Only a new process, which
// reads the disk, can find out.
func (e *embeddedEngines) watchStore(ctx context.Context) error {
	select {
	case <-e.store.Failed():
		return e.store.Err()
	case <-ctx.Done():
		return nil
	}
}

// followHistory appends the records of the first-attempt topics to the history until ctx ends.
func (e *embeddedEngines) followHistory(ctx context.Context, admin *log.Admin, reader *log.Reader) error {
	starts, err := admin.StartOffsets(ctx, notify.FirstTopics()...)
	if err != nil {
		return err
	}
	from := make(map[log.TopicPartition]int64, len(starts))
	resume := e.history.Resume()
	for tp, start := range starts {
		at, ok := resume[history.Part(tp)]
		from[tp] = max(at, start)
		if !ok || at < start {
			e.history.Advance(history.Part(tp), start)
		}
	}
	return reader.Run(ctx, from, func(tp log.TopicPartition, recs []log.Record) error {
		hs := make([]history.Record, 0, len(recs))
		for i := range recs {
			if !recs[i].Lost() {
				hs = append(hs, history.RecordOf(tp, &recs[i]))
			}
		}
		if err := e.history.Append(ctx, hs...); err != nil {
			return err
		}
		if len(hs) < len(recs) { // lost records are not appended; Sync waits for their offsets too, so advance the position past them
			e.history.Advance(history.Part(tp), recs[len(recs)-1].Offset+1)
		}
		return nil
	})
}

// sealedOffsets returns an offset for each topic and partition: the history has sealed all records
// below it.
func (e *embeddedEngines) sealedOffsets() map[string]map[int32]int64 {
	out := map[string]map[int32]int64{}
	for p, at := range e.history.Sealed() {
		if out[p.Topic] == nil {
			out[p.Topic] = map[int32]int64{}
		}
		out[p.Topic][p.Partition] = at
	}
	return out
}

// loss describes records that the log has lost, and what the loss means for the topic's consumer
// group.
type loss struct {
	embedded.Loss
	group string // the group that consumes the topic; empty: no group of notifyd consumes it
	first bool   // true: the topic has first attempts, so the history keeps its records
}

// losses returns the ranges of records that the log has lost.
func (e *embeddedEngines) losses() (out []loss) {
	for _, l := range e.broker.Losses() {
		out = append(out, loss{l, groupOf(l.Topic), slices.Contains(notify.FirstTopics(), l.Topic)})
	}
	return out
}

// consumed returns how many of the lost records the group had processed and committed before the
// loss.
func (l *loss) consumed() int64 { return l.Below(l.Committed[l.group]) }

func (l loss) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%d: acknowledged records %d to %d (%d) are damaged and gone", l.Topic, l.Partition, l.From, l.To-1, l.Records())
	if l.group != "" {
		done := l.consumed()
		fmt.Fprintf(&b, ": %d consumed before (%s had committed %d), %d lost for good", done, l.group, l.Committed[l.group], l.Records()-done)
	}
	if missing := l.Records() - l.Below(l.Kept); l.first && missing > 0 {
		fmt.Fprintf(&b, "; %d not in the history", missing)
	}
	fmt.Fprintf(&b, "; found %s", l.Found.Format(time.RFC3339))
	if l.File != "" {
		fmt.Fprintf(&b, ", their bytes are in %s", l.File)
	}
	return b.String()
}

// positionsText describes which positions of the consumer groups were lost.
func (e *embeddedEngines) positionsText() string {
	if len(e.lostGroupPositions) == 0 {
		return "no consumer group has lost its position"
	}
	return fmt.Sprintf("positions lost: log/groups.log was removed or emptied before this start. %s. "+
		"What is still in the log was read again; what had been done was not done again", strings.Join(e.lostGroupPositions, ", "))
}

// isLost reports whether the embedded log has lost the record at offset because its files were damaged.
func (e *embeddedEngines) isLost(tp log.TopicPartition, offset int64) bool {
	for _, x := range e.broker.Losses() {
		if x.Topic == tp.Topic && x.Partition == tp.Partition && x.From <= offset && offset < x.To {
			return true
		}
	}
	return false
}
