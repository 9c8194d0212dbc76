package server

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// CampaignHolds keeps which campaigns are paused or have a rate.
type CampaignHolds interface {
	// Get returns a campaign's hold; ok is false if nothing holds it back.
	Get(id string) (h api.CampaignHold, ok bool)
	// Set changes a campaign's hold in the name of by, and returns it, zero when it was the last one
	// that held it back. The change is durable when Set returns nil.
	Set(ctx context.Context, id, by string, to api.CampaignChange) (api.CampaignHold, error)
}

// Receivers a second of a campaign.
const (
	minCampaignRate = 0.1
	maxCampaignRate = 10_000_000
)

// listCampaigns lists a caller's campaigns, or for operators those of any caller.
func listCampaigns(x *exchange) (out api.CampaignPage, err error) {
	limit, caller := x.query.number("limit", 100), x.listedCaller()
	bound := []string{"campaigns", caller, x.id.Caller}
	place, err := x.place(bound)
	if err != nil {
		return out, err
	}
	var after engine.Campaign
	if len(place) > 8 { // sealed, so it is a place or, for the first page, nothing
		after = engine.Campaign{ID: string(place[8:]), Created: int64(binary.BigEndian.Uint64(place))}
	}
	cs, err := x.srv.deps.Campaigns.List(x.r.Context(), caller, after, limit)
	out.Items = mapped(cs, func(c *engine.Campaign) api.Campaign {
		return api.Campaign{
			CampaignID: c.ID, Caller: c.Caller, CreatedAt: moment(c.Created), Parts: c.Parts, Accepted: c.Accepted, Rejected: c.Rejected,
			Hold: holdOf(x, c.ID),
		}
	})
	if len(cs) == limit {
		last := &cs[limit-1]
		out.Cursor = x.srv.cursors.seal(append(binary.BigEndian.AppendUint64(nil, uint64(last.Created)), last.ID...), bound...)
	}
	return out, err
}

// holdOf returns what holds a campaign back; nil: nothing.
func holdOf(x *exchange, id string) *api.CampaignHold {
	if h, ok := x.srv.deps.CampaignHolds.Get(id); ok {
		return &h
	}
	return nil
}

// findCampaign returns a campaign that x may see.
func findCampaign(x *exchange) (engine.Campaign, error) {
	id := x.r.PathValue("id")
	if !campaignID(id) {
		return engine.Campaign{}, notify.NotFound("campaign")
	}
	c, ok, err := x.srv.deps.Campaigns.Get(x.r.Context(), id)
	if err == nil && (!ok || !x.sees(c.Caller)) {
		err = notify.NotFound("campaign")
	}
	return c, err
}

func getCampaign(x *exchange) (out api.Summary, err error) {
	c, err := findCampaign(x)
	if err != nil {
		return out, err
	}
	out = api.Summary{
		CampaignID: c.ID, Caller: c.Caller, CreatedAt: moment(c.Created),
		Parts: c.Parts, Accepted: c.Accepted, Rejected: c.Rejected, Hold: holdOf(x, c.ID),
	}
	if err := addCancel(x, &out, c.ID); err != nil {
		return out, err
	}
	return out, summarise(x, &out, slices.Clip(c.Bases))
}

// setCampaign pauses a campaign, lets it go on, or changes its rate.
func setCampaign(x *exchange, in api.CampaignChange) (hold api.CampaignHold, err error) {
	switch {
	case in.Paused == nil && in.Rate == nil:
		return hold, notify.Invalid("required", "paused", "paused or rate says what to change")
	case in.Rate != nil && *in.Rate != 0 && !(*in.Rate >= minCampaignRate && *in.Rate <= maxCampaignRate):
		return hold, notify.Invalid("out_of_range", "rate", "0 for no limit, or 0.1 to 10,000,000 receivers a second")
	case len(in.Reason) > maxRemark:
		return hold, notify.Invalid("too_long", "reason", "at most 512 bytes")
	}
	c, err := findCampaign(x)
	if err != nil {
		return hold, err
	}
	x.of(c.Caller)
	if err := x.record(); err != nil {
		return hold, err
	}
	return x.srv.deps.CampaignHolds.Set(x.r.Context(), c.ID, x.id.Caller, in)
}

// cancelCampaign stops what has not started of a campaign, and its later parts.
func cancelCampaign(x *exchange) error {
	c, err := findCampaign(x)
	if err != nil {
		return err
	}
	x.of(c.Caller)
	if err := storeCancel(x, c.ID, c.Caller, func() error { return nil }); err != nil {
		return err
	}
	cancelParts(x, c.Bases)
	return nil
}
