package log

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/notifyd/notifyd/pkg/notify"
)

// topicTriggersDLQ is the topic of triggers that have failed for good.
const topicTriggersDLQ = "triggers-dlq"

// Topics returns every topic of the product with its number of partitions in a cluster. Each lane
// of a channel and its -dlq topic have perChannel[channel] partitions. If perChannel has no number
// for the channel, they have 18 partitions for push, 12 for sms and 84 for email. The topic
// notifications-failed has 6 partitions. Each of the other topics has one partition: those for
// outcomes and poison, and triggers-dlq.
func Topics(perChannel map[notify.Channel]int) map[string]int {
	ts := map[string]int{notify.TopicFailed: 6, notify.TopicOutcomes: 1, notify.TopicPoison: 1, topicTriggersDLQ: 1}
	for _, l := range notify.Lanes() {
		n := cmp.Or(perChannel[l.Channel], defaultPartitions[l.Channel])
		ts[l.Topic()], ts[l.DLQTopic()] = n, n
	}
	return ts
}

var defaultPartitions = map[notify.Channel]int{notify.Push: 18, notify.SMS: 12, notify.Email: 84}

// keepPoison is how long the poison topic keeps records, so that people can inspect them. The
// records of all other topics are read by consumer groups. They stay until we delete them, because
// a broker's retention does not know which records are unread.
const keepPoison = 30 * 24 * time.Hour

// settings returns the settings with which a topic is created, except the numbers of partitions and
// replicas.
func (c *AdminConfig) settings(topic string) map[string]string {
	keep := int64(-1)
	if topic == notify.TopicPoison {
		keep = keepPoison.Milliseconds()
	}
	s := map[string]string{
		"cleanup.policy":    "delete",
		"retention.ms":      strconv.FormatInt(keep, 10),
		"retention.bytes":   "-1", // with a limit, a burst could remove unread records
		"max.message.bytes": strconv.Itoa(c.MaxRecordBytes + batchOverhead),
		"compression.type":  "producer", // the broker stores batches unchanged
		// A replica that does not have all records must not become the leader, because acknowledged
		// records would be lost.
		"unclean.leader.election.enable": "false",
	}
	if c.MinInSync > 0 {
		s["min.insync.replicas"] = strconv.Itoa(c.MinInSync)
	}
	return s
}

// EnsureTopics creates the missing topics with the given numbers of partitions and waits until all
// topics have leaders. It returns the names of the topics that it created, sorted. It may be called
// again, and several processes may call it at the same time.
//
// EnsureTopics does not change an existing topic. If an existing topic has too few partitions,
// EnsureTopics creates the missing topics and then returns KindConflict with the error code
// "topic_partitions"; see Grow. An existing topic may have more partitions. EnsureTopics does not
// compare other settings; see Check. It returns KindInvalid for a number below 1.
func (a *Admin) EnsureTopics(ctx context.Context, topics map[string]int) (created []string, err error) {
	for t, n := range topics {
		if n < 1 {
			return nil, notify.Invalid("bad_partitions", "partitions", fmt.Sprintf("topic %s must have at least 1 partition, not %d", t, n))
		}
	}
	there, err := a.Partitions(ctx, slices.Collect(maps.Keys(topics))...)
	if err != nil {
		return nil, err
	}
	replication := int16(-1)
	if a.cfg.Replication > 0 {
		replication = int16(a.cfg.Replication)
	}
	var errs []error
	for _, t := range slices.Sorted(maps.Keys(topics)) {
		if _, ok := there[t]; ok {
			continue
		}
		configs := make(map[string]*string)
		for k, v := range a.cfg.settings(t) {
			configs[k] = &v
		}
		r, err := a.adm.CreateTopic(ctx, int32(topics[t]), replication, configs, a.cfg.Conn.wireName(t))
		switch {
		case err == nil:
			created = append(created, t)
		case errors.Is(err, kerr.TopicAlreadyExists): // another process was faster
		case r.ErrMessage != "":
			errs = append(errs, fmt.Errorf("creating topic %s: %w (%s)", t, err, r.ErrMessage))
		default:
			errs = append(errs, fmt.Errorf("creating topic %s: %w", t, err))
		}
	}
	if len(errs) > 0 {
		return created, translate(errors.Join(errs...))
	}
	some := map[string]int{} // at least 1, because an existing topic may have fewer partitions than wanted
	for t := range topics {
		some[t] = 1
	}
	if err := a.waitForLeaders(ctx, some); err != nil {
		return created, err
	}
	if there, err = a.Partitions(ctx, slices.Collect(maps.Keys(topics))...); err != nil {
		return created, err
	}
	var few []string
	for _, t := range slices.Sorted(maps.Keys(topics)) {
		if there[t] < topics[t] {
			few = append(few, fmt.Sprintf("%s has %d partitions, but %d are wanted", t, there[t], topics[t]))
		}
	}
	if len(few) > 0 {
		return created, &notify.Error{Kind: notify.KindConflict, Code: "topic_partitions", Msg: strings.Join(few, "; ")}
	}
	return created, nil
}

