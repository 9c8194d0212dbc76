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

// servers holds the values that a process needs only if its engines are servers.
type servers struct {
	partitions  spreads
	probe       *log.Probe // nil: only appends show whether the log is available
	historian   history.Historian
	dispatchers *cluster.Peers
	standings   *cluster.LaneStops
	tails       *cluster.Tails
	checks      []serverCheck
	listen      func(ctx context.Context) error // wakes the follower of preferences on a change; nil: the follower reads at intervals
	seen        *store.Seen                     // the filter that saves reads of outcome rows; nil: rows are always read
	limits      *limit.Shared                   // limits that all processes share; nil: each process has its own limits
	requests    func() map[requestKind]int64    // counts of requests to the servers; nil: requests are not counted
}

// serverCheck checks one server for the doctor.
type serverCheck func(ctx context.Context) engine.Findings

// followEvery is the time between two reads of the changes that operators made through other processes.
const followEvery = time.Second

// Times between two reads of a figure. One process reads it for all processes.
const (
	lagsEvery     = 2 * time.Second
	deferredEvery = 5 * time.Second
)

// addServerParts adds the parts of the inner ring that exist only if the engines are servers.
func (n runner) addServerParts(ps parts, do cluster.Tasks) {
	s := n.servers
	if s.probe != nil {
		ps["log probe"] = s.probe.Run
	}
	if len(do.Lanes) == 0 { // this process calls no provider
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
			n.log.Warn("the number of partitions that users are spread over cannot be read; the next read tries again", "err", err)
		})
	}
	ps["follower"], ps["card"] = n.follow, n.cards.Run
	n.addFigures(ps, do)
	ps["tails"] = func(ctx context.Context) error { return s.tails.Run(ctx, do.Lanes) }
	ps["standing"] = func(ctx context.Context) error { return s.standings.Share(ctx, do.Lanes, n.ownCallStop) }
	if len(n.clock.Servers) > 0 {
		ps["clock"] = n.clock.Run
	}
	if do.Operator {
		ps["group "+history.WritersGroup] = n.groups.byName(history.WritersGroup).Run
		for name, run := range n.purges() {
			ps[name] = n.exclusive(name, run)
		}
		if n.archive != nil {
			ps["archive"] = n.exclusive("archive", n.archive.Run)
		}
		ps["checkpoints"] = n.exclusive("checkpoints", func(ctx context.Context) error { return keepCheckpoints(ctx, n.Node) })
		ps["trim"] = n.exclusive("trim", func(ctx context.Context) error { return n.groups.trim(ctx, n.cfg.Kafka.Keep) })
	}
}

// addFigures adds the parts for figures that all processes need, such as the consumer lag. One
// process asks the servers for a figure and sends it to the other processes. In every process that
// needs the figure, a second part receives it.
func (n runner) addFigures(ps parts, do cluster.Tasks) {
	lags := &cluster.Figure[[]api.GroupLag]{Beats: n.st.beats, Lease: n.st.lease, Owner: n.owner, Name: "lags", Log: n.log}
	deferred := &cluster.Figure[worker.DeferredCount]{Beats: n.st.beats, Lease: n.st.lease, Owner: n.owner, Name: "deferred", Log: n.log}
	if do.API || do.Operator {
		ps["lags"] = lags.Find(lagsEvery, n.groups.readLags)
		ps["deferred seen"] = deferred.Follow(n.deferred.Set)
	}
	if do.Operator {
		ps["deferred"] = deferred.Find(cmp.Or(n.deferred.Pause, deferredEvery), func(ctx context.Context) (worker.DeferredCount, error) { return n.deferred.Count(ctx, time.Now()) })
	}
	if names := n.groups.watchedGroups(do); len(names) > 0 {
		ps["lags seen"] = lags.Follow(func(all []api.GroupLag) { n.groups.setLags(all, names) })
	}
}

// follow reads and applies the changes that operators made through other processes. It does so every
// followEvery. The changes are: the number of timer shards, paused lanes and campaigns, held circuits,
// and load grants.
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
			n.log.Warn("the changes that operators made through other processes cannot be read; the next read tries again", "err", err)
		}
	}
	return nil
}
