package app

import (
	"context"
	"errors"
	"time"

	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/cluster"
)

const (
	triggersKept = 30 * 24 * time.Hour // how long triggers are kept after their end
	purgeBatch   = 1000                // maximum number of triggers that one call removes

	// outcomesLonger is the time for which outcomes are kept after the history has removed their
	// requests. An audit may still read a removed segment of the history, and must then find the
	// outcome rows.
	outcomesLonger = 24 * time.Hour
)

// purger removes old rows.
type purger struct {
	st       *stores
	embedded *embeddedEngines // nil: the servers expire rows of outcomes, cancels and campaigns without a purge
	archive  *archive.Archiver
	maxDelay time.Duration // longest delay of a timer
}

// purges returns the parts that remove old rows, by name. Each part has its own loop, so that a slow
// purge does not delay other purges.
func (n runner) purges() parts {
	ps := parts{}
	add := func(name string, purge func(ctx context.Context, now time.Time) error) {
		ps[name] = n.removals.Every(name, n.st.meta, purge)
	}
	add("purge of idempotency keys", func(ctx context.Context, now time.Time) error {
		_, err := n.st.idem.Purge(ctx, now.UnixMilli())
		return err
	})
	p := newPurger(n.Node)
	add("purge of dead letters", p.removeLetters)
	add("purge of triggers", p.removeTriggers)
	add("purge of jobs", func(ctx context.Context, now time.Time) error {
		_, err := n.jobs.Purge(ctx, now)
		return err
	})
	if n.embedded != nil {
		add("purge of outcomes", p.removeOutcomes)
		add("purge of cancellations and campaigns", p.removeCancelsAndCampaigns)
	}
	return ps
}

func newPurger(n *Node) *purger {
	return &purger{st: &n.st, embedded: n.embedded, archive: n.archive, maxDelay: n.cfg.Timers.MaxDelay}
}

// removeOutcomes removes the outcome rows of requests that the history has removed, and their
// receipts. The history removes a request after its retention, and only after the archive has read
// it. A row with an open claim is kept for another timers.max_delay, because its record may still
// wait in the log or in a timer.
func (p *purger) removeOutcomes(ctx context.Context, now time.Time) error {
	closed := min(p.embedded.history.Kept(now).UnixMilli(), p.embedded.history.Oldest(now)) - outcomesLonger.Milliseconds()
	_, err := p.embedded.store.PurgeOutcomes(ctx, closed, closed-p.maxDelay.Milliseconds())
	return err
}

// removeCancelsAndCampaigns removes cancellations and campaigns that are not needed any more. A
// cancelled timer can wait for up to timers.max_delay, and its outcome is then kept for the
// retention of the history. So a cancellation is needed for the sum of both times.
func (p *purger) removeCancelsAndCampaigns(ctx context.Context, now time.Time) error {
	before := p.embedded.history.Kept(now).Add(-p.maxDelay - outcomesLonger).UnixMilli()
	_, err := p.embedded.store.PurgeCancels(ctx, before)
	_, err2 := p.embedded.store.PurgeCampaigns(ctx, before)
	return errors.Join(err, err2)
}

// removeLetters removes dead letters whose retention has ended. If there is an archive,
// removeLetters keeps dead letters that are not archived yet for up to archive.wait longer.
func (p *purger) removeLetters(ctx context.Context, now time.Time) error {
	until := now.UnixMilli()
	if p.archive != nil {
		var err error
		if until, err = p.archive.PurgeBefore(ctx, now); err != nil {
			return err
		}
	}
	_, err := p.st.letters.Purge(ctx, until)
	return err
}

// removeTriggers removes triggers that ended triggersKept ago or earlier. It returns when no such
// trigger is left, or when the next removal is due.
func (p *purger) removeTriggers(ctx context.Context, now time.Time) error {
	for began := time.Now(); time.Since(began) < cluster.RemovalEvery; {
		k, err := p.st.triggers.Purge(ctx, now.Add(-triggersKept).UnixMilli(), purgeBatch)
		if err != nil || k < purgeBatch {
			return err
		}
	}
	return nil
}
