package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// Suppression is an address that nothing is sent to, whoever asks: a provider called
// it dead.
type Suppression struct {
	UserID  string `json:"user_id"` // whose profile says so
	Channel string `json:"channel"`
	Address string `json:"address"`
	Code    string `json:"code"` // what the provider said
}

// Suppressions is a page of the suppression list. It may be short, even empty, and
// not be the last: that one has no cursor.
type Suppressions = List[Suppression]

// SuppressionFilter selects suppressions; an empty field selects all.
type SuppressionFilter struct {
	UserID, Channel, Address, Code string
}

// Query is the filter as parameters.
func (f SuppressionFilter) Query() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"user_id": f.UserID, "channel": f.Channel, "address": f.Address, "code": f.Code} {
		if v != "" {
			q.Set(name, v)
		}
	}
	return q
}

// SuppressionLift names an address to send to again.
type SuppressionLift struct {
	Address string `json:"address"`
	UserID  string `json:"user_id,omitempty"` // off this profile alone; empty: off all
}

// SuppressionLifted is what became of it.
type SuppressionLifted struct {
	Address string `json:"address"`
	Lifted  int    `json:"lifted"`     // profiles that listed it
	Still   bool   `json:"suppressed"` // another profile lists it: it is still not sent to
}

// Suppressions lists addresses that nothing is sent to, by user and address. Scope
// observe.
func (cl *Client) Suppressions(ctx context.Context, f SuppressionFilter, cursor string, limit int) (Suppressions, error) {
	q := f.Query()
	if cursor != "" {
		q.Set("cursor", cursor)
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return fetch[Suppressions](ctx, cl, "/v1/ops/suppressions", q)
}

// LiftSuppression takes an address off the suppression list. Scope operate.
func (cl *Client) LiftSuppression(ctx context.Context, in SuppressionLift) (SuppressionLifted, error) {
	return send[SuppressionLifted](ctx, cl, http.MethodPost, "/v1/ops/suppressions:lift", in, false)
}
