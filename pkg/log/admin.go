package log

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/notifyd/notifyd/pkg/setting"
)

// AdminConfig configures an Admin. The zero value of a field means its default.
type AdminConfig struct {
	Conn Conn
	// Replication of topics that EnsureTopics creates, and what Check wants at
	// least. Default: the brokers', and any.
	Replication int
	// MinInSync is min.insync.replicas of those topics: how many replicas have a
	// record when it is acknowledged. At most Replication. Default: the brokers'.
	MinInSync int
	// MaxRecordBytes is the largest record those topics must take. Default
	// 1,000,000, as ProducerConfig's.
	MaxRecordBytes int
	// Keep is how long records stay that were read: Check wants the brokers to keep
	// the offsets of groups as long. 0: Check does not look at that.
	Keep time.Duration
}

// Admin looks after topics and offsets. It may be used from any goroutine.
type Admin struct {
	cfg AdminConfig
	adm *kadm.Client
}

// NewAdmin returns an Admin. It does not connect.
func NewAdmin(cfg AdminConfig) (*Admin, error) {
	cfg.Conn = setting.Fill(cfg.Conn)
	cfg.MaxRecordBytes = cmp.Or(cfg.MaxRecordBytes, maxRecordBytes)
	switch {
	case cfg.Replication < 0 || cfg.MinInSync < 0 || cfg.Replication > math.MaxInt16:
		return nil, fmt.Errorf("stream: replication %d, min.insync.replicas %d", cfg.Replication, cfg.MinInSync)
	case cfg.Replication > 0 && cfg.MinInSync > cfg.Replication:
		return nil, fmt.Errorf("stream: min.insync.replicas %d of %d replicas: nothing could be appended", cfg.MinInSync, cfg.Replication)
	}
	if err := cfg.Conn.validate(); err != nil {
		return nil, err
	}
	cl, err := cfg.Conn.client()
	if err != nil {
		return nil, fmt.Errorf("stream: admin: %w", err)
	}
	return &Admin{cfg: cfg, adm: kadm.NewClient(cl)}, nil
}

// Close frees the connections.
func (a *Admin) Close() { a.adm.Close() }

// Partitions returns the number of partitions of each topic that exists.
func (a *Admin) Partitions(ctx context.Context, topics ...string) (map[string]int, error) {
	out := make(map[string]int, len(topics))
	err := a.eachTopic(ctx, topics, func(name string, d *kadm.TopicDetail) { out[name] = len(d.Partitions) })
	return out, err
}

// eachTopic calls fn with each of the topics that exists.
func (a *Admin) eachTopic(ctx context.Context, topics []string, fn func(name string, d *kadm.TopicDetail)) error {
	details, err := a.adm.ListTopics(ctx, a.cfg.Conn.wires(topics)...)
	if err != nil {
		return translate(err)
	}
	for _, d := range details {
		switch {
		case errors.Is(d.Err, kerr.UnknownTopicOrPartition):
		case d.Err != nil:
			return translate(d.Err)
		default:
			fn(a.cfg.Conn.own(d.Topic), &d)
		}
	}
	return nil
}

// StartOffsets returns the first offset held by each partition of topics.
func (a *Admin) StartOffsets(ctx context.Context, topics ...string) (map[TopicPartition]int64, error) {
	listed, err := a.adm.ListStartOffsets(ctx, a.cfg.Conn.wires(topics)...)
	return offsetsOf(&a.cfg.Conn, listed, err)
}

// EndOffsets returns the offset the next record of each partition will get.
func (a *Admin) EndOffsets(ctx context.Context, topics ...string) (map[TopicPartition]int64, error) {
	listed, err := a.adm.ListEndOffsets(ctx, a.cfg.Conn.wires(topics)...)
	return offsetsOf(&a.cfg.Conn, listed, err)
}

// OffsetsSince returns the offset of the first record of each partition whose time
// is at or after a time; its end where there is none.
func (a *Admin) OffsetsSince(ctx context.Context, at time.Time, topics ...string) (map[TopicPartition]int64, error) {
	listed, err := a.adm.ListOffsetsAfterMilli(ctx, at.UnixMilli(), a.cfg.Conn.wires(topics)...)
	return offsetsOf(&a.cfg.Conn, listed, err)
}

// Committed returns what a group has committed; partitions without a commit,
// and groups that do not exist, are missing.
func (a *Admin) Committed(ctx context.Context, group string) (map[TopicPartition]int64, error) {
	resps, err := a.adm.FetchOffsets(ctx, a.cfg.Conn.wire(group))
	if errors.Is(err, kerr.GroupIDNotFound) {
		return map[TopicPartition]int64{}, nil
	}
	if err == nil {
		err = resps.Error()
	}
	if err != nil {
		return nil, translate(err)
	}
	out := make(map[TopicPartition]int64)
	resps.Each(func(r kadm.OffsetResponse) {
		if r.At >= 0 {
			out[a.cfg.Conn.at(r.Topic, r.Partition)] = r.At
		}
	})
	return out, nil
}

// DeleteRecords removes the records below each offset for good.
func (a *Admin) DeleteRecords(ctx context.Context, below map[TopicPartition]int64) error {
	offsets := make(kadm.Offsets)
	for tp, at := range below {
		offsets.AddOffset(a.cfg.Conn.wire(tp.Topic), tp.Partition, at, -1)
	}
	resps, err := a.adm.DeleteRecords(ctx, offsets)
	if err == nil {
		err = resps.Error()
	}
	return translate(err)
}
