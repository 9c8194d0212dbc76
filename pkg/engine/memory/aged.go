package memory

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Aged is the contract that removes old outcomes, cancellations and campaigns.
// Of the latter two pkg/store does.
func (s *Store) Aged() engine.Aged { return aged{s} }

type aged struct{ *Store }

func (s aged) PurgeOutcomes(ctx context.Context, closed, open int64) (removed int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, r := range s.rows {
		if r.Done && r.Updated < closed || !r.Done && r.Updated < open {
			delete(s.rows, k)
			removed++
		}
	}
	return removed, check(ctx)
}