// Grow adds partitions to each topic that has fewer partitions than the number target. It handles
// the topics in the given order, and then waits until all partitions have leaders. Grow may be
// called again, and several processes may call it at the same time. If brokers do not answer, Grow
// retries for up to growTimeout, because the brokers need time to create many partitions.
//
// After Grow, a producer that hashes keys over the topic's number of partitions sends keys to other
// partitions. So a producer that must keep each user's records in order must set
// ProducerConfig.Partitions.
func (a *Admin) Grow(ctx context.Context, target int, topics ...string) error {
	ctx, stop := context.WithTimeout(ctx, growTimeout)
	defer stop()
	for pause := (notify.Pause{Most: time.Second}); ; {
		err := a.grow(ctx, target, topics)
		if notify.KindOf(err) != notify.KindUnavailable || !pause.Wait(ctx) {
			return err
		}
	}
}

// growTimeout bounds Grow.
const growTimeout = time.Minute

func (a *Admin) grow(ctx context.Context, partitions int, topics []string) error {
	there, err := a.Partitions(ctx, topics...)
	if err != nil {
		return err
	}
	want := map[string]int{}
	for _, t := range topics {
		want[t] = max(partitions, there[t])
		if there[t] >= partitions {
			continue
		}
		resps, err := a.adm.UpdatePartitions(ctx, partitions, a.cfg.Conn.wireName(t))
		if err == nil {
			err = resps.Error()
		}
		if errors.Is(err, kerr.InvalidPartitions) { // another process may have been faster
			if there, lerr := a.Partitions(ctx, t); lerr == nil && there[t] >= partitions {
				continue
			}
		}
		if err != nil {
			return translate(fmt.Errorf("adding partitions to topic %s: %w", t, err))
		}
	}
	return a.waitForLeaders(ctx, want)
}

// waitForLeaders waits until each topic has at least the given number of partitions and each partition
// has a leader. For a short time after partitions were created, brokers report no leader.
func (a *Admin) waitForLeaders(ctx context.Context, topics map[string]int) error {
	for {
		details, err := a.adm.ListTopics(ctx, a.cfg.Conn.wireNames(slices.Collect(maps.Keys(topics)))...)
		if err != nil {
			return translate(err)
		}
		missing := ""
		for t := range topics {
			d, ok := details[a.cfg.Conn.wireName(t)]
			if !ok || d.Err != nil || len(d.Partitions) < max(topics[t], 1) {
				missing = t
			}
			for _, p := range d.Partitions {
				if p.Err != nil || p.Leader < 0 {
					missing = TopicPartition{t, p.Partition}.String()
				}
			}
		}
		if missing == "" {
			return nil
		}
		if !notify.Sleep(ctx, 50*time.Millisecond) {
			return translate(fmt.Errorf("waiting for a leader of %s: %w", missing, ctx.Err()))
		}
	}
}
