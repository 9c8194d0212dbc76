package stream

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/notify"
)

// AdminConfig configures an Admin. The zero value of a field means its default.
type AdminConfig struct {
	Conn Conn
	// Replication of topics that EnsureTopics creates. Default: the brokers'.
	Replication int
	// MinInSync is min.insync.replicas of those topics. Default: the brokers'.
	MinInSync int
	// MaxRecordBytes is the largest record those topics must take. Default
	// 1,000,000, as ProducerConfig's.
	MaxRecordBytes int
}

// Admin looks after topics and offsets. It may be used from any goroutine.
type Admin struct {
	cfg AdminConfig
	adm *kadm.Client
}

// NewAdmin returns an Admin. It does not connect.
func NewAdmin(cfg AdminConfig) (*Admin, error) {
	cfg.Conn = cfg.Conn.withDefaults()
	if cfg.MaxRecordBytes == 0 {
		cfg.MaxRecordBytes = maxRecordBytes
	}
	if cfg.Replication == 0 {
		cfg.Replication = -1
	}
	if err := cfg.Conn.validate(); err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(cfg.Conn.options()...)
	if err != nil {
		return nil, fmt.Errorf("stream: admin: %w", err)
	}
	return &Admin{cfg: cfg, adm: kadm.NewClient(cl)}, nil
}

// Close frees the connections.
func (a *Admin) Close() { a.adm.Close() }

// EnsureTopics creates the topics that are missing, with these partition
// counts. A topic that exists is left as it is, even with another count: keys
// would move to other partitions. Compare with Partitions.
func (a *Admin) EnsureTopics(ctx context.Context, topics map[string]int) error {
	configs := map[string]*string{
		"cleanup.policy":    new("delete"),
		"max.message.bytes": new(strconv.Itoa(a.cfg.MaxRecordBytes + batchOverhead)),
	}
	if a.cfg.MinInSync > 0 {
		configs["min.insync.replicas"] = new(strconv.Itoa(a.cfg.MinInSync))
	}
	byCount := make(map[int][]string)
	for t, n := range topics {
		byCount[n] = append(byCount[n], t)
	}
	var errs []error
	for n, ts := range byCount {
		if n < 1 {
			return notify.Invalid("bad_partitions", "partitions", fmt.Sprintf("%d partitions for %v", n, ts))
		}
		resps, err := a.adm.CreateTopics(ctx, int32(n), int16(a.cfg.Replication), configs, ts...)
		if err != nil {
			return translate(err)
		}
		for _, r := range resps {
			if r.Err != nil && !errors.Is(r.Err, kerr.TopicAlreadyExists) {
				errs = append(errs, fmt.Errorf("creating %s: %w (%s)", r.Topic, r.Err, r.ErrMessage))
			}
		}
	}
	return translate(errors.Join(errs...))
}

// Partitions returns the number of partitions of each topic that exists.
func (a *Admin) Partitions(ctx context.Context, topics ...string) (map[string]int, error) {
	details, err := a.adm.ListTopics(ctx, topics...)
	if err != nil {
		return nil, translate(err)
	}
	out := make(map[string]int, len(topics))
	for _, d := range details {
		switch {
		case errors.Is(d.Err, kerr.UnknownTopicOrPartition):
		case d.Err != nil:
			return nil, translate(d.Err)
		default:
			out[d.Topic] = len(d.Partitions)
		}
	}
	return out, nil
}

// StartOffsets returns the first offset held by each partition of topics.
func (a *Admin) StartOffsets(ctx context.Context, topics ...string) (map[TopicPartition]int64, error) {
	return offsetsOf(a.adm.ListStartOffsets(ctx, topics...))
}

// EndOffsets returns the offset the next record of each partition will get.
func (a *Admin) EndOffsets(ctx context.Context, topics ...string) (map[TopicPartition]int64, error) {
	return offsetsOf(a.adm.ListEndOffsets(ctx, topics...))
}

// Committed returns what a group has committed; partitions without a commit,
// and groups that do not exist, are missing.
func (a *Admin) Committed(ctx context.Context, group string) (map[TopicPartition]int64, error) {
	resps, err := a.adm.FetchOffsets(ctx, group)
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
			out[TopicPartition{r.Topic, r.Partition}] = r.At
		}
	})
	return out, nil
}

// DeleteRecords removes the records below each offset for good.
func (a *Admin) DeleteRecords(ctx context.Context, below map[TopicPartition]int64) error {
	offsets := make(kadm.Offsets)
	for tp, at := range below {
		offsets.AddOffset(tp.Topic, tp.Partition, at, -1)
	}
	resps, err := a.adm.DeleteRecords(ctx, offsets)
	if err == nil {
		err = resps.Error()
	}
	return translate(err)
}
