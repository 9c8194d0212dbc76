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

// Observe calls f with every envelope whose outcome has become durable, from
// the workers' goroutines. Set it before Run.
func (n *Node) Observe(f func(*notify.Envelope)) { n.finished = f }

func (n *Node) observe(e *notify.Envelope) {
	if n.finished != nil {
		n.finished(e)
	}
}

// Describe says what debug bundles tell of the process. It is called before Run.
func (n *Node) Describe(a About) { n.about = a }

// Run runs the process until ctx ends, then stops in order: the API answers 503
// and finishes its requests, workers finish their calls and commit, timers and
// history stop, stores close. An error of any part ends the process. What it
// does, its configuration's roles say.
func (n *Node) Run(ctx context.Context) error { return n.RunAs(ctx, n.cfg.Roles...) }

// RunAs is Run with other roles than the configured ones. With the embedded
// engines there are two: cluster.RoleAll, and cluster.RoleAPI, which takes requests, makes them
// durable, and leaves delivery to a start with the workers; the log is not
// trimmed meanwhile.
func (n *Node) RunAs(ctx context.Context, roles ...string) error {
	tasks, err := cluster.ParseRoles(roles)
	if err != nil {
		err = notify.Invalid("bad_role", "role", err.Error())
	}
	if n.own != nil && (len(roles) != 1 || roles[0] != cluster.RoleAll && roles[0] != cluster.RoleAPI) {
		err = notify.Invalid("bad_role", "role", fmt.Sprintf("the embedded engines run as %s or %s, not as %q", cluster.RoleAll, cluster.RoleAPI, strings.Join(roles, ",")))
	}
	if err != nil {
		return errors.Join(err, n.Close())
	}
	// Before anything is called, for what was muted or cancelled in an earlier life
	// binds this one; and before anything follows changes: two loads of millions of
	// profiles would leave the snapshot too old for bulk while the second one runs.
	loads := map[string]func(context.Context) error{"preferences": n.prefs.Load, "cancels": n.cancels.Follow, "callers": n.asked.Load}
	if n.own == nil && len(tasks.Lanes) == 0 {
		loads = map[string]func(context.Context) error{"callers": n.asked.Load} // nobody here calls anyone
	}
	for what, load := range loads {
		if err := load(ctx); err != nil {
			if ctx.Err() != nil { // told to stop meanwhile
				return n.Close()
			}
			if n.own == nil && what == "preferences" && notify.KindOf(err) == notify.KindUnavailable {
				continue // Run reads them when their server is back; openPostgres said so
			}
			return errors.Join(fmt.Errorf("%s: %w", what, err), n.Close())
		}
	}
	// Three rings, stopped from the outside in: each is stopped only when the
	// ring before it is done, for that one still needs it.
	n.served, n.tasks, n.roles = true, tasks, roles
	front, stopFront := context.WithCancelCause(ctx)
	middle, stopMiddle := context.WithCancelCause(context.WithoutCancel(ctx))
	inner, stopInner := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopFront(nil)
	defer stopMiddle(nil)
	defer stopInner(nil)
	var mu sync.Mutex
	var first error // also of a part that fails while the process stops
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
				if err := endOf(ctx, run(ctx)); err != nil {
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

// parts of a process, by name: each runs until its context ends.
type parts map[string]func(context.Context) error

// runner knows the parts of a process.
type runner struct{ *Node }

// innerParts are what the others need to their end.
func (n runner) innerParts(do cluster.Tasks) parts {
	ps := parts{"callers": n.asked.Run, "preferences": n.prefs.Run, "cancels": n.cancels.Run, "committer": n.commit.Run, "rates": n.rates.Run}
	for name, run := range n.provs.runs() {
		ps[name] = run
	}
	if n.own == nil {
		n.addServerParts(ps, do)
		return ps
	}
	ps["log"], ps["history"], ps["store"] = n.own.broker.Run, n.own.history.Run, n.own.watchStore
	for name, run := range n.purges() {
		ps[name] = run
	}
	if !do.Operator {
		return ps
	}
	ps["trim"] = func(ctx context.Context) error {
		return n.own.broker.Trim(ctx, func() map[string]map[int32]int64 { return n.groups.safe(n.own.history.Sealed()) })
	}
	ps["history pump"] = func(ctx context.Context) error { return n.own.pump(ctx, n.admin, n.reader) }
	if n.archive != nil {
		ps["archive"] = n.archive.Run
	}
	ps["positions"] = func(ctx context.Context) error { return n.own.keepPositions(ctx, &n.groups, n.log) }
	return ps
}

// middleParts are what does the work.
func (n runner) middleParts(do cluster.Tasks) parts {
	ps := parts{}
	if n.own != nil { // where processes share a store one of them counts
		ps["deferred"] = n.deferred.Run
	}
	drainer := &intake.Drainer{Spill: n.st.spill, Log: n.producer, Logger: n.log}
	if n.own != nil {
		ps["spill drainer"] = drainer.Run
		ps["timers"] = n.later.timers.Run // owns minutes also of who only takes requests
	} else if do.API && n.st.spill != nil {
		ps["spill drainer"] = n.alone("spill-drainer", drainer.Run)
	}
	if do.Scheduler {
		ps["timers"] = n.later.timers.Run
	}
	if do.Dispatcher {
		ps["dispatcher"] = n.later.dispatcher.Run
		if n.servers != nil {
			ps["dispatcher"] = n.servers.dispatchers.After(n.cfg.Triggers.Timeout, n.later.dispatcher.Run)
		}
	}
	for _, l := range do.Lanes {
		ps["group "+l.Group()], ps["group "+l.RetryGroup()] = n.groups.of(l.Group()).Run, n.groups.of(l.RetryGroup()).Run
	}
	if do.Operator {
		for _, g := range []string{deadletter.DeadLetterGroup, outcomehook.FollowGroup} {
			ps["group "+g] = n.groups.of(g).Run
		}
		ps["jobs"] = n.jobs.Run
		for name, run := range (parts{"reconciler": n.reconcile, "outcome teller": n.later.teller.Run, "audit": func(ctx context.Context) error { return n.auditor.Watch(ctx, n.cfg.Audit.Every, n.cfg.Audit.Window) }}) {
			ps[name] = n.alone(name, run)
		}
	}
	return ps
}

// endOf is what the end of a part means: an error, unless ctx told it to end. One
// that was cancelled by something else has failed, and must not go unnoticed.
func endOf(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil && err == nil:
		return errors.New("ended by itself")
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return nil
	}
	return err
}

// alone makes a part run in one process at a time.
func (n runner) alone(name string, run func(context.Context) error) func(context.Context) error {
	return cluster.Alone(n.st.lease, n.owner, name, run)
}

// Idle reports whether nothing waits to be handled: every group of this process was
// assigned its topics, read and finished them, and no timer is due within the horizon.
func (n *Node) Idle() bool { return allDone(n.groups.lags()) && n.later.timers.Pending() == 0 }

// Audit adds up what was accepted since then (zero: all that is kept).
func (n *Node) Audit(ctx context.Context, since time.Time) (api.Conservation, error) {
	return n.auditor.Audit(ctx, since)
}

// does reports whether the process has a task; one with engines of its own has all.
func (n *Node) does(task func(cluster.Tasks) bool) bool { return n.own != nil || task(n.tasks) }
