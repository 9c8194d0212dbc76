package log

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// Cluster is the state of the brokers and of some topics, as the brokers reported it.
type Cluster struct {
	Brokers []Broker // ordered by id
	Topics  []Topic  // ordered by name; topics that do not exist are missing
	// OffsetsKept is how long the brokers keep the offsets of a group without members. It is the
	// shortest time of all brokers. 0: not known.
	OffsetsKept time.Duration
}

// Broker is one broker.
type Broker struct {
	ID      int32
	Addr    string // host:port, as the broker advertises it
	Rack    string // empty: none
	Version string // such as "v4.1", guessed from the requests that the broker supports; empty if it did not answer
	Err     error  // why the broker did not answer
}

// Topic is one topic.
type Topic struct {
	Name        string
	Partitions  int
	Replication int // lowest number of replicas that a partition has
	InSync      int // lowest number of in-sync replicas that a partition has
	// Leaderless lists the partitions without a leader. UnderReplicated lists the partitions with fewer
	// in-sync replicas than replicas.
	Leaderless, UnderReplicated []int32
	// Settings are the topic's settings by their names in Kafka: min.insync.replicas, retention.ms and
	// others. Empty: we are not allowed to read the settings.
	Settings map[string]string
}

// Describe returns the state of all brokers and of the given topics.
func (a *Admin) Describe(ctx context.Context, topics ...string) (Cluster, error) {
	var c Cluster
	meta, err := a.adm.Metadata(ctx, a.cfg.Conn.wireNames(topics)...)
	if err != nil {
		return c, translate(err)
	}
	versions, err := a.adm.ApiVersions(ctx)
	if err != nil {
		return c, translate(err)
	}
	for _, b := range meta.Brokers {
		out := Broker{ID: b.NodeID, Addr: fmt.Sprintf("%s:%d", b.Host, b.Port)}
		if b.Rack != nil {
			out.Rack = *b.Rack
		}
		v := versions[b.NodeID]
		if out.Err = v.Err; v.Err == nil && v.Raw() != nil {
			out.Version = v.VersionGuess()
		}
		c.Brokers = append(c.Brokers, out)
	}
	slices.SortFunc(c.Brokers, func(a, b Broker) int { return int(a.ID - b.ID) })
	for _, name := range meta.Topics.Names() {
		d := meta.Topics[name]
		switch {
		case errors.Is(d.Err, kerr.UnknownTopicOrPartition):
			continue
		case d.Err != nil:
			return c, translate(fmt.Errorf("%s: %w", name, d.Err))
		case slices.Contains(topics, a.cfg.Conn.productName(name)):
			t := describeTopic(&d)
			t.Name = a.cfg.Conn.productName(name)
			c.Topics = append(c.Topics, t)
		}
	}
	c.OffsetsKept = a.offsetsKept(ctx, c.Brokers)
	return c, a.settingsOf(ctx, c.Topics)
}

// offsetRetention is the name of the brokers' setting that determines Cluster.OffsetsKept.
const offsetRetention = "offsets.retention.minutes"

// offsetsKept returns the value of Cluster.OffsetsKept for these brokers. It returns 0 if we are
// not allowed to read the brokers' settings.
func (a *Admin) offsetsKept(ctx context.Context, brokers []Broker) (least time.Duration) {
	ids := make([]int32, len(brokers))
	for i := range brokers {
		ids[i] = brokers[i].ID
	}
	configs, err := a.adm.DescribeBrokerConfigs(ctx, ids...)
	if err != nil {
		return 0
	}
	for _, rc := range configs {
		for _, c := range rc.Configs {
			if c.Key != offsetRetention || c.Value == nil {
				continue
			}
			n, err := strconv.ParseInt(*c.Value, 10, 64)
			if kept := time.Duration(n) * time.Minute; err == nil && (least == 0 || kept < least) {
				least = kept
			}
		}
	}
	return least
}

func describeTopic(d *kadm.TopicDetail) Topic {
	t := Topic{Name: d.Topic, Partitions: len(d.Partitions)}
	for i, p := range d.Partitions.Sorted() {
		if i == 0 || len(p.ISR) < t.InSync {
			t.InSync = len(p.ISR)
		}
		if t.Replication == 0 || len(p.Replicas) < t.Replication {
			t.Replication = len(p.Replicas)
		}
		if p.Leader < 0 {
			t.Leaderless = append(t.Leaderless, p.Partition)
		}
		if len(p.ISR) < len(p.Replicas) {
			t.UnderReplicated = append(t.UnderReplicated, p.Partition)
		}
	}
	return t
}

func (a *Admin) settingsOf(ctx context.Context, topics []Topic) error {
	if len(topics) == 0 {
		return nil
	}
	names := make([]string, len(topics))
	for i := range topics {
		names[i] = a.cfg.Conn.wireName(topics[i].Name)
	}
	configs, err := a.adm.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return translate(err)
	}
	for i := range topics {
		t := &topics[i]
		t.Settings = make(map[string]string)
		rc, err := configs.On(names[i], nil)
		if err != nil || rc.Err != nil { // the usual cause is a missing permission; Check reports it
			continue
		}
		for _, c := range rc.Configs {
			if c.Value != nil && !c.Sensitive {
				t.Settings[c.Key] = *c.Value
			}
		}
	}
	return nil
}

