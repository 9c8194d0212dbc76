package app

import (
	"context"
	"fmt"

	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/engine/postgres"
	"github.com/notifyd/notifyd/pkg/engine/redis"
	"github.com/notifyd/notifyd/pkg/engine/sqs"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

// clusters holds the Cassandra stores. Several fields may hold the same store.
type clusters struct {
	main, status, timers, triggers *cassandra.Store
	all                            []*cassandra.Store // each store once
}

// openServers connects to the configured servers. Cassandra must be reachable. Kafka, Redis and
// PostgreSQL may be unavailable. If Cassandra or PostgreSQL does not have the schema that this build
// needs, openServers returns an error.
func openServers(ctx context.Context, n *Node) (err error) {
	cfg, st := &n.cfg, &n.st
	if st.conn, err = cfg.Kafka.Conn(n.log); err != nil {
		return err
	}
	st.conn.Counter = &log.Counter{}
	n.progress("connecting to Cassandra")
	c, err := opener{n}.openCassandra(ctx)
	if err != nil {
		return err
	}
	n.progress("connecting to PostgreSQL")
	pg, err := opener{n}.openPostgres(ctx)
	if err != nil {
		return err
	}
	rc, err := cfg.redis(n.log)
	if err != nil {
		return err
	}
	rd, err := redis.Connect(rc)
	if err != nil {
		return err
	}
	n.closers = append(n.closers, rd.Close)
	if err := misconfigured(cfg.redisSettings(), rd.Ping(ctx)); err != nil {
		return err
	}
	st.status, st.timers, st.cold, st.triggers = c.status.Status(), c.timers.Timers(), c.timers.ColdTimers(), c.triggers.Triggers()
	st.schedules = c.timers.Schedules()
	st.letters, st.jobs, st.audit, st.campaigns = c.main.DeadLetters(), c.main.Jobs(), c.main.Audit(), c.main.Campaigns()
	st.cancels, st.holds, st.meta = c.main.Cancels(), c.main.Holds(), c.main.Meta()
	n.servers.historian = cassandraHistory{c.status.History(cassandra.HistoryConfig{}), c.status}
	st.prefs, st.callers = pg.Prefs(), pg.Callers()
	st.idem, st.spill, st.lease, st.beats, st.broadcast = rd.Idem(), rd.Spill(), rd.Lease(), rd.Heartbeats(), rd.Broadcast()
	// All processes must read and write outcome rows through the same filter.
	filter, err := rd.Filter(redis.FilterConfig{Name: "outcomes", Rate: cfg.Redis.SeenRate, Window: cfg.Redis.SeenWindow})
	if err != nil {
		return err
	}
	n.servers.seen = store.NewSeen(st.status, filter, n.log)
	n.servers.requests = func() map[requestKind]int64 { return requestCounts(c.all, rd.Counts(), st.conn.Counter.Counts()) }
	n.servers.limits = limit.NewShared(rd.Limits(), limit.SharedConfig{})
	st.status, st.limits = n.servers.seen, n.servers.limits
	n.clock.Servers = []cluster.AskClock{rd.ClockOffset, c.main.ClockOffset, pg.ClockOffset}
	st.queue = func(name string, maxReceives int) (engine.Queue, error) { return rd.Queue(name, maxReceives), nil }
	st.bodies = rd.QueueBodies
	if cfg.SQS.Region != "" {
		q, err := cfg.openSQS(ctx)
		if err != nil {
			return err
		}
		n.closers = append(n.closers, q.Close)
		st.queue, st.bodies = q.Queue, nil // SQS cannot list its messages
		n.servers.checks = append(n.servers.checks, doctorSQS(q))
	}
	n.servers.checks = append(n.servers.checks, rd.Doctor, pg.Doctor)
	// A process whose clock is wrong must never own a timer. So ask for the time of each server
	// now, before the process can own one. Ask twice: the first question may have to open a
	// connection, and then the answer comes too late to compare the clocks.
	for range 2 {
		n.clock.Ask(ctx)
	}
	return nil
}

// cassandraHistory implements history.Historian with Cassandra.
type cassandraHistory struct {
	*cassandra.History
	to *cassandra.Store
}

func (h cassandraHistory) Append(ctx context.Context, recs ...history.Record) error {
	out := make([]cassandra.HistoryRecord, len(recs))
	for i, r := range recs {
		out[i] = cassandra.HistoryRecord{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Value: r.Value, Time: r.Time}
	}
	return h.to.AppendHistory(ctx, out...)
}

func (h cassandraHistory) Between(ctx context.Context, offsets map[history.Part]history.OffsetRange, fn func(*engine.Found) error) error {
	return h.to.EachHistory(ctx, func(p cassandra.HistoryPart, offset int64) bool {
		s := offsets[history.Part(p)]
		return offset >= s.From && offset < s.Below
	}, fn)
}

// openCassandra opens each configured cluster. Settings with the same hosts and keyspace share one
// store.
func (n opener) openCassandra(ctx context.Context) (c clusters, err error) {
	opened := map[string]*cassandra.Store{}
	open := func(key string, part cassandra.Cluster) *cassandra.Store {
		if err != nil {
			return nil
		}
		cc, cerr := n.cfg.cassandra(part, n.log)
		if err = cerr; err != nil {
			return nil
		}
		where := fmt.Sprint(cc.Hosts, cc.Keyspace)
		if s := opened[where]; s != nil {
			return s
		}
		s, serr := cassandra.Open(ctx, cc)
		if serr != nil {
			err = fmt.Errorf("%s: %w", key, explainConfig(n.cfg.cassandraSettings(), serr))
			return nil
		}
		n.closers = append(n.closers, s.Close)
		opened[where] = s
		c.all = append(c.all, s)
		return s
	}
	c.main = open("cassandra", cassandra.Cluster{})
	c.status = open("cassandra.status", n.cfg.Cassandra.Status)
	c.timers = open("cassandra.timers", n.cfg.Cassandra.Timers)
	c.triggers = open("cassandra.triggers", n.cfg.Cassandra.Triggers)
	return c, err
}

func (n opener) openPostgres(ctx context.Context) (*postgres.Store, error) {
	pc, err := n.cfg.postgres()
	if err != nil {
		return nil, err
	}
	pg, err := postgres.Open(ctx, pc)
	if err != nil {
		return nil, err
	}
	n.closers = append(n.closers, pg.Close)
	switch err := pg.Check(ctx); {
	case misconfigured(n.cfg.postgresSettings(), err) != nil:
		return nil, explainConfig(n.cfg.postgresSettings(), err)
	case notify.KindOf(err) == notify.KindUnavailable:
		// The process starts without PostgreSQL, because otp codes and alerts can still be sent.
		n.log.Error("PostgreSQL is unavailable: until it is available again, the preferences are not known, and bulk lanes and all receivers without an address in the request wait", "err", err)
	case err != nil:
		return nil, fmt.Errorf("postgres: %w", err)
	}
	n.servers.listen = func(ctx context.Context) error { return pg.Listen(ctx, n.prefs.Wake) }
	return pg, nil
}

// doctorSQS returns a check of the queues that dispatchers and schedulers read.
func doctorSQS(s *sqs.Store) func(context.Context) engine.Findings {
	return func(ctx context.Context) (fs engine.Findings) {
		for _, of := range queues {
			q, err := s.Queue(of.name, of.receives)
			if err != nil {
				fs.Add("sqs "+of.name, true, "fail", "correct the section sqs of the configuration", "%v", err)
				continue
			}
			fs = append(fs, s.Doctor(ctx, q)...)
		}
		return fs
	}
}
