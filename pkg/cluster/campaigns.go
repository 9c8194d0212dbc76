package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/worker"
)

// campaignHoldsMeta is the name of the row of engine.Meta with the campaigns that are paused or
// have a rate.
const campaignHoldsMeta = "campaign_holds"

// maxCampaignHolds is the largest number of holds in the row campaignHoldsMeta. The hold of a
// campaign that has ended stays in the row until an operator removes the pause and the rate.
const maxCampaignHolds = 1000

// CampaignHolds implements server.CampaignHolds. The holds are stored, and the workers of every
// process apply them.
type CampaignHolds struct{ followed[api.CampaignHold] }

// OpenCampaignHolds reads the holds and applies them to the workers. It must be called before the
// workers run, so that no worker sends for a paused campaign.
func OpenCampaignHolds(ctx context.Context, meta engine.Meta, workers *worker.Campaigns) (*CampaignHolds, error) {
	c := &CampaignHolds{}
	c.meta, c.name, c.apply = meta, campaignHoldsMeta, func(stored map[string]api.CampaignHold) {
		held := make(map[string]worker.CampaignHold, len(stored))
		for id, h := range stored {
			held[id] = worker.CampaignHold{Paused: h.Paused, Rate: h.Rate, Since: h.Since}
		}
		workers.Set(held)
	}
	err := c.Follow(ctx)
	return c, err
}

// Get implements server.CampaignHolds.
func (c *CampaignHolds) Get(id string) (api.CampaignHold, bool) { return c.get(id) }

// Set implements server.CampaignHolds.
func (c *CampaignHolds) Set(ctx context.Context, id, by string, to api.CampaignChange) (now api.CampaignHold, err error) {
	var full error
	if err := c.set(ctx, func(all map[string]api.CampaignHold) bool {
		before, is := all[id]
		h := before
		if to.Paused != nil {
			h.Paused = *to.Paused
		}
		if to.Rate != nil {
			h.Rate = *to.Rate
		}
		now, full = before, nil
		if is && h.Paused == before.Paused && h.Rate == before.Rate {
			return false
		}
		if !h.Paused && h.Rate == 0 {
			delete(all, id)
			now = api.CampaignHold{}
			return is
		}
		if !is && len(all) >= maxCampaignHolds {
			full = &notify.Error{Kind: notify.KindConflict, Code: "too_many_holds", Field: "id", Msg: fmt.Sprintf("%d campaigns already are paused or have a rate, which is the maximum; resume a campaign that has ended", maxCampaignHolds)}
			return false
		}
		h.Since, h.By, h.Reason = time.Now().UTC().Truncate(time.Millisecond), by, to.Reason
		all[id], now = h, h
		return true
	}); err != nil {
		return api.CampaignHold{}, err
	}
	return now, full
}
