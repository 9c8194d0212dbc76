package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// CampaignHold is what holds a campaign back.
type CampaignHold struct {
	Paused bool      `json:"paused"`
	Rate   float64   `json:"rate"` // receivers a second of each channel, over all processes; 0: no limit
	Since  time.Time `json:"since,omitzero"`
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

// Campaign is a campaign in a list. GET /v1/campaigns/{id} counts its receivers by state.
type Campaign struct {
	CampaignID string        `json:"campaign_id"`
	Caller     string        `json:"caller"`
	CreatedAt  time.Time     `json:"created_at"`
	Parts      int           `json:"parts"`
	Accepted   int64         `json:"accepted"` // receivers, of all parts
	Rejected   int64         `json:"rejected"`
	Hold       *CampaignHold `json:"hold,omitempty"` // nil: nothing holds it back
}

// CampaignPage is a page of campaigns, the newest first.
type CampaignPage = List[Campaign]

// Campaigns lists campaigns, the newest first. caller is for operators; empty means
// all that the token may see.
func (cl *Client) Campaigns(ctx context.Context, caller string, p Page) (CampaignPage, error) {
	q := url.Values{}
	set(q, "caller", caller)
	set(q, "cursor", p.After)
	setInt(q, "limit", int64(p.Limit))
	return fetch[CampaignPage](ctx, cl, "/v1/campaigns", q)
}

// CampaignChange changes a campaign's hold. A nil field keeps the stored value.
type CampaignChange struct {
	Paused *bool    `json:"paused,omitempty"`
	Rate   *float64 `json:"rate,omitempty"` // receivers a second, 0.1 to 10,000,000; 0: no limit
	Reason string   `json:"reason,omitempty"`
}

// SetCampaign pauses a campaign, lets it go on, or changes its rate. Receivers that
// were put off are looked at again within a minute of a new rate, and within ten
// minutes of the end of a pause. A hold survives restarts.
func (cl *Client) SetCampaign(ctx context.Context, id string, to CampaignChange) (CampaignHold, error) {
	return send[CampaignHold](ctx, cl, http.MethodPatch, "/v1/campaigns/"+url.PathEscape(id), to, true)
}
