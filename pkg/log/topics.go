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

// topicTriggersDLQ is the topic of triggers that failed for good.
const topicTriggersDLQ = "triggers-dlq"

// Topics returns every topic of the product with its number of partitions on a
// cluster: perChannel for the lanes of a channel and their -dlq, where it has the
// channel, else 18 for push, 12 for sms and 84 for email. What failed for good
// has 6; outcomes, poison and triggers-dlq have one.
func Topics(perChannel map[notify.Channel]int) map[string]int {
	ts := map[string]int{notify.TopicFailed: 6, notify.TopicOutcomes: 1, notify.TopicPoison: 1, topicTriggersDLQ: 1}
	for _, l := range notify.Lanes() {
		n := cmp.Or(perChannel[l.Channel], defaultPartitions[l.Channel])
		ts[l.Topic()], ts[l.DLQTopic()] = n, n
	}
	return ts
}

var defaultPartitions = map[notify.Channel]int{notify.Push: 18, notify.SMS: 12, notify.Email: 84}

// keepPoison is how long records stay that no worker could read, for people to look
// at. All other topics are read by groups of the product and keep records until we
// delete them: a broker's retention does not know which records are unread.
const keepPoison = 30 * 24 * time.Hour

// settings are what a topic is created with, besides partitions and replicas.
func (c *AdminConfig) settings(topic string) map[string]string {
	keep := int64(-1)
	if topic == notify.TopicPoison {
		keep = keepPoison.Milliseconds()
	}
	s := map[string]string{
		"cleanup.policy":    "delete",
		"retention.ms":      strconv.FormatInt(keep, 10),
		"retention.bytes":   "-1", // else a burst would take with it what nobody has read yet
		"max.message.bytes": strconv.Itoa(c.MaxRecordBytes + batchOverhead),
		"compression.type":  "producer", // the broker stores batches as they came
		// A replica that lags must not become the leader: what was acknowledged
		// would be gone.
		"unclean.leader.election.enable": "false",
	}
	if c.MinInSync > 0 {
		s["min.insync.replicas"] = strconv.Itoa(c.MinInSync)
	}
	return s
}

// EnsureTopics creates the topics that are missing, with these partition counts,
// and returns their names, sorted. It returns when all of topics have leaders. It
// may be called again, and by several at once.
//
// A topic that exists is left as it is. One with fewer partitions than wanted is
// an error (KindConflict, code "topic_partitions"), after the others were created:
// see Grow. More partitions are fine. Other settings that differ: see Check.
// KindInvalid: a count below 1.
func (a *Admin) EnsureTopics(ctx context.Context, topics map[string]int) (created []string, err error) {
	for t, n := range topics {
		if n < 1 {
			return nil, notify.Invalid("bad_partitions", "partitions", fmt.Sprintf("%d partitions for %s", n, t))
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
		r, err := a.adm.CreateTopic(ctx, int32(topics[t]), replication, configs, a.cfg.Conn.wire(t))
		switch {
		case err == nil:
			created = append(created, t)
		case errors.Is(err, kerr.TopicAlreadyExists): // somebody else was faster
		case r.ErrMessage != "":
			errs = append(errs, fmt.Errorf("creating %s: %w (%s)", t, err, r.ErrMessage))
		default:
			errs = append(errs, fmt.Errorf("creating %s: %w", t, err))
		}
	}
	if len(errs) > 0 {
		return created, translate(errors.Join(errs...))
	}
	some := map[string]int{} // one that was there may have fewer than wanted
	for t := range topics {
		some[t] = 1
	}
	if err := a.led(ctx, some); err != nil {
		return created, err
	}
	if there, err = a.Partitions(ctx, slices.Collect(maps.Keys(topics))...); err != nil {
		return created, err
	}
	var few []string
	for _, t := range slices.Sorted(maps.Keys(topics)) {
		if there[t] < topics[t] {
			few = append(few, fmt.Sprintf("%s has %d partitions, %d are wanted", t, there[t], topics[t]))
		}
	}
	if len(few) > 0 {
		return created, &notify.Error{Kind: notify.KindConflict, Code: "topic_partitions", Msg: strings.Join(few, "; ")}
	}
	return created, nil
}

// Grow adds partitions to those of the topics that have fewer than wanted, in the order
// given, and returns when all have leaders. It may be called again, and by several at once.
// Brokers that do not answer are asked again for a while, for making many partitions takes
// them time.
// What is appended by the number of partitions a topic has goes to others from then on:
// Producers that must keep a user's records in order have ProducerConfig.Partitions.
func (a *Admin) Grow(ctx context.Context, partitions int, topics ...string) error {
	ctx, stop := context.WithTimeout(ctx, growTimeout)
	defer stop()
	for pause := (notify.Pause{Most: time.Second}); ; {
		err := a.grow(ctx, partitions, topics)
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
		resps, err := a.adm.UpdatePartitions(ctx, partitions, a.cfg.Conn.wire(t))
		if err == nil {
			err = resps.Error()
		}
		if errors.Is(err, kerr.InvalidPartitions) { // another process may have been faster
			if there, lerr := a.Partitions(ctx, t); lerr == nil && there[t] >= partitions {
				continue
			}
		}
		if err != nil {
			return translate(fmt.Errorf("adding partitions to %s: %w", t, err))
		}
	}
	return a.led(ctx, want)
}

// led waits until topics have so many partitions, and each has a leader that is known:
// right after they are made brokers still answer that there is none.
func (a *Admin) led(ctx context.Context, topics map[string]int) error {
	for {
		details, err := a.adm.ListTopics(ctx, a.cfg.Conn.wires(slices.Collect(maps.Keys(topics)))...)
		if err != nil {
			return translate(err)
		}
		missing := ""
		for t := range topics {
			d, ok := details[a.cfg.Conn.wire(t)]
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
			return translate(fmt.Errorf("%s has no leader: %w", missing, ctx.Err()))
		}
	}
}
