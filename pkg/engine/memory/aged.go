package memory

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Aged is the contract that removes old outcomes, cancellations and campaigns.
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

func (s aged) PurgeCancels(ctx context.Context, before int64) (removed int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.cancels) > 1 && s.cancels[0].At < before {
		s.cancels = s.cancels[1:]
		removed++
	}
	return removed, check(ctx)
}

func (s aged) PurgeCampaigns(ctx context.Context, before int64) (removed int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, c := range s.campaigns {
		if c.Created < before && c.Bases[len(c.Bases)-1].Time().UnixMilli() < before {
			delete(s.campaigns, id)
			removed++
		}
	}
	return removed, check(ctx)
}
