package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/worker"
)

// campaignHoldsMeta is where the store keeps which campaigns are held back.
const campaignHoldsMeta = "campaign_holds"

// maxCampaignHolds bounds the row of holds. Holds of campaigns that have ended count
// until they are resumed.
const maxCampaignHolds = 1000

// campaignHolds implements server.CampaignHolds: holds are in the store, and the
// workers of every process follow them.
type campaignHolds struct {
	meta    engine.Meta
	workers *worker.Campaigns

	mu     sync.Mutex
	stored map[string]api.CampaignHold
}

// openCampaignHolds reads the holds before the workers are made.
func openCampaignHolds(ctx context.Context, meta engine.Meta) (*campaignHolds, error) {
	c := &campaignHolds{meta: meta, workers: &worker.Campaigns{}}
	err := c.follow(ctx)
	return c, err
}

// follow reads what another process changed.
func (c *campaignHolds) follow(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	stored, _, err := engine.ReadMetaMap[api.CampaignHold](ctx, c.meta, campaignHoldsMeta)
	if err == nil {
		c.applyLocked(stored)
	}
	return err
}

func (c *campaignHolds) applyLocked(stored map[string]api.CampaignHold) {
	c.stored = stored
	held := make(map[string]worker.CampaignHold, len(stored))
	for id, h := range stored {
		held[id] = worker.CampaignHold{Paused: h.Paused, Rate: h.Rate}
	}
	c.workers.Set(held)
}

// Get implements server.CampaignHolds.
func (c *campaignHolds) Get(id string) (api.CampaignHold, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, ok := c.stored[id]
	return h, ok
}

// Set implements server.CampaignHolds.
func (c *campaignHolds) Set(ctx context.Context, id, by string, to api.CampaignChange) (api.CampaignHold, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var full error
	stored, err := engine.ChangeMetaMap(ctx, c.meta, campaignHoldsMeta, func(all map[string]api.CampaignHold) bool {
		before, is := all[id]
		h := before
		if to.Paused != nil {
			h.Paused = *to.Paused
		}
		if to.Rate != nil {
			h.Rate = *to.Rate
		}
		if is && h.Paused == before.Paused && h.Rate == before.Rate {
			return false
		}
		h.Since, h.By, h.Reason = time.Now().UTC().Truncate(time.Millisecond), by, to.Reason
		switch full = nil; {
		case !h.Paused && h.Rate == 0:
			delete(all, id)
			return is
		case !is && len(all) >= maxCampaignHolds:
			full = &notify.Error{Kind: notify.KindConflict, Code: "too_many_holds", Field: "id", Msg: fmt.Sprintf("%d campaigns are paused or have a rate: resume one that has ended", maxCampaignHolds)}
			return false
		}
		all[id] = h
		return true
	})
	if err == nil {
		err = full
	}
	if err != nil {
		return api.CampaignHold{}, err
	}
	c.applyLocked(stored)
	return stored[id], nil
}