// Finding is a problem of a cluster that an operator should know about or repair.
type Finding struct {
	Topic string // empty: the finding is about the cluster
	// Wrong is true if a guarantee does not hold, or the service does not run, until an operator
	// repairs the problem. If Wrong is false, the finding is only a warning.
	Wrong  bool
	Msg    string
	Repair string // what to do; empty: no advice
}

// Check compares the cluster with the wanted topics and returns the differences. The parameter want
// has the wanted number of partitions of each topic. The wanted settings are those that an Admin
// with the configuration cfg gives to new topics. Check sends nothing to the brokers. Findings
// about the whole cluster come first; findings about topics follow, sorted by topic.
func (c *Cluster) Check(cfg AdminConfig, want map[string]int) []Finding {
	cfg.MaxRecordBytes = cmp.Or(cfg.MaxRecordBytes, maxRecordBytes)
	var out []Finding
	add := func(topic string, wrong bool, repair, format string, args ...any) {
		out = append(out, Finding{topic, wrong, fmt.Sprintf(format, args...), repair})
	}
	for _, b := range c.Brokers {
		if b.Err != nil {
			add("", false, "Check the broker and the network connection to it.", "broker %d (%s) does not answer: %v", b.ID, b.Addr, b.Err)
		}
	}
	if cfg.Replication > len(c.Brokers) {
		add("", cfg.MinInSync > len(c.Brokers), "Start the missing brokers, or add brokers.",
			"%d replicas are wanted, but there are only %d brokers", cfg.Replication, len(c.Brokers))
	}
	if c.OffsetsKept > 0 && c.OffsetsKept < cfg.Keep {
		add("", false, fmt.Sprintf("Set %s of every broker to %d or more.", offsetRetention, int64(math.Ceil(cfg.Keep.Minutes()))),
			"%s is %d: if all workers are stopped for longer than %s, the brokers delete the workers' offsets, and the workers read the whole log of %s again",
			offsetRetention, int64(c.OffsetsKept/time.Minute), c.OffsetsKept, cfg.Keep)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		i := slices.IndexFunc(c.Topics, func(t Topic) bool { return t.Name == name })
		if i < 0 {
			add(name, true, "Run notifyd migrate up.", "the topic does not exist")
			continue
		}
		t := &c.Topics[i]
		if t.Partitions < want[name] {
			add(name, true, "Lower the configured number of partitions. Or stop intake, wait until all records of the topic are read, and add partitions.",
				"the topic has %d partitions, but %d are wanted", t.Partitions, want[name])
		}
		if len(t.Leaderless) > 0 {
			add(name, true, "Start the brokers that have these partitions.", "partitions without a leader: %v", t.Leaderless)
		}
		if len(t.UnderReplicated) > 0 {
			add(name, false, "Start the missing brokers; their replicas catch up by themselves.", "partitions with replicas that are not in sync: %v", t.UnderReplicated)
		}
		if t.Replication < cfg.Replication {
			add(name, true, "Give its partitions more replicas with kafka-reassign-partitions.", "the topic has %d replicas, but %d are wanted", t.Replication, cfg.Replication)
		}
		t.check(cfg, add)
	}
	return out
}

// check compares the topic's settings with those that cfg gives to a new topic. It calls the
// function add for each difference.
func (t *Topic) check(cfg AdminConfig, add func(topic string, wrong bool, repair, format string, args ...any)) {
	if len(t.Settings) == 0 {
		add(t.Name, false, "Allow notifyd's user to describe the configs of topics (DescribeConfigs).", "the topic's settings cannot be read")
		return
	}
	if least, err := strconv.Atoi(t.Settings["min.insync.replicas"]); err == nil && t.InSync < least && len(t.Leaderless) == 0 {
		add(t.Name, true, "Start the missing brokers; their replicas catch up by themselves.",
			"only %d replicas are in sync, but min.insync.replicas is %d: the brokers refuse appends", t.InSync, least)
	}
	want := cfg.settings(t.Name)
	alter := func(key string) string {
		return fmt.Sprintf("kafka-configs --alter --entity-type topics --entity-name %s --add-config %s=%s", cfg.Conn.wireName(t.Name), key, want[key])
	}
	if p := t.Settings["cleanup.policy"]; strings.Contains(p, "compact") {
		add(t.Name, true, alter("cleanup.policy"), "cleanup.policy is %s: all of a user's records except the last would be deleted", p)
	}
	if u := t.Settings["unclean.leader.election.enable"]; u == "true" {
		add(t.Name, true, alter("unclean.leader.election.enable"), "an unclean leader may be elected: acknowledged records would be lost")
	}
	less := func(key string, wrong bool, why string) {
		has, err := strconv.ParseInt(t.Settings[key], 10, 64)
		least, werr := strconv.ParseInt(want[key], 10, 64)
		switch {
		case err != nil || werr != nil:
		case has < least && !(has == -1 && strings.HasPrefix(key, "retention.")),
			least == -1 && has != -1:
			add(t.Name, wrong, alter(key), "%s is %d, but %d is wanted: %s", key, has, least, why)
		}
	}
	less("min.insync.replicas", true, "an acknowledged record may have fewer replicas than wanted")
	less("max.message.bytes", true, "the brokers would refuse large records")
	less("retention.ms", want["retention.ms"] == "-1", "the brokers delete older records even if nobody has read them, so a lane that is stopped for longer loses records")
	less("retention.bytes", false, "in a burst the brokers may delete unread records")
}
