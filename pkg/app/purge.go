package app

import (
	"context"
	"errors"
	"time"

	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/cluster"
)

const (
	triggersKept = 30 * 24 * time.Hour // after their end
	purgeBatch   = 1000                // triggers that one call removes at most

	// outcomesLonger is how much longer outcomes are kept than the history, so that an
	// audit that still reads a removed segment finds its rows.
	outcomesLonger = 24 * time.Hour
)

// purger removes old rows.
type purger struct {
	st       *stores
	embedded *embeddedEngines // nil: servers expire rows of outcomes, cancels and campaigns by themselves
	archive  *archive.Archiver
	maxDelay time.Duration // of timers
}

// purges returns the parts that remove old rows, by name. Each has its own loop, so
// that a purge that cannot keep up delays no other purge.
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
	add("purge of dead letters", p.letters)
	add("purge of triggers", p.triggers)
	add("purge of jobs", func(ctx context.Context, now time.Time) error {
		_, err := n.jobs.Purge(ctx, now)
		return err
	})
	if n.embedded != nil {
		add("purge of outcomes", p.outcomes)
		add("purge of cancellations and campaigns", p.cancelsAndCampaigns)
	}
	return ps
}

func newPurger(n *Node) *purger {
	return &purger{st: &n.st, embedded: n.embedded, archive: n.archive, maxDelay: n.cfg.Timers.MaxDelay}
}

// outcomes removes the outcome rows, receipts included, of requests that the history has
// removed. The history removes after its retention, and after the archive has read. A row that
// is not done is a claim whose record may still be in the log or in a timer, so it stays for
// as long as those can wait.
func (p *purger) outcomes(ctx context.Context, now time.Time) error {
	closed := min(p.embedded.history.Kept(now).UnixMilli(), p.embedded.history.Oldest(now)) - outcomesLonger.Milliseconds()
	_, err := p.embedded.store.PurgeOutcomes(ctx, closed, closed-p.maxDelay.Milliseconds())
	return err
}

// cancelsAndCampaigns removes cancellations and campaigns that cannot be needed any more. A
// timer waits for up to timers.max_delay after them, and its outcome is kept for the retention
// of the history.
func (p *purger) cancelsAndCampaigns(ctx context.Context, now time.Time) error {
	before := p.embedded.history.Kept(now).Add(-p.maxDelay - outcomesLonger).UnixMilli()
	_, err := p.embedded.store.PurgeCancels(ctx, before)
	_, err2 := p.embedded.store.PurgeCampaigns(ctx, before)
	return errors.Join(err, err2)
}

// letters removes dead letters whose retention is over. If there is an archive it keeps those
// that are not archived yet.
func (p *purger) letters(ctx context.Context, now time.Time) error {
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

// triggers removes triggers that ended at least triggersKept ago. It returns when none is left
// or the next tick is due.
func (p *purger) triggers(ctx context.Context, now time.Time) error {
	for began := time.Now(); time.Since(began) < cluster.RemovalEvery; {
		k, err := p.st.triggers.Purge(ctx, now.Add(-triggersKept).UnixMilli(), purgeBatch)
		if err != nil || k < purgeBatch {
			return err
		}
	}
	return nil
}
