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

// checkpointMargin is the minimum time by which a checkpoint must be older than the snapshot. The time
// of the checkpoint and the time of the snapshot may come from clocks that differ.
const checkpointMargin = 2 * time.Second

// Restored describes what RestoreCluster did.
type Restored struct {
	Checkpoint time.Time       // the checkpoint to which the consumer groups were set back
	Groups     []RestoredGroup // sorted by name
	Missing    []string        // what is missing in the log, one line for each partition or topic; only with acceptLoss
	Keys       int             // idempotency keys that were removed
}

// RestoredGroup describes how far one consumer group was set back.
type RestoredGroup struct {
	Group string
	Again int64 // number of records that the group reads again, up to the end of the log
}

// RestoreCluster prepares servers for the first start after Cassandra was restored from a snapshot.
// snapshotTime is the time at which the copy of the first node began. RestoreCluster sets every
// consumer group back to the newest checkpoint from before snapshotTime. So the groups read the log
// again and repeat the work that the snapshot lacks. It removes all idempotency keys, because they
// may belong to requests that the snapshot lacks. After an error it may be run again.
//
// RestoreCluster changes nothing if it returns one of these errors. KindConflict "cluster_running"
// means that a process is still running. KindNotFound "no_checkpoint" means that the tables have no
// checkpoint from before snapshotTime. KindConflict "log_incomplete" means that the log lacks
// records after the checkpoint, or is older than the tables. If acceptLoss is true, RestoreCluster
// does not return "log_incomplete": it sets the affected partitions back to their first record.
func RestoreCluster(ctx context.Context, cfg *Config, snapshotTime time.Time, acceptLoss bool, logger *slog.Logger) (out Restored, err error) {
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
	return restorer{admin: admin, meta: tables.Meta(), beats: rd.Heartbeats(), purgeKeys: rd.Idem().Purge}.run(ctx, snapshotTime, acceptLoss)
}

// restorer holds the parts of the servers that RestoreCluster reads or changes.
type restorer struct {
	admin     *log.Admin
	meta      engine.Meta
	beats     engine.Heartbeats
	purgeKeys func(ctx context.Context, nowMs int64) (int, error) // removes the idempotency keys that have expired at nowMs (ms since 1970)
}

func (r restorer) run(ctx context.Context, snapshotTime time.Time, acceptLoss bool) (out Restored, err error) {
	if err := r.checkStopped(ctx); err != nil {
		return out, err
	}
	all, err := readCheckpoints(ctx, r.meta)
	if err != nil {
		return out, err
	}
	k := slices.IndexFunc(all, func(c checkpoint) bool { return !c.At.After(snapshotTime.Add(-checkpointMargin)) })
	if k < 0 {
		have := "there is none"
		if len(all) > 0 {
			have = "the oldest checkpoint is from " + all[len(all)-1].At.Format(time.RFC3339)
		}
		return out, &notify.Error{Kind: notify.KindNotFound, Code: "no_checkpoint", Msg: fmt.Sprintf("the tables have no checkpoint from before %s: %s", snapshotTime.UTC().Format(time.RFC3339), have)}
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

// checkStopped returns an error if a process of the cluster is still running. It finds workers and
// operators as members of consumer groups. It finds schedulers, dispatchers and the role api by
// their heartbeats. While processes with the role api run, only one of them sends the heartbeat
// "figure:lags", for all of them.
func (r restorer) checkStopped(ctx context.Context) error {
	running := func(what string) error {
		return &notify.Error{Kind: notify.KindConflict, Code: "cluster_running", Msg: what + ": stop every process first; a process that was killed still counts for 10 seconds"}
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
				return running("the process " + b.Owner + " is running")
			}
		}
	}
	return nil
}

// logState describes which records the log holds.
type logState struct {
	ids          map[string]string // by topic: the id that the brokers gave to it
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

// offsets returns the offsets at which each group continues after a restore to checkpoint c. The
// result missing describes the records that the log lacks. The parameter newest is the newest
// checkpoint in the tables. If the log ends before that checkpoint, the log is older than the
// tables: it lacks records that rows in the tables refer to. If a partition does not fit the offset
// of a group in checkpoint c, the group continues at the first record of the partition.
func (l logState) offsets(c, newest checkpoint) (resumeAt map[string]map[log.TopicPartition]int64, missing []string) {
	resumeAt = map[string]map[log.TopicPartition]int64{}
	lacks := map[string]bool{} // a set, because several groups may add the same line
	for group, topics := range topicsOf {
		resumeAt[group] = map[log.TopicPartition]int64{}
		for tp, start := range l.starts {
			if !slices.Contains(topics, tp.Topic) {
				continue
			}
			at, last, end := c.Groups[group][partitionKey(tp.Topic, tp.Partition)], newest.Groups[group][partitionKey(tp.Topic, tp.Partition)], l.ends[tp]
			switch {
			case c.Topics[tp.Topic] != "" && c.Topics[tp.Topic] != l.ids[tp.Topic]:
				lacks[fmt.Sprintf("the topic %s was deleted and made again after %s", tp.Topic, c.At.Format(time.RFC3339))] = true
				at = start
			case at > 0 && at < start:
				lacks[fmt.Sprintf("%s begins at offset %d, but %s had read only up to %d", tp, start, group, at)] = true
				at = start
			case last > end:
				lacks[fmt.Sprintf("%s ends at offset %d, but %s had read up to %d", tp, end, group, last)] = true
				at = start
			}
			resumeAt[group][tp] = max(at, start) // at is 0 if the group had read nothing
		}
	}
	return resumeAt, slices.Sorted(maps.Keys(lacks))
}
