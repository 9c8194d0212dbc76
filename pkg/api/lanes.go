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
type Lanes struct {
	Items []Lane `json:"items"`
}

// Lanes lists the lanes.
func (cl *Client) Lanes(ctx context.Context) (out Lanes, err error) {
	err = cl.get(ctx, "/v1/ops/lanes", nil, &out)
	return out, err
}

// SetLane pauses a lane, or lets it go on. The pause holds across restarts.
func (cl *Client) SetLane(ctx context.Context, name string, paused bool, reason string) (out Lane, err error) {
	err = cl.send(ctx, http.MethodPut, "/v1/ops/lanes/"+url.PathEscape(name), struct {
		Paused bool   `json:"paused"`
		Reason string `json:"reason,omitempty"`
	}{paused, reason}, true, &out)
	return out, err
}
