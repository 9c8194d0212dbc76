package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Lane is one lane of the workers: "push", "push-bulk", "sms" and so on.
type Lane struct {
	Name     string     `json:"name"`
	Paused   bool       `json:"paused"`
	Since    *time.Time `json:"since,omitempty"`  // of the pause
	By       string     `json:"by,omitempty"`     // who paused it
	Reason   string     `json:"reason,omitempty"` // why
	Lag      int64      `json:"lag"`              // records of the log not read yet, first attempts and retries
	InFlight int        `json:"in_flight"`        // records read and not done
	Stands   string     `json:"stands,omitempty"` // why no call can be made now, paused or not
}

// Lanes is the answer to GET /v1/ops/lanes.
type Lanes = List[Lane]

// Lanes lists the lanes.
func (cl *Client) Lanes(ctx context.Context) (Lanes, error) {
	return fetch[Lanes](ctx, cl, "/v1/ops/lanes", nil)
}

// LaneChange is the body of PUT /v1/ops/lanes/{name}: what a lane is set to.
type LaneChange struct {
	Paused *bool  `json:"paused"` // required
	Reason string `json:"reason,omitempty"`
}

// SetLane pauses a lane, or lets it go on. The pause holds across restarts.
func (cl *Client) SetLane(ctx context.Context, name string, paused bool, reason string) (Lane, error) {
	return send[Lane](ctx, cl, http.MethodPut, "/v1/ops/lanes/"+url.PathEscape(name), LaneChange{&paused, reason}, true)
}
