package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/outcomehook"
)

// Observe makes the workers call f with every envelope whose outcome has become durable. f runs on the
// goroutines of the workers. Call Observe before Run.
func (n *Node) Observe(f func(*notify.Envelope)) { n.onFinished = f }

func (n *Node) observe(e *notify.Envelope) {
	if n.onFinished != nil {
		n.onFinished(e)
	}
}

// Describe sets the texts about the process that debug bundles contain. Call it before Run.
func (n *Node) Describe(a About) { n.about = a }

// Run runs the process with the configured roles until ctx ends. Then it stops the process in this
// order: the API answers 503 and finishes its requests; workers finish their calls and commit, and
// timers and jobs stop; log and history stop; stores close. If any part returns an error, the
// process ends.
func (n *Node) Run(ctx context.Context) error { return n.RunAs(ctx, n.cfg.Roles...) }

// RunAs does what Run does, with the given roles instead of the configured roles. With embedded engines
// there are two roles: cluster.RoleAll and cluster.RoleAPI. A process with cluster.RoleAPI accepts
// requests and makes them durable. A later start with workers delivers them. With cluster.RoleAPI the
// log is not trimmed.
func (n *Node) RunAs(ctx context.Context, roles ...string) error {
	tasks, err := cluster.ParseRoles(roles)
	if err != nil {
		err = notify.Invalid("bad_role", "role", err.Error())
	}
	if n.embedded != nil && (len(roles) != 1 || roles[0] != cluster.RoleAll && roles[0] != cluster.RoleAPI) {
		err = notify.Invalid("bad_role", "role", fmt.Sprintf("with embedded engines the role must be %s or %s, not %q", cluster.RoleAll, cluster.RoleAPI, strings.Join(roles, ",")))
	}
	if err != nil {
		return errors.Join(err, n.Close())
	}
	// The preferences, the cancellations and the callers must be loaded before any call to a provider,
	// because opt-outs and cancellations from before this start must be respected. They must also be
	// loaded before the parts start that follow their changes. Otherwise these parts would load
	// millions of profiles a second time, and until then the snapshot would be too old for bulk lanes.
	loads := map[string]func(context.Context) error{"preferences": n.prefs.Load, "cancels": n.cancels.Follow, "callers": n.outcomeCallers.Load}
	if n.embedded == nil && len(tasks.Lanes) == 0 {
		loads = map[string]func(context.Context) error{"callers": n.outcomeCallers.Load} // this process calls no provider
	}
	for what, load := range loads {
		if err := load(ctx); err != nil {
			if ctx.Err() != nil { // the process was stopped during the load
				return n.Close()
			}
			if n.embedded == nil && what == "preferences" && notify.KindOf(err) == notify.KindUnavailable {
				continue // n.prefs.Run reads the preferences when PostgreSQL is available again; openPostgres has logged the error
			}
			return errors.Join(fmt.Errorf("%s: %w", what, err), n.Close())
		}
	}
	// The parts run in three rings, which are stopped from the outside to the inside. A ring is stopped
	// only after the ring outside of it has ended, because that ring still needs the inner ring.
	n.served, n.tasks, n.roles = true, tasks, roles
	front, stopFront := context.WithCancelCause(ctx)
	middle, stopMiddle := context.WithCancelCause(context.WithoutCancel(ctx))
	inner, stopInner := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopFront(nil)
	defer stopMiddle(nil)
	defer stopInner(nil)
	var mu sync.Mutex // guards first
	var first error   // the first error of a part, including errors while the process stops
	fail := func(what string, err error) {
		n.log.Error("a part of the process failed", "part", what, "err", err)
		err = fmt.Errorf("%s: %w", what, err)
		mu.Lock()
		if first == nil {
			first = err
		}
		mu.Unlock()
		stopFront(err)
	}
	ring := func(ctx context.Context, parts map[string]func(context.Context) error) *errgroup.Group {
		g := &errgroup.Group{}
		for name, run := range parts {
			g.Go(func() error {
				if err := partError(ctx, run(ctx)); err != nil {
					fail(name, err)
				}
				return nil
			})
		}
		return g
	}
	run := runner{n}
	innerG := ring(inner, run.innerParts(tasks))
	middleG := ring(middle, run.middleParts(tasks))
	frontG := ring(front, map[string]func(context.Context) error{"api": n.server.Run})
	<-front.Done()
	n.draining.Store(true)
	_ = frontG.Wait()
	stopMiddle(nil)
	_ = middleG.Wait()
	stopInner(nil)
	_ = innerG.Wait()
	return errors.Join(first, n.Close())
}

// parts holds functions that run until their context ends. The key is the name of the part.
type parts map[string]func(context.Context) error

