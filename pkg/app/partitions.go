package app

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/worker"
)

// The number of partitions of a channel's topics can be raised while processes run. notifyd migrate up
// adds the partitions in Kafka, and stores in a row the time from which they are used. Every process
// reads the row well before that time (cluster.Spread). From that time on, the producer spreads users
// over all partitions (log.ProducerConfig.Partitions). The users of a new partition came from an old
// partition. The new partition waits until the old partition has finished the earlier records of these
// users (worker.Opening).

// partitionsMeta returns the name of the row of engine.Meta with the number of partitions over which
// the users of a channel are spread.
func partitionsMeta(ch notify.Channel) string { return "log_partitions_" + ch.String() }

// partitionsEvery is the time between two reads of the rows. When the number of partitions is
// raised, the clocks of two processes may differ by at most partitionsSettle. A new partition waits for
// this time and for the longest append. If the clocks differ by more, the notifications of a user
// may be delivered in the wrong order.
const (
	partitionsEvery  = 10 * time.Second
	partitionsSettle = 500 * time.Millisecond
)

// spreads holds, for each channel, the number of partitions over which its users are spread.
type spreads map[notify.Channel]*cluster.Spread

// topicsOfChannel returns the topics of a channel. A raise adds the partitions of retries first, so
// that they exist before a record of a new lane partition can fail.
func topicsOfChannel(ch notify.Channel) (retries, lanes []string) {
	for _, l := range notify.Lanes() {
		if l.Channel == ch {
			retries, lanes = append(retries, l.DLQTopic()), append(lanes, l.Topic())
		}
	}
	return retries, lanes
}

// fewestPartitions returns the smallest number of partitions that one of the topics has.
func fewestPartitions(have map[string]int, topics []string) int {
	n := have[topics[0]]
	for _, t := range topics {
		n = min(n, have[t])
	}
	return n
}

// openPartitions reads the number of partitions over which the users of each channel are spread. Before
// the first raise this is the number of partitions in Kafka. If Kafka has fewer partitions than the
// stored number, openPartitions returns not_migrated.
func openPartitions(ctx context.Context, meta engine.Meta, admin *log.Admin) (spreads, error) {
	out := spreads{}
	for _, ch := range notify.Channels {
		retries, lanes := topicsOfChannel(ch)
		topics := slices.Concat(retries, lanes)
		made := func(ctx context.Context) (int, error) {
			have, err := admin.Partitions(ctx, topics...)
			return fewestPartitions(have, lanes), err
		}
		n, err := made(ctx)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, notMigrated("the topics of " + ch.String())
		}
		s, err := cluster.OpenSpread(ctx, meta, partitionsMeta(ch), n, false)
		if err != nil {
			return nil, err
		}
		if most := s.Last().Most(); n < most {
			return nil, notMigrated(fmt.Sprintf("a partition of each topic of %s from %d to %d", ch, n, most-1))
		}
		s.MadeBefore(made)
		out[ch] = s
	}
	return out, nil
}

// ofTopics returns the spreads by topic. It includes the topics of lanes and of retries.
func (s spreads) ofTopics() map[string]*cluster.Spread {
	out := map[string]*cluster.Spread{}
	for _, l := range notify.Lanes() {
		out[l.Topic()], out[l.DLQTopic()] = s[l.Channel], s[l.Channel]
	}
	return out
}

// usePartitions makes the stages use the numbers of partitions in s.
func usePartitions(n *Node, s spreads) {
	of := s.ofTopics()
	n.servers.partitions = s
	n.st.spread = func(topic string) notify.Spread {
		if s := of[topic]; s != nil {
			return s.Last()
		}
		return notify.Spread{} // no lane reads this topic
	}
	first := map[string]bool{}
	for _, t := range notify.FirstTopics() {
		first[t] = true
	}
	n.st.partitions = func(topic string) (int, error) {
		if !first[topic] {
			return 0, nil
		}
		spread, err := of[topic].Now()
		return spread.PartsAt(time.Now()), err
	}
	for _, ch := range notify.Channels {
		if want, most := n.cfg.partitions(ch), s[ch].Last().Most(); want > most {
			n.log.Warn("users are spread over fewer partitions than configured; notifyd migrate up raises their number", "log.partitions."+ch.String(), want, "partitions", most)
		}
	}
}

// follow reads the numbers of partitions every partitionsEvery until ctx ends. It calls the
// function roundDone after each round, and the function warn with each error.
func (s spreads) follow(ctx context.Context, roundDone func(), warn func(error)) error {
	for notify.Sleep(ctx, partitionsEvery) {
		call, stop := context.WithTimeout(ctx, partitionsEvery/2)
		for _, ch := range notify.Channels {
			if err := s[ch].Follow(call); err != nil && ctx.Err() == nil {
				warn(fmt.Errorf("partitions of %s: %w", ch, err))
			}
		}
		stop()
		roundDone()
	}
	return nil
}

// openingOf returns the Opening that delays new partitions of a lane. With embedded engines it returns
// nil, because their numbers of partitions are never raised.
func openingOf(n *Node, l notify.Lane) *worker.Opening {
	if n.servers == nil {
		return nil
	}
	return &worker.Opening{
		Spread: func() notify.Spread { return n.st.spread(l.Topic()) }, Offsets: n.admin, Group: l.Group(),
		Settle: n.cfg.Kafka.AppendTimeout + partitionsSettle, Logger: n.log,
	}
}

// raisePartitions reports for each channel whether it has as many partitions as configured. If
// direction is engine.Up, raisePartitions first adds the missing partitions to the topics of the
// channel, and stores the time from which these partitions are used.
func raisePartitions(ctx context.Context, meta engine.Meta, admin *log.Admin, cfg *Config, direction engine.Direction, now time.Time) (out []Migration, err error) {
	for _, ch := range notify.Channels {
		retries, lanes := topicsOfChannel(ch)
		want, name := cfg.partitions(ch), partitionsMeta(ch)
		if direction == engine.Up {
			have, err := admin.Partitions(ctx, lanes...)
			if err != nil {
				return out, err
			}
			// Before the first raise the row does not exist. It must hold the old number before Kafka
			// has more partitions.
			if _, err := cluster.OpenSpread(ctx, meta, name, fewestPartitions(have, lanes), false); err != nil {
				return out, err
			}
		}
		spread, err := cluster.ReadSpread(ctx, meta, name)
		if err != nil {
			return out, err
		}
		m := Migration{Engine: "meta", Step: name, Applied: spread.Most() > 0}
		if has := spread.Most(); m.Applied && want > has {
			if want%has != 0 {
				return out, notify.Invalid("bad_config", "log.partitions."+ch.String(), fmt.Sprintf("is %d, but must be a multiple of %d, the number of partitions over which users are spread now", want, has))
			}
			if direction == engine.Up {
				if err := admin.Grow(ctx, want, slices.Concat(retries, lanes)...); err != nil {
					return out, err
				}
				if spread, err = cluster.RaiseSpread(ctx, meta, name, want, now); err != nil {
					return out, err
				}
			}
		}
		switch has := spread.Most(); {
		case m.Applied && want > has:
			m.Step, m.Applied = fmt.Sprintf("%s from %d to %d", name, has, want), false
		case m.Applied:
			m.Step, m.At = name+" "+strconv.Itoa(has), spread.Since()
		}
		out = append(out, m)
	}
	return out, nil
}
