package server

import (
	"context"
	"encoding/binary"
	"net/http"

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
func (s *Server) listCampaigns(x *exchange) error {
	q := x.query()
	limit := q.number("limit", 100, 1000)
	caller := x.id.Caller
	if x.operator() {
		caller = q.text("caller")
	}
	bound := []string{"campaigns", caller, x.id.Caller}
	place, err := q.place(s.cursors, bound)
	if err != nil {
		return err
	}
	var after engine.Campaign
	if len(place) > 8 { // sealed, so it is a place or, for the first page, nothing
		after = engine.Campaign{ID: string(place[8:]), Created: int64(binary.BigEndian.Uint64(place))}
	}
	cs, err := s.deps.Campaigns.List(x.r.Context(), caller, after, int(limit))
	if err != nil {
		return err
	}
	out := api.CampaignPage{Items: []api.Campaign{}}
	for i := range cs {
		c := &cs[i]
		head := api.Campaign{CampaignID: c.ID, Caller: c.Caller, CreatedAt: moment(c.Created), Parts: c.Parts, Accepted: c.Accepted, Rejected: c.Rejected}
		if h, ok := s.deps.CampaignHolds.Get(c.ID); ok {
			head.Hold = &h
		}
		out.Items = append(out.Items, head)
	}
	if len(cs) == int(limit) {
		last := &cs[len(cs)-1]
		out.Cursor = s.cursors.seal(append(binary.BigEndian.AppendUint64(nil, uint64(last.Created)), last.ID...), bound...)
	}
	return x.json(http.StatusOK, out)
}

// setCampaign pauses a campaign, lets it go on, or changes its rate.
func (s *Server) setCampaign(x *exchange) error {
	in, err := bodyOf[api.CampaignChange](x)
	if err != nil {
		return err
	}
	switch {
	case in.Paused == nil && in.Rate == nil:
		return notify.Invalid("required", "paused", "paused or rate says what to change")
	case in.Rate != nil && *in.Rate != 0 && !(*in.Rate >= minCampaignRate && *in.Rate <= maxCampaignRate):
		return notify.Invalid("out_of_range", "rate", "0 for no limit, or 0.1 to 10,000,000 receivers a second")
	case len(in.Reason) > maxRemark:
		return notify.Invalid("too_long", "reason", "at most 512 bytes")
	}
	c, err := x.campaign()
	if err != nil {
		return err
	}
	x.of(c.Caller)
	if err := x.record(); err != nil {
		return err
	}
	return x.reply(s.deps.CampaignHolds.Set(x.r.Context(), c.ID, x.id.Caller, in))
}
