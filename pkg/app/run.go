package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/stream"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// Observe calls f with every envelope whose outcome has become durable, from
// the workers' goroutines. Set it before Run.
func (n *Node) Observe(f func(*notify.Envelope)) { n.finished = f }

func (n *Node) observe(e *notify.Envelope) {
	if n.finished != nil {
		n.finished(e)
	}
}

// Run runs the process until ctx ends, then stops in order: the API answers 503
// and finishes its requests, workers finish their calls and commit, timers and
// history stop, stores close. An error of any part ends the process.
func (n *Node) Run(ctx context.Context) error { return n.RunAs(ctx, RoleAll) }

// RunAs is Run for a process that does not do everything: with RoleAPI it takes
// requests and makes them durable, and leaves delivery to a start with the
// workers; the log is not trimmed meanwhile. RoleWorker and RoleScheduler need
// engines that processes share, which the embedded ones are not.
func (n *Node) RunAs(ctx context.Context, role string) error {
	if role != RoleAll && role != RoleAPI {
		err := notify.Invalid("bad_role", "role", fmt.Sprintf("the embedded engines run as %s or %s, not as %q", RoleAll, RoleAPI, role))
		return errors.Join(err, n.Close())
	}
	// Before anything is called, for what was muted or cancelled in an earlier life
	// binds this one; and before anything follows changes: two loads of millions of
	// profiles would leave the snapshot too old for bulk while the second one runs.
	for what, load := range map[string]func(context.Context) error{"preferences": n.prefs.Load, "cancels": n.cancels.Follow, "callers": n.asked.Load} {
		if err := load(ctx); err != nil {
			if ctx.Err() != nil { // told to stop meanwhile
				return n.Close()
			}
			return errors.Join(fmt.Errorf("%s: %w", what, err), n.Close())
		}
	}
	// Three rings, stopped from the outside in: each is stopped only when the
	// ring before it is done, for that one still needs it.
	n.served, n.role = true, role
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
	innerParts := map[string]func(context.Context) error{
		"log": n.broker.Run, "history": n.history.Run, "preferences": n.prefs.Run, "cancels": n.cancels.Run, "callers": n.asked.Run,
		"committer": n.commit.Run, "store": n.watchStore, "purge": n.purge, "rates": n.rates.run,
	}
	if role != RoleAPI {
		innerParts["trim"] = func(ctx context.Context) error { return n.broker.Trim(ctx, n.safe) }
		innerParts["history pump"] = n.pump
		if n.archive != nil {
			innerParts["archive"] = n.archive.Run
		}
		innerParts["positions"] = n.keepPositions
	}
	for name, run := range n.provs.runs() {
		innerParts[name] = run
	}
	innerG := ring(inner, innerParts)
	middleParts := map[string]func(context.Context) error{"timers": n.later.timers.Run}
	if role != RoleAPI {
		middleParts["dispatcher"], middleParts["reconciler"], middleParts["jobs"] = n.later.dispatcher.Run, n.reconcile, n.jobs.Run
		middleParts["outcome teller"] = n.later.teller.Run
		middleParts["audit"] = n.auditEvery
		for i, g := range n.groups {
			middleParts["group "+n.groupNames[i]] = g.Run
		}
	}
	drainer := &intake.Drainer{Spill: n.store.Spill(), Log: n.producer, Logger: n.log}
	middleParts["spill drainer"] = drainer.Run
	middleG := ring(middle, middleParts)
	frontG := ring(front, map[string]func(context.Context) error{"api": n.server.Run})
	<-front.Done()
	_ = frontG.Wait()
	stopMiddle(nil)
	_ = middleG.Wait()
	stopInner(nil)
	_ = innerG.Wait()
	return errors.Join(first, n.Close())
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

// watchStore ends the process at the first failure of its disk: what is durable
// is not known then, and a new start reads it.
func (n *Node) watchStore(ctx context.Context) error {
	select {
	case <-n.store.Failed():
		return n.store.Err()
	case <-ctx.Done():
		return nil
	}
}

// purge forgets idempotency keys, dead letters, triggers and jobs whose time is
// over.
func (n *Node) purge(ctx context.Context) error {
	t := time.NewTicker(10 * time.Minute)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		now := time.Now()
		_, err := n.store.Idem().Purge(ctx, now.UnixMilli())
		if err == nil {
			err = n.purgeLetters(ctx, now)
		}
		if err == nil {
			err = n.purgeTerminal(ctx)
		}
		if err == nil {
			_, err = n.jobs.Purge(ctx, now)
		}
		if err != nil && ctx.Err() == nil {
			n.log.Warn("purge", "err", err)
		}
	}
}

// pump follows the first-attempt topics into history.
func (n *Node) pump(ctx context.Context) error {
	starts, err := n.admin.StartOffsets(ctx, firstTopics()...)
	if err != nil {
		return err
	}
	from := make(map[stream.TopicPartition]int64, len(starts))
	resume := n.history.Resume()
	for tp, start := range starts {
		at, ok := resume[history.Part(tp)]
		from[tp] = max(at, start)
		if !ok || at < start {
			n.history.Advance(history.Part(tp), start)
		}
	}
	return n.reader.Run(ctx, from, func(tp stream.TopicPartition, recs []stream.Record) error {
		hs := make([]history.Record, 0, len(recs))
		for i := range recs {
			if !recs[i].Lost() {
				hs = append(hs, history.Record{Topic: tp.Topic, Partition: tp.Partition, Offset: recs[i].Offset, Value: recs[i].Value, Time: recs[i].Time.UnixMilli()})
			}
		}
		if err := n.history.Append(ctx, hs...); err != nil {
			return err
		}
		if len(hs) < len(recs) { // the last ones may be lost, and somebody waits for the end
			n.history.Advance(history.Part(tp), recs[len(recs)-1].Offset+1)
		}
		return nil
	})
}

// keepFailed is how many of the latest records of notifications-failed stay for
// services that read the topic; callers' feeds do not depend on it.
const keepFailed = 100_000

// safe is what may be trimmed: behind what the groups have committed and, for
// first attempts, behind what history has sealed.
func (n *Node) safe() map[string]map[int32]int64 {
	out := map[string]map[int32]int64{}
	for _, g := range n.groups {
		for _, p := range g.Stats().Partitions {
			if out[p.TP.Topic] == nil {
				out[p.TP.Topic] = map[int32]int64{}
			}
			at := p.Committed
			if p.TP.Topic == notify.TopicFailed || p.TP.Topic == trigger.TopicDLQ {
				at -= keepFailed // others read it too
			}
			if at > 0 {
				out[p.TP.Topic][p.TP.Partition] = at
			}
		}
	}
	sealed := n.history.Sealed()
	first := firstTopics()
	for topic, parts := range out {
		if !slices.Contains(first, topic) {
			continue
		}
		for part, at := range parts {
			parts[part] = min(at, sealed[history.Part{Topic: topic, Partition: part}])
		}
	}
	return out
}