// runner lists the parts of a process.
type runner struct{ *Node }

// innerParts returns the parts of the inner ring. The other rings need these parts, so the inner
// ring is stopped last.
func (n runner) innerParts(do cluster.Tasks) parts {
	ps := parts{"callers": n.outcomeCallers.Run, "preferences": n.prefs.Run, "cancels": n.cancels.Run, "committer": n.committer.Run, "rates": n.rates.Run}
	for name, run := range n.provs.backgroundParts() {
		ps[name] = run
	}
	if n.embedded == nil {
		n.addServerParts(ps, do)
		return ps
	}
	ps["log"], ps["history"], ps["store"] = n.embedded.broker.Run, n.embedded.history.Run, n.embedded.watchStore
	for name, run := range n.purges() {
		ps[name] = run
	}
	if !do.Operator {
		return ps
	}
	ps["trim"] = func(ctx context.Context) error {
		return n.embedded.broker.Trim(ctx, func() map[string]map[int32]int64 { return n.groups.trimOffsets(n.embedded.history.Sealed()) })
	}
	ps["history pump"] = func(ctx context.Context) error { return n.embedded.followHistory(ctx, n.admin, n.reader) }
	if n.archive != nil {
		ps["archive"] = n.archive.Run
	}
	ps["positions"] = func(ctx context.Context) error { return n.embedded.keepPositions(ctx, &n.groups, n.log) }
	return ps
}

// middleParts returns the parts that do the work: consumer groups, timers, dispatcher and jobs.
func (n runner) middleParts(do cluster.Tasks) parts {
	ps := parts{}
	if n.embedded != nil { // with servers, addFigures makes one process count for all processes
		ps["deferred"] = n.deferred.Run
	}
	drainer := &intake.Drainer{Spill: n.st.spill, Log: n.producer, Logger: n.log}
	if n.embedded != nil {
		ps["spill drainer"] = drainer.Run
		// Also with RoleAPI the timer engine runs: intake stores new timers, and only the timer engine
		// knows which minutes of a shard are closed.
		ps["timers"] = n.later.timers.Run
	} else if do.API && n.st.spill != nil {
		ps["spill drainer"] = n.exclusive("spill-drainer", drainer.Run)
	}
	if do.Scheduler {
		ps["timers"] = n.later.timers.Run
	}
	if do.Dispatcher {
		ps["dispatcher"] = n.later.dispatcher.Run
		if n.servers != nil {
			ps["dispatcher"] = n.servers.dispatchers.DelayStart(n.cfg.Triggers.Timeout, n.later.dispatcher.Run)
		}
	}
	for _, l := range do.Lanes {
		ps["group "+l.Group()], ps["group "+l.RetryGroup()] = n.groups.byName(l.Group()).Run, n.groups.byName(l.RetryGroup()).Run
	}
	if do.Operator {
		for _, g := range []string{deadletter.DeadLetterGroup, outcomehook.FollowGroup} {
			ps["group "+g] = n.groups.byName(g).Run
		}
		ps["jobs"] = n.jobs.Run
		for name, run := range (parts{"reconciler": n.reconcile, "outcome teller": n.later.teller.Run, "audit": func(ctx context.Context) error { return n.auditor.Watch(ctx, n.cfg.Audit.Every, n.cfg.Audit.Window) }}) {
			ps[name] = n.exclusive(name, run)
		}
	}
	return ps
}

// partError returns the error of a part that has ended. It returns nil if the part ended because ctx
// ended. If the part ends before ctx, the part has failed, even if it returned nil or context.Canceled.
func partError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil && err == nil:
		return errors.New("the part ended too early: it must run until the process stops")
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return nil
	}
	return err
}

// exclusive wraps the function run of a part. The returned function runs the part only while this
// process has the part's lease, so that only one process at a time runs it.
func (n runner) exclusive(name string, run func(context.Context) error) func(context.Context) error {
	return cluster.Exclusive(n.st.lease, n.owner, name, run)
}

// Idle reports whether no work waits. That means that every group of this process was assigned its
// topics and has finished all their records, and that the timer engine has no timer in memory. Idle
// ignores timers that are due later, because they are only in the store.
func (n *Node) Idle() bool { return allDone(n.groups.lags()) && n.later.timers.Pending() == 0 }

// Audit audits everything that was accepted at or after the time since. If this time is zero, it
// audits all data that is kept.
func (n *Node) Audit(ctx context.Context, since time.Time) (api.Conservation, error) {
	return n.auditor.Audit(ctx, since)
}

// hasTask reports whether the process has a task. With embedded engines it always returns true,
// because only one process exists.
func (n *Node) hasTask(task func(cluster.Tasks) bool) bool { return n.embedded != nil || task(n.tasks) }
