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

// Migration is one topic, schema step, queue or row that the servers must have. Applied says
// whether they have it.
type Migration struct {
	Engine  string    // "kafka", "cassandra keyspace", "postgres", "sqs", "meta"
	Step    string    // a topic, a step of a schema, a queue, a row
	Applied bool      // true: the servers have it
	At      time.Time // when it was made, or the time from which it is used; zero: not known
}

// Migrate prepares the servers for this build. Afterwards it returns the state of each step. It
// never removes topics and queues, not even with engine.Down. Several processes may run it at the
// same time, and it may be run again after an interruption. If a server cannot be reached, Migrate
// continues with the other servers. It joins the errors of all servers. Each error names the
// section of the configuration that its server belongs to.
func Migrate(ctx context.Context, cfg *Config, to engine.Direction, logger *slog.Logger) ([]Migration, error) {
	if cfg.Engines != EnginesDistributed {
		return nil, notify.Invalid("bad_config", "engines", "is embedded, so there is nothing to migrate: notifyd serve checks the format of the store when it starts")
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
			continue // the error of this section was added before
		}
		ms, err := one.run(ctx, cfg, to, logger)
		out = append(out, ms...)
		if err != nil {
			failed[one.section] = true
			if one.section != "sqs" {
				err = explainConfig(one.keys, err)
			}
			errs = append(errs, fmt.Errorf("%s: %w", one.section, err))
		}
		if e, ok := errors.AsType[*notify.Error](err); ok && e.Field == prefixKey {
			failed["kafka"] = true // make no topics with the wrong prefix
		}
	}
	if len(errs) > 0 {
		return out, errors.Join(errs...)
	}
	ms, err := migratePartitions(ctx, cfg, to, logger)
	if err != nil {
		err = fmt.Errorf("kafka: %w", explainConfig(cfg.kafkaSettings(), err))
	}
	return append(out, ms...), err
}

// newTopicAdmin returns a client that makes topics and partitions.
func newTopicAdmin(cfg *Config, logger *slog.Logger) (*log.Admin, error) {
	conn, err := cfg.Kafka.Conn(logger)
	if err != nil {
		return nil, err
	}
	return log.NewAdmin(log.AdminConfig{Conn: conn, Replication: cfg.Kafka.Replication, MinInSync: cfg.Kafka.MinInSync})
}

// migrateKafka makes topics. It never removes a topic: the owner of the brokers must do that.
func migrateKafka(ctx context.Context, cfg *Config, to engine.Direction, logger *slog.Logger) ([]Migration, error) {
	a, err := newTopicAdmin(cfg, logger)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	want := topics(cfg)
	have, err := a.Partitions(ctx, slices.Sorted(maps.Keys(want))...)
	if err == nil && to == engine.Up {
		maps.Copy(want, have) // existing topics do not change; raisePartitions adds partitions later
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

// migrateCassandra migrates each configured keyspace once, even if several settings name it.
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
	case engine.Down: // each call undoes one step
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

// migrateSQS makes the queues, if SQS is configured.
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

// withMeta calls fn with the rows on which all processes must agree, and with the time of
// Cassandra's clock. If the table of the rows does not exist yet and direction is engine.Look, it
// returns the steps in stepNames as not applied. If direction is engine.Down, it returns nothing,
// because the rows are removed with their table.
func withMeta(ctx context.Context, cfg *Config, direction engine.Direction, logger *slog.Logger, stepNames []string, fn func(engine.Meta, time.Time) ([]Migration, error)) (out []Migration, err error) {
	if direction == engine.Down {
		return nil, nil
	}
	cc, err := cfg.cassandra(cassandra.Cluster{}, logger)
	if err != nil {
		return nil, err
	}
	s, err := cassandra.Open(ctx, cc)
	if err != nil {
		if direction == engine.Look && notify.KindOf(err) == notify.KindConflict {
			for _, step := range stepNames {
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

// migrateMeta opens the table of engine.Meta and calls metaRows with it.
func migrateMeta(ctx context.Context, cfg *Config, to engine.Direction, logger *slog.Logger) ([]Migration, error) {
	return withMeta(ctx, cfg, to, logger, []string{storeIDMeta, shardsMeta}, func(meta engine.Meta, now time.Time) ([]Migration, error) {
		return metaRows(ctx, meta, cfg, to, now)
	})
}

// migratePartitions adds partitions to topics, and stores the numbers of partitions over which users
// are spread.
func migratePartitions(ctx context.Context, cfg *Config, to engine.Direction, logger *slog.Logger) ([]Migration, error) {
	a, err := newTopicAdmin(cfg, logger)
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

// prefixMeta is the name of the row of engine.Meta with the topic prefix of an installation. An
// installation without the row has no prefix. prefixKey is the configuration key of the prefix.
const prefixMeta, prefixKey = "topic_prefix", "kafka.topic_prefix"

// checkTopicPrefix returns an error if the topic prefix of the configuration is not the prefix of
// the installation. With another prefix the records in the installation's topics would stay unread,
// and the positions of its groups would be used for other topics.
func checkTopicPrefix(ctx context.Context, meta engine.Meta, cfg *Config) error {
	row, err := meta.GetMeta(ctx, prefixMeta)
	if err == nil && string(row) != cfg.Kafka.TopicPrefix {
		err = notify.Invalid("bad_config", prefixKey, fmt.Sprintf("is %q, but the topics of this installation begin with %q; the prefix of an installation cannot be changed", cfg.Kafka.TopicPrefix, row))
	}
	return err
}

// metaRows returns the state of two rows that all processes share: the id of the installation and
// the number of timer shards. If the parameter to is engine.Up, metaRows first writes these rows and
// the row of the topic prefix if they are missing, and raises the number of timer shards to the
// configured number.
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
	case cfg.Timers.Shards < shards.Most() && !shards.HadParts(cfg.Timers.Shards):
		return out, otherShards(cfg.Timers.Shards, shards.Most())
	case cfg.Timers.Shards > shards.Most() && m.Applied:
		m.Step, m.Applied = fmt.Sprintf("%s from %d to %d", shardsMeta, shards.Most(), cfg.Timers.Shards), false
	case m.Applied:
		m.Step, m.At = fmt.Sprintf("%s %d", shardsMeta, shards.Most()), shards.Since()
	}
	return append(out, m), nil
}
