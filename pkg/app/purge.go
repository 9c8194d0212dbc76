package app

import (
	"context"
	"errors"
	"time"

	"github.com/notifyd/notifyd/pkg/cluster"
)

const (
	triggersKept = 30 * 24 * time.Hour // behind their end
	purgeBatch   = 1000                // triggers of one call

	// outcomesLonger is how much longer outcomes are kept than the history, so that an
	// audit that still reads a removed segment finds its rows.
	outcomesLonger = 24 * time.Hour
)

// purges returns the parts that remove old rows, by name. Each has its own loop, so
// that a purge that cannot keep up delays no other purge.
func (n *Node) purges() parts {
	ps := parts{}
	add := func(name string, purge func(ctx context.Context, now time.Time) error) {
		ps[name] = n.removals.Every(name, n.st.meta, purge)
	}
	add("purge of idempotency keys", func(ctx context.Context, now time.Time) error {
		_, err := n.st.idem.Purge(ctx, now.UnixMilli())
		return err
	})
	add("purge of dead letters", n.purgeLetters)
	add("purge of triggers", n.purgeTriggers)
	add("purge of jobs", func(ctx context.Context, now time.Time) error {
		_, err := n.jobs.Purge(ctx, now)
		return err
	})
	if n.own != nil { // servers end these rows by themselves
		add("purge of outcomes", n.purgeOutcomes)
		add("purge of cancellations and campaigns", n.purgeRequests)
	}
	return ps
}

// purgeOutcomes forgets the outcomes, receipts among them, of what the history has
// removed: behind its retention, and behind the archive, which history waits for. A
// row that is not done is a claim of a record that may still be in the log, or of a
// timer: it stays for as long as those can wait.
func (n *Node) purgeOutcomes(ctx context.Context, now time.Time) error {
	closed := min(n.own.history.Kept(now).UnixMilli(), n.own.history.Oldest(now)) - outcomesLonger.Milliseconds()
	_, err := n.own.store.PurgeOutcomes(ctx, closed, closed-n.cfg.Timers.MaxDelay.Milliseconds())
	return err
}

// purgeRequests forgets cancellations and campaigns that nothing can ask for any
// more: a timer waits behind one for timers.max_delay, and its outcome is kept for
// the retention of the history.
func (n *Node) purgeRequests(ctx context.Context, now time.Time) error {
	before := n.own.history.Kept(now).Add(-n.cfg.Timers.MaxDelay - outcomesLonger).UnixMilli()
	_, err := n.own.store.PurgeCancels(ctx, before)
	_, err2 := n.own.store.PurgeCampaigns(ctx, before)
	return errors.Join(err, err2)
}

// purgeLetters forgets dead letters whose retention is over. Where there is an
// archive it keeps those that are not archived yet.
func (n *Node) purgeLetters(ctx context.Context, now time.Time) error {
	until := now.UnixMilli()
	if n.archive != nil {
		var err error
		if until, err = n.archive.PurgeBefore(ctx, now); err != nil {
			return err
		}
	}
	_, err := n.st.letters.Purge(ctx, until)
	return err
}

// purgeTriggers forgets triggers that ended triggersKept ago. It returns when no
// more are left or the next tick is due.
func (n *Node) purgeTriggers(ctx context.Context, now time.Time) error {
	for began := time.Now(); time.Since(began) < cluster.RemovalEvery; {
		k, err := n.st.triggers.Purge(ctx, now.Add(-triggersKept).UnixMilli(), purgeBatch)
		if err != nil || k < purgeBatch {
			return err
		}
	}
	return nil
}
