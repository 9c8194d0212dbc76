package app

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

// servers is what a process over shared engines keeps beside its stages.
type servers struct {
	probe       *log.Probe // nil: the log says itself whether it is there
	historian   history.Historian
	dispatchers *cluster.Peers
	standings   *cluster.Standings
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
	ps["follower"] = n.follow
	if groups := n.groups.watched(do); len(groups) > 0 {
		ps["lags"] = func(ctx context.Context) error { return n.groups.watch(ctx, groups) }
	}
	ps["standing"] = func(ctx context.Context) error { return s.standings.Share(ctx, do.Lanes, n.ownStanding) }
	if len(n.clock.Servers) > 0 {
		ps["clock"] = n.clock.Run
	}
	if do.Operator {
		ps["group "+history.WritersGroup] = n.groups.of(history.WritersGroup).Run
		for name, run := range n.purges() {
			ps[name] = n.alone(name, run)
		}
		ps["trim"] = n.alone("trim", func(ctx context.Context) error { return n.groups.trim(ctx, n.cfg.Kafka.Keep) })
	}
}

// follow applies what operators changed through another process: which lanes and
// campaigns are paused, and which circuits of callers are held.
func (n runner) follow(ctx context.Context) error {
	for ctx.Err() == nil {
		notify.Sleep(ctx, followEvery)
		call, stop := context.WithTimeout(ctx, 5*time.Second)
		var err error
		for _, follow := range []func(context.Context) error{n.lanes.Follow, n.campaigns.Follow, n.circuits.Follow} {
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
