package server

import (
	"context"
	"net/http"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Lanes are the lanes of the workers.
type Lanes interface {
	// List returns every lane.
	List() []api.Lane
	// Set pauses a lane, or lets it go on, in the name of by; durable when it returns nil.
	// notify.KindNotFound for an unknown name.
	Set(ctx context.Context, name, by string, to api.LaneChange) (api.Lane, error)
	// Paused says since when, by whom and why a lane claims nothing; ok is false
	// when it does.
	Paused(lane notify.Lane) (since time.Time, by, reason string, ok bool)
}

func (s *Server) listLanes(x *exchange) error {
	if err := x.query().rest(); err != nil {
		return err
	}
	return x.json(http.StatusOK, api.Lanes{Items: s.deps.Lanes.List()})
}

func (s *Server) setLane(x *exchange) error {
	in, err := bodyOf[api.LaneChange](x)
	if err != nil {
		return err
	}
	switch {
	case in.Paused == nil:
		return notify.Invalid("required", "paused", "says whether the lane is paused")
	case len(in.Reason) > maxRemark:
		return notify.Invalid("too_long", "reason", "at most 512 bytes")
	}
	name := x.r.PathValue("name")
	if _, ok := notify.ParseLane(name); !ok {
		return notify.NotFound("lane")
	}
	if err := x.record(); err != nil {
		return err
	}
	return x.reply(s.deps.Lanes.Set(x.r.Context(), name, x.id.Caller, in))
}
