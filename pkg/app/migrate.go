package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/engine/postgres"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Migration is one thing that the servers must have.
type Migration struct {
	Engine  string    // "kafka", "cassandra keyspace", "postgres", "sqs", "meta"
	Step    string    // a topic, a step of a schema, a queue, a row
	Applied bool      // it is there
	At      time.Time // since when; zero: not known
}

// Migrate brings the servers to what this build needs, and says how each step
// stands afterwards. Topics and queues stay, also if it goes down. It may be run by several at a time, and again after it was
// cut short. An engine that is not reached does not keep it from the others: the
// errors of all are joined, each with its section.
func Migrate(ctx context.Context, cfg *Config, to engine.Direction, logger *slog.Logger) ([]Migration, error) {
	if cfg.Engines != EnginesDistributed {
		return nil, notify.Invalid("bad_config", "engines", "is embedded: the store carries its format and is opened, or refused, by serve; nothing to migrate")
	}
	var out []Migration
	var errs []error
	failed := map[string]bool{}
	for _, one := range []struct {
		section string
		keys    settings
		run     func(context.Context, *Config, engine.Direction, *slog.Logger) ([]Migration, error)
	}{
		{"cassandra", cfg.cassandraSettings(), migrateCassandra}, {"cassandra", cfg.cassandraSettings(), migrateMeta},
		{"kafka", cfg.kafkaSettings(), migrateKafka}, {"postgres", cfg.postgresSettings(), migratePostgres}, {"sqs", settings{}, migrateSQS},
	} {
		if failed[one.section] {
			continue // its error is told once
		}
		ms, err := one.run(ctx, cfg, to, logger)
		out = append(out, ms...)
		if err != nil {
			failed[one.section] = true
			if one.section != "sqs" {
				err = explained(one.keys, err)
			}
			errs = append(errs, fmt.Errorf("%s: %w", one.section, err))
		}
		if e, ok := errors.AsType[*notify.Error](err); ok && e.Field == prefixKey {
			failed["kafka"] = true // no topics are made for it
		}
	}
	if len(errs) > 0 {
		return out, errors.Join(errs...)
	}
	ms, err := migratePartitions(ctx, cfg, to, logger)
	if err != nil {
		err = fmt.Errorf("kafka: %w", explained(cfg.kafkaSettings(), err))
	}
	return append(out, ms...), err
}

// migrator returns what makes topics and partitions.
func migrator(cfg *Config, logger *slog.Logger) (*log.Admin, error) {
	conn, err := cfg.Kafka.Conn(logger)
	if err != nil {
		return nil, err
	}
	return log.NewAdmin(log.AdminConfig{Conn: conn, Replication: cfg.Kafka.Replication, MinInSync: cfg.Kafka.MinInSync})
}

// migrateKafka makes topics. It never removes one: that is for who owns them.
func migrateKafka(ctx context.Context, cfg *Config, to engine.Direction, logger *slog.Logger) ([]Migration, error) {
	a, err := migrator(cfg, logger)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	want := topics(cfg)
	have, err := a.Partitions(ctx, slices.Sorted(maps.Keys(want))...)
	if err == nil && to == engine.Up {
		maps.Copy(want, have) // raisePartitions adds to topics that are there
		if _, err = a.EnsureTopics(ctx, want); err == nil {
			have, err = a.Partitions(ctx, slices.Sorted(maps.Keys(want))...)
		}
	}
	if err != nil {
		return nil, err
	}
	var out []Migration
	for _, t := range slices.Sorted(maps.Keys(want)) {
		out = append(out, Migration{Engine: "kafka", Step: fmt.Sprintf("%s (%d partitions)", t, cmp.Or(have[t], want[t])), Applied: have[t] > 0})
	}
	return out, nil
}

// migrateCassandra takes every keyspace once.
func migrateCassandra(ctx context.Context, cfg *Config, to engine.Direction, logger *slog.Logger) (out []Migration, err error) {
	done := map[string]bool{}
	for _, part := range []cassandra.Cluster{{}, cfg.Cassandra.Status, cfg.Cassandra.Timers, cfg.Cassandra.Triggers} {
		cc, err := cfg.cassandra(part, logger)
		if err != nil {
			return out, err
		}
		where := fmt.Sprint(cc.Hosts, cc.Keyspace)
		if done[where] {
			continue
		}
		done[where] = true
		ms, err := cassandra.Migrate(ctx, cc, to)
		if err != nil {
			return out, fmt.Errorf("%s at %s: %w", cc.Keyspace, strings.Join(cc.Hosts, ","), err)
		}
		for _, m := range ms {
			out = append(out, Migration{Engine: "cassandra " + cc.Keyspace, Step: fmt.Sprintf("%04d %s", m.Version, m.Name), Applied: !m.Applied.IsZero(), At: m.Applied})
		}
	}
	return out, nil
}

func migratePostgres(ctx context.Context, cfg *Config, to engine.Direction, _ *slog.Logger) (out []Migration, err error) {
	pc, err := cfg.postgres()
	if err != nil {
		return nil, err
	}
	pg, err := postgres.Open(ctx, pc)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pg.Close()) }()
	switch to {
	case engine.Up:
		_, err = pg.Migrate(ctx, engine.Up)
	case engine.Down: // one step a call
		for err == nil {
			var undone []engine.Migration
			if undone, err = pg.Migrate(ctx, engine.Down); len(undone) == 0 {
				break
			}
		}
	}
	if err != nil {
		return nil, err
	}
	ms, err := pg.Status(ctx)
	for _, m := range ms {
		out = append(out, Migration{Engine: "postgres", Step: fmt.Sprintf("%04d %s", m.Version, m.Name), Applied: !m.Applied.IsZero(), At: m.Applied})
	}
	return out, err
}

