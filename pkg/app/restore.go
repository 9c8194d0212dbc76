package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/engine/redis"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// checkpointMargin is by how much a checkpoint must be older than the snapshot: the clock of
// the process that wrote it may differ from the clock by which the snapshot's time was taken.
const checkpointMargin = 2 * time.Second

// Restored says what RestoreCluster did.
type Restored struct {
	Checkpoint time.Time       // that the consumer groups were set back to
	Groups     []RestoredGroup // by name
	Missing    []string        // what the log lacks, a line per partition or topic; only with acceptLoss
	Keys       int             // idempotency keys that were removed
}

// RestoredGroup is how far one consumer group was set back.
type RestoredGroup struct {
	Group string
	Again int64 // records that it reads, up to the end of the log
}

// RestoreCluster prepares servers for the first start after Cassandra was restored from a
// snapshot. taken is when the copy of the first node began. It sets every consumer group back
// to the newest checkpoint from before taken, so that work that the snapshot lacks is done
// again from the log. It removes all idempotency keys, because they may answer for requests
// that the snapshot lacks. It may be run again after an error.
//
// It changes nothing if it returns KindConflict "cluster_running" (a process works),
// KindNotFound "no_checkpoint" (the tables have none from before taken) or KindConflict
// "log_incomplete" (the log lacks records from the checkpoint on, or is older than the
// tables). With acceptLoss the last is no error: such partitions are read from their first
// record.
func RestoreCluster(ctx context.Context, cfg *Config, taken time.Time, acceptLoss bool, logger *slog.Logger) (out Restored, err error) {
	if cfg.Engines != EnginesDistributed {
		return out, notify.Invalid("bad_config", "engines", "is embedded: use notifyd restore FILE, which unpacks a backup into a data folder")
	}
	conn, err := cfg.Kafka.Conn(logger)
	if err != nil {
		return out, err
	}
	admin, err := log.NewAdmin(log.AdminConfig{Conn: conn})
	if err != nil {
		return out, err
	}
	defer admin.Close()
	cc, err := cfg.cassandra(cassandra.Cluster{}, logger)
	if err != nil {
		return out, err
	}
	tables, err := cassandra.Open(ctx, cc)
	if err != nil {
		return out, fmt.Errorf("cassandra: %w", explainConfig(cfg.cassandraSettings(), err))
	}
	defer func() { err = errors.Join(err, tables.Close()) }()
	rc, err := cfg.redis(logger)
	if err != nil {
		return out, err
	}
	rd, err := redis.Open(ctx, rc)
	if err != nil {
		return out, fmt.Errorf("redis: %w", explainConfig(cfg.redisSettings(), err))
	}
	defer func() { err = errors.Join(err, rd.Close()) }()
	return restorer{admin: admin, meta: tables.Meta(), beats: rd.Heartbeats(), purgeKeys: rd.Idem().Purge}.run(ctx, taken, acceptLoss)
}

// restorer has the parts of the servers that RestoreCluster changes.
type restorer struct {
	admin     *log.Admin
	meta      engine.Meta
	beats     engine.Heartbeats
	purgeKeys func(ctx context.Context, now int64) (int, error) // removes idempotency keys that expire by now (ms since 1970)
}

func (r restorer) run(ctx context.Context, taken time.Time, acceptLoss bool) (out Restored, err error) {
	if err := r.checkStopped(ctx); err != nil {
		return out, err
	}
	all, err := readCheckpoints(ctx, r.meta)
	if err != nil {
		return out, err
	}
	k := slices.IndexFunc(all, func(c checkpoint) bool { return !c.At.After(taken.Add(-checkpointMargin)) })
	if k < 0 {
		have := "there is none"
		if len(all) > 0 {
			have = "the oldest is of " + all[len(all)-1].At.Format(time.RFC3339)
		}
		return out, &notify.Error{Kind: notify.KindNotFound, Code: "no_checkpoint", Msg: fmt.Sprintf("the tables have no checkpoint from before %s: %s", taken.UTC().Format(time.RFC3339), have)}
	}
	l, err := r.readLog(ctx)
	if err != nil {
		return out, err
	}
	to, missing := l.offsets(all[k], all[0])
	if len(missing) > 0 && !acceptLoss {
		more := ""
		if n := len(missing) - 5; n > 0 {
			missing, more = missing[:5], fmt.Sprintf("; and %d more", n)
		}
		return out, &notify.Error{Kind: notify.KindConflict, Code: "log_incomplete", Msg: "the log does not fit the tables: " + strings.Join(missing, "; ") + more}
	}
	out.Checkpoint, out.Missing = all[k].At, missing
	for _, group := range slices.Sorted(maps.Keys(to)) {
		if err := r.admin.SetCommitted(ctx, group, to[group]); err != nil {
			return out, err
		}
		g := RestoredGroup{Group: group}
		for tp, at := range to[group] {
			g.Again += l.ends[tp] - at
		}
		out.Groups = append(out.Groups, g)
	}
	out.Keys, err = r.purgeKeys(ctx, math.MaxInt64)
	return out, err
}

