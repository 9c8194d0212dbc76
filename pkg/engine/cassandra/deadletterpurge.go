package cassandra

import (
	"context"
	"math"
)

// Purge implements engine.DeadLetters. It reads the list that is ordered by the end of
// retention, earliest first.
func (l deadLetters) Purge(ctx context.Context, now int64) (int, error) {
	var removedFrom partSet
	n, err := purgeListed(ctx, l.s, purgeOfLetters, now+1, math.MaxInt, func(e purgeEntry) (gone, again bool, err error) {
		r, ok, err := l.serial(ctx, e.id)
		if err != nil || !ok || r.Until > now {
			return false, false, err
		}
		gone, err = l.s.runConditional(ctx, "the purge of a dead letter", func() (swapOutcome, error) {
			if _, ok, err := l.serial(ctx, e.id); err != nil || ok {
				return swapUndone, err
			}
			return swapDone, nil
		}, stmt{`DELETE FROM dead_letters WHERE id = ? IF EXISTS`, []any{e.id}})
		if err != nil || !gone {
			return false, false, err
		}
		at := letterEntry(r.LastFailed, e.id)
		removedFrom.add([]listEntry{at})
		return true, false, removeFromList(ctx, l.s, l.s.clock.now(), at)
	})
	if err != nil {
		return n, err
	}
	return n, removedFrom.forgetEmpty(ctx, l.s)
}
