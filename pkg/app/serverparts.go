package app

import (
	"cmp"
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
	"github.com/notifyd/notifyd/pkg/worker"
)

// servers is what a process over shared engines keeps beside its stages.
type servers struct {
	partitions  spreads
	probe       *log.Probe // nil: the log says itself whether it is there
	historian   history.Historian
	dispatchers *cluster.Peers
	standings   *cluster.Standings
	tails       *cluster.Tails
	checks      []serverCheck
	listen      func(ctx context.Context) error // wakes who follows preferences; nil: polls do
	seen        *store.Seen                     // in front of outcome rows; nil: they are read
	limits      *limit.Shared                   // nil: each process has its own
	requests    func() map[requestKind]int64    // made of the servers; nil: not counted
}

// serverCheck looks at one engine for the doctor.
type serverCheck func(ctx context.Context) engine.Findings

// followEvery is how often what operators changed in another process is read.
const followEvery = time.Second

// Pauses between two looks of the process that looks for all.
const (
	lagsEvery     = 2 * time.Second
	deferredEvery = 5 * time.Second
)

// addServerParts adds the inner parts of a process whose engines are servers.
func (n runner) addServerParts(ps parts, do cluster.Tasks) {
	s := n.servers
	if s.probe != nil {
		ps["log probe"] = s.probe.Run
	}
	if len(do.Lanes) == 0 { // nobody here calls anyone
		delete(ps, "preferences")
		delete(ps, "cancels")
		delete(ps, "committer")
	} else if s.listen != nil {
		ps["changes of preferences"] = s.listen
	}
	if s.seen != nil {
		ps["seen-filter"] = s.seen.Run
	}
	ps["partitions"] = func(ctx context.Context) error {
		return s.partitions.follow(ctx, n.parallel.recount, func(err error) {
			n.log.Warn("over how many partitions users are spread cannot be read", "err", err)
		})
	}
	ps["follower"], ps["card"] = n.follow, n.cards.Run
	n.addFigures(ps, do)
	ps["tails"] = func(ctx context.Context) error { return s.tails.Run(ctx, do.Lanes) }
	ps["standing"] = func(ctx context.Context) error { return s.standings.Share(ctx, do.Lanes, n.ownStanding) }
	if len(n.clock.Servers) > 0 {
		ps["clock"] = n.clock.Run
	}
	if do.Operator {
		ps["group "+history.WritersGroup] = n.groups.of(history.WritersGroup).Run
		for name, run := range n.purges() {
			ps[name] = n.alone(name, run)
		}
		if n.archive != nil {
			ps["archive"] = n.alone("archive", n.archive.Run)
		}
		ps["checkpoints"] = n.alone("checkpoints", func(ctx context.Context) error { return keepCheckpoints(ctx, n.Node) })
		ps["trim"] = n.alone("trim", func(ctx context.Context) error { return n.groups.trim(ctx, n.cfg.Kafka.Keep) })
	}
}

// addFigures adds the parts that find out, in one process for all, what the servers would
// be asked by each process else, and those that follow it.
func (n runner) addFigures(ps parts, do cluster.Tasks) {
	lags := &cluster.Figure[[]api.GroupLag]{Beats: n.st.beats, Lease: n.st.lease, Owner: n.owner, Name: "lags", Log: n.log}
	deferred := &cluster.Figure[worker.DeferredCount]{Beats: n.st.beats, Lease: n.st.lease, Owner: n.owner, Name: "deferred", Log: n.log}
	if do.API || do.Operator {
		ps["lags"] = lags.Find(lagsEvery, n.groups.readLags)
		ps["deferred seen"] = deferred.Follow(n.deferred.Take)
	}
	if do.Operator {
		ps["deferred"] = deferred.Find(cmp.Or(n.deferred.Pause, deferredEvery), func(ctx context.Context) (worker.DeferredCount, error) { return n.deferred.Count(ctx, time.Now()) })
	}
	if names := n.groups.watched(do); len(names) > 0 {
		ps["lags seen"] = lags.Follow(func(all []api.GroupLag) { n.groups.take(all, names) })
	}
}

// follow applies what operators changed through another process: over how many shards
// timers are spread, which lanes and campaigns are paused, which circuits of callers
// are held, and which grants for load hold.
func (n runner) follow(ctx context.Context) error {
	for ctx.Err() == nil {
		notify.Sleep(ctx, followEvery)
		call, stop := context.WithTimeout(ctx, 5*time.Second)
		var err error
		for _, follow := range []func(context.Context) error{n.shards.Follow, n.lanes.Follow, n.campaigns.Follow, n.circuits.Follow, n.grants.Follow} {
			if err = follow(call); err != nil {
				break
			}
		}
		if err == nil && n.tasks.Operator {
			err = n.feeds.Join(call)
		}
		stop()
		if err != nil && ctx.Err() == nil {
			n.log.Warn("what operators changed cannot be read", "err", err)
		}
	}
	return nil
}