// checkStopped returns an error while a process works. Workers and operators are members of
// consumer groups. Schedulers and dispatchers send heartbeats, and so does one of the processes
// with the role api.
func (r restorer) checkStopped(ctx context.Context) error {
	running := func(what string) error {
		return &notify.Error{Kind: notify.KindConflict, Code: "cluster_running", Msg: what + ": stop every process first; one that was killed counts for 10 seconds more"}
	}
	members, err := r.admin.Members(ctx, slices.Sorted(maps.Keys(topicsOf))...)
	if err != nil {
		return err
	}
	for group, n := range members {
		return running(fmt.Sprintf("the consumer group %s has %d members", group, n))
	}
	for _, group := range [...]string{"timers", "dispatchers", "figure:lags"} {
		alive, _, err := r.beats.Alive(ctx, group, 0)
		if err != nil {
			return err
		}
		for _, b := range alive {
			if b.Age < 10*time.Second {
				return running("the process " + b.Owner + " works")
			}
		}
	}
	return nil
}

// logState says what the log holds.
type logState struct {
	ids          map[string]string // of topics, as the brokers gave them
	starts, ends map[log.TopicPartition]int64
}

func (r restorer) readLog(ctx context.Context) (l logState, err error) {
	topics := groupTopics()
	if l.ids, err = r.admin.TopicIDs(ctx, topics...); err != nil {
		return l, err
	}
	for _, t := range topics {
		if l.ids[t] == "" {
			return l, notMigrated("the topic " + t)
		}
	}
	if l.starts, err = r.admin.StartOffsets(ctx, topics...); err != nil {
		return l, err
	}
	l.ends, err = r.admin.EndOffsets(ctx, topics...)
	return l, err
}

// offsets returns the offsets at which each group goes on after a restore to checkpoint c, and
// what the log lacks for that. newest is the newest checkpoint in the tables: a log that ends
// before it is older than the tables, and lacks records that their rows have handed on. A
// partition that does not fit is read from its first record.
func (l logState) offsets(c, newest checkpoint) (to map[string]map[log.TopicPartition]int64, missing []string) {
	to = map[string]map[log.TopicPartition]int64{}
	lacks := map[string]bool{} // one line for all groups
	for group, topics := range topicsOf {
		to[group] = map[log.TopicPartition]int64{}
		for tp, start := range l.starts {
			if !slices.Contains(topics, tp.Topic) {
				continue
			}
			at, last, end := c.Groups[group][partitionKey(tp.Topic, tp.Partition)], newest.Groups[group][partitionKey(tp.Topic, tp.Partition)], l.ends[tp]
			switch {
			case c.Topics[tp.Topic] != "" && c.Topics[tp.Topic] != l.ids[tp.Topic]:
				lacks[fmt.Sprintf("the topic %s was made anew after %s", tp.Topic, c.At.Format(time.RFC3339))] = true
				at = start
			case at > 0 && at < start:
				lacks[fmt.Sprintf("%s begins at %d, and %s had read up to %d", tp, start, group, at)] = true
				at = start
			case last > end:
				lacks[fmt.Sprintf("%s ends at %d, and %s had read up to %d", tp, end, group, last)] = true
				at = start
			}
			to[group][tp] = max(at, start) // 0: the group had read nothing
		}
	}
	return to, slices.Sorted(maps.Keys(lacks))
}
