package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// DeadLetterGroup is the consumer group that indexes notifications-failed.
const DeadLetterGroup = "dead-letter-index"

// Indexer turns the records of notifications-failed into dead letters. A dead
// letter is an index row, derived: read twice, it is one.
type Indexer struct {
	Store     engine.DeadLetters
	Retention time.Duration // how long a dead letter is kept; default 30 days
	Logger    *slog.Logger
	// Decode reads records of other topics than notifications-failed, by topic.
	Decode map[string]func(value []byte) (engine.DeadLetter, error)
	// Undecodable is told of each record that is no failure this build reads. It
	// is passed over, not put aside: the topic keeps it. May be nil.
	Undecodable func(topic string)
}

// Assigned implements log.Handler.
func (x *Indexer) Assigned(ctx context.Context, _ log.TopicPartition) log.PartitionHandler {
	return indexPartition{x, ctx}
}

type indexPartition struct {
	x   *Indexer
	ctx context.Context
}

// Handle implements log.PartitionHandler.
func (p indexPartition) Handle(ctx context.Context, msgs []*log.Msg) error {
	ds := make([]engine.DeadLetter, 0, len(msgs))
	for _, m := range msgs {
		decode := deadLetter
		if f := p.x.Decode[m.Topic]; f != nil {
			decode = f
		}
		d, err := decode(m.Value)
		if errors.Is(err, notify.ErrNewer) {
			return err // the group stops the partition at m
		}
		if err != nil {
			p.x.Logger.Error("undecodable failure", "topic", m.Topic, "partition", m.Partition, "offset", m.Offset, "err", err)
			if f := p.x.Undecodable; f != nil {
				f(m.Topic)
			}
			continue
		}
		if d.Epoch > 0 && d.Channel != ChannelTrigger { // it failed before it was replayed
			was, err := p.x.Store.Get(ctx, d.ID, d.Epoch-1)
			switch {
			case err == nil:
				d.FirstFailed = was.FirstFailed
			case notify.KindOf(err) != notify.KindNotFound:
				return err
			}
		}
		d.State = engine.LetterDead
		d.Until = d.LastFailed + p.retention().Milliseconds()
		ds = append(ds, d)
	}
	if len(ds) > 0 {
		if err := p.x.Store.Put(ctx, ds); err != nil {
			return err // the group hands the batch over again
		}
	}
	for _, m := range msgs {
		m.Done()
	}
	return nil
}

func (p indexPartition) retention() time.Duration {
	if p.x.Retention > 0 {
		return p.x.Retention
	}
	return 30 * 24 * time.Hour
}

func deadLetter(value []byte) (engine.DeadLetter, error) {
	var f notify.Failure
	if err := json.Unmarshal(value, &f); err != nil {
		return engine.DeadLetter{}, err
	}
	if f.Version > 1 {
		return engine.DeadLetter{}, notify.Newer("a record of "+notify.TopicFailed, f.Version, 1)
	}
	if f.Version != 1 {
		return engine.DeadLetter{}, fmt.Errorf("schema version %d, this build reads 1", f.Version)
	}
	id, err := notify.ParseID(f.ID)
	if err != nil {
		return engine.DeadLetter{}, err
	}
	part, block, _ := strings.Cut(f.Chunk, ".")
	p, err := strconv.ParseUint(part, 10, 16)
	if err != nil {
		return engine.DeadLetter{}, fmt.Errorf("chunk %q: %w", f.Chunk, err)
	}
	b, err := strconv.ParseUint(block, 10, 32)
	if err != nil {
		return engine.DeadLetter{}, fmt.Errorf("chunk %q: %w", f.Chunk, err)
	}
	return engine.DeadLetter{
		ID: id, Epoch: uint16(f.Epoch), Caller: f.Caller, Campaign: f.Campaign, Channel: f.Channel,
		Category: f.Category, User: f.User, Template: f.Template, Class: f.Class, Code: f.Code,
		Provider: f.Provider, Attempts: f.Attempts, FirstFailed: f.Failed, LastFailed: f.Failed,
		Expires: f.Expires, Trace: f.Trace, Chunk: notify.Chunk{Base: id.Base, Partition: uint16(p), Block: uint32(b)},
		Topic: f.Topic, Partition: f.Partition, Offset: f.Offset,
	}, nil
}