// migrateSQS makes the queues, where SQS carries them.
func migrateSQS(ctx context.Context, cfg *Config, to engine.Direction, _ *slog.Logger) (out []Migration, err error) {
	if cfg.SQS.Region == "" || to == engine.Down {
		return nil, nil
	}
	s, err := cfg.openSQS(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, of := range queues {
		q, err := s.Queue(of.name, of.receives)
		if err == nil && to == engine.Up {
			err = s.Migrate(ctx, q)
		}
		if err != nil {
			return out, err
		}
		_, err = q.Depth(ctx)
		out = append(out, Migration{Engine: "sqs", Step: cfg.SQS.Prefix + of.name, Applied: err == nil})
	}
	slices.SortFunc(out, func(a, b Migration) int { return cmp.Compare(a.Step, b.Step) })
	return out, nil
}

// withMeta calls fn with the rows that every process over these engines must agree on, and
// the time by the clock of the servers. It returns missing if they have no table yet, and
// nothing if they are to be removed, for they go with their table.
func withMeta(ctx context.Context, cfg *Config, to engine.Direction, logger *slog.Logger, missing []string, fn func(engine.Meta, time.Time) ([]Migration, error)) (out []Migration, err error) {
	if to == engine.Down {
		return nil, nil
	}
	cc, err := cfg.cassandra(cassandra.Cluster{}, logger)
	if err != nil {
		return nil, err
	}
	s, err := cassandra.Open(ctx, cc)
	if err != nil {
		if to == engine.Look && notify.KindOf(err) == notify.KindConflict {
			for _, step := range missing {
				out = append(out, Migration{Engine: "meta", Step: step})
			}
			return out, nil
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	ahead, _, err := s.ClockOffset(ctx)
	if err != nil {
		return nil, err
	}
	return fn(s.Meta(), time.Now().Add(ahead))
}

// migrateMeta writes the rows that name the installation and its timer shards.
func migrateMeta(ctx context.Context, cfg *Config, to engine.Direction, logger *slog.Logger) ([]Migration, error) {
	return withMeta(ctx, cfg, to, logger, []string{storeIDMeta, shardsMeta}, func(meta engine.Meta, now time.Time) ([]Migration, error) {
		return metaRows(ctx, meta, cfg, to, now)
	})
}

// migratePartitions adds partitions to topics, and writes over how many users are spread.
func migratePartitions(ctx context.Context, cfg *Config, to engine.Direction, logger *slog.Logger) ([]Migration, error) {
	a, err := migrator(cfg, logger)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	var missing []string
	for _, ch := range notify.Channels {
		missing = append(missing, partitionsMeta(ch))
	}
	return withMeta(ctx, cfg, to, logger, missing, func(meta engine.Meta, now time.Time) ([]Migration, error) {
		return raisePartitions(ctx, meta, a, cfg, to, now)
	})
}

// prefixMeta is the row with the topic prefix that an installation began with. Without the
// row it began with none.
const prefixMeta, prefixKey = "topic_prefix", "kafka.topic_prefix"

// checkTopicPrefix returns an error if the installation began with another topic prefix:
// what is in its topics would stay unread, and its positions would count for other topics.
func checkTopicPrefix(ctx context.Context, meta engine.Meta, cfg *Config) error {
	row, err := meta.GetMeta(ctx, prefixMeta)
	if err == nil && string(row) != cfg.Kafka.TopicPrefix {
		err = notify.Invalid("bad_config", prefixKey, fmt.Sprintf("is %q, and the topics of this installation begin with %q: it cannot be changed", cfg.Kafka.TopicPrefix, row))
	}
	return err
}

// metaRows makes the rows that are missing, and raises the number of timer shards.
func metaRows(ctx context.Context, meta engine.Meta, cfg *Config, to engine.Direction, now time.Time) (out []Migration, err error) {
	id, err := meta.GetMeta(ctx, storeIDMeta)
	if err == nil && len(id) == 0 && to == engine.Up {
		if err := meta.PutMeta(ctx, prefixMeta, []byte(cfg.Kafka.TopicPrefix)); err != nil {
			return nil, err
		}
		id = []byte(notify.NewBase(now).String())
		err = meta.PutMeta(ctx, storeIDMeta, id)
	}
	if err == nil && len(id) > 0 {
		err = checkTopicPrefix(ctx, meta, cfg)
	}
	if err != nil {
		return nil, err
	}
	out = append(out, Migration{Engine: "meta", Step: strings.TrimSpace(storeIDMeta + " " + string(id)), Applied: len(id) > 0})
	spread := func() (notify.Spread, error) { return cluster.ReadSpread(ctx, meta, shardsMeta) }
	if to == engine.Up {
		spread = func() (notify.Spread, error) {
			return cluster.RaiseSpread(ctx, meta, shardsMeta, cfg.Timers.Shards, now)
		}
	}
	shards, err := spread()
	if err != nil {
		return out, err
	}
	m := Migration{Engine: "meta", Step: shardsMeta, Applied: shards.Most() > 0}
	switch {
	case cfg.Timers.Shards < shards.Most() && !shards.Had(cfg.Timers.Shards):
		return out, otherShards(cfg.Timers.Shards, shards.Most())
	case cfg.Timers.Shards > shards.Most() && m.Applied:
		m.Step, m.Applied = fmt.Sprintf("%s from %d to %d", shardsMeta, shards.Most(), cfg.Timers.Shards), false
	case m.Applied:
		m.Step, m.At = fmt.Sprintf("%s %d", shardsMeta, shards.Most()), shards.Since()
	}
	return append(out, m), nil
}
