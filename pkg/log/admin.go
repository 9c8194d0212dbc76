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
	// Replication is the number of replicas of topics that EnsureTopics creates. Check requires at
	// least this number. 0: the brokers' default, and Check requires no minimum.
	Replication int
	// MinInSync is min.insync.replicas of the topics that EnsureTopics creates. The brokers acknowledge
	// a record only while at least this number of replicas are in sync. It is at most Replication. 0:
	// the brokers' default.
	MinInSync int
	// MaxRecordBytes is the size in bytes of the largest record that these topics must accept. Default
	// 1,000,000, as in ProducerConfig.
	MaxRecordBytes int
	// Keep is how long records are kept after they were read. Check requires that the brokers keep the
	// offsets of groups for at least this time. 0: Check does not compare the two times.
	Keep time.Duration
}

// Admin manages topics and offsets. It may be used from any goroutine.
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
		return nil, fmt.Errorf("log: Replication is %d and MinInSync is %d: each must be from 0 to %d", cfg.Replication, cfg.MinInSync, math.MaxInt16)
	case cfg.Replication > 0 && cfg.MinInSync > cfg.Replication:
		return nil, fmt.Errorf("log: MinInSync is %d, but there are only %d replicas: nothing could be appended", cfg.MinInSync, cfg.Replication)
	}
	if err := cfg.Conn.validate(); err != nil {
		return nil, err
	}
	cl, err := cfg.Conn.client()
	if err != nil {
		return nil, fmt.Errorf("log: creating the admin client: %w", err)
	}
	return &Admin{cfg: cfg, adm: kadm.NewClient(cl)}, nil
}

// Close frees the connections.
func (a *Admin) Close() { a.adm.Close() }

// Partitions returns the number of partitions of each topic. Topics that do not exist are missing in
// the result.
func (a *Admin) Partitions(ctx context.Context, topics ...string) (map[string]int, error) {
	out := make(map[string]int, len(topics))
	err := a.eachTopic(ctx, topics, func(name string, d *kadm.TopicDetail) { out[name] = len(d.Partitions) })
	return out, err
}

// eachTopic calls the function fn for each of the given topics that exists.
func (a *Admin) eachTopic(ctx context.Context, topics []string, fn func(name string, d *kadm.TopicDetail)) error {
	details, err := a.adm.ListTopics(ctx, a.cfg.Conn.wireNames(topics)...)
	if err != nil {
		return translate(err)
	}
	for _, d := range details {
		switch {
		case errors.Is(d.Err, kerr.UnknownTopicOrPartition):
		case d.Err != nil:
			return translate(d.Err)
		default:
			fn(a.cfg.Conn.productName(d.Topic), &d)
		}
	}
	return nil
}

// StartOffsets returns the first offset of each partition of the given topics.
func (a *Admin) StartOffsets(ctx context.Context, topics ...string) (map[TopicPartition]int64, error) {
	listed, err := a.adm.ListStartOffsets(ctx, a.cfg.Conn.wireNames(topics)...)
	return offsetsOf(&a.cfg.Conn, listed, err)
}

// EndOffsets returns the end of each partition of the given topics. The end is the offset of the
// next record.
func (a *Admin) EndOffsets(ctx context.Context, topics ...string) (map[TopicPartition]int64, error) {
	listed, err := a.adm.ListEndOffsets(ctx, a.cfg.Conn.wireNames(topics)...)
	return offsetsOf(&a.cfg.Conn, listed, err)
}

// OffsetsSince returns an offset for each partition of the given topics: the offset of the first
// record whose time is the parameter earliest or later. If a partition has no such record, the
// offset is the end of the partition.
func (a *Admin) OffsetsSince(ctx context.Context, earliest time.Time, topics ...string) (map[TopicPartition]int64, error) {
	listed, err := a.adm.ListOffsetsAfterMilli(ctx, earliest.UnixMilli(), a.cfg.Conn.wireNames(topics)...)
	return offsetsOf(&a.cfg.Conn, listed, err)
}

// Committed returns the committed offsets of a group. Partitions without a commit are missing in the
// result. If the group does not exist, the result is empty.
func (a *Admin) Committed(ctx context.Context, group string) (map[TopicPartition]int64, error) {
	resps, err := a.adm.FetchOffsets(ctx, a.cfg.Conn.wireName(group))
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
			out[a.cfg.Conn.fromWire(r.Topic, r.Partition)] = r.At
		}
	})
	return out, nil
}

// DeleteRecords permanently removes the records below the given offset of each partition.
func (a *Admin) DeleteRecords(ctx context.Context, below map[TopicPartition]int64) error {
	offsets := make(kadm.Offsets)
	for tp, at := range below {
		offsets.AddOffset(a.cfg.Conn.wireName(tp.Topic), tp.Partition, at, -1)
	}
	resps, err := a.adm.DeleteRecords(ctx, offsets)
	if err == nil {
		err = resps.Error()
	}
	return translate(err)
}
