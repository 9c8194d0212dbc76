package cluster

import (
	"context"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/worker"
)

// lanesMeta is where the store keeps which lanes are paused.
const lanesMeta = "paused_lanes"

// pause is why a lane claims nothing.
type pause struct {
	At     int64  `json:"at_ms"` // ms since 1970
	By     string `json:"by"`
	Reason string `json:"reason,omitempty"`
}

// Lanes pauses lanes: what operators want is in the store, and the gates before the
// workers follow it. It implements server.Lanes.
type Lanes struct {
	followed[pause]
	gates map[notify.Lane]*worker.Gate
	log   *slog.Logger
	look  func(notify.Lane, *api.Lane)
}

// OpenLanes reads what was paused before the workers are made. look adds to a lane what
// else this process knows of it.
func OpenLanes(ctx context.Context, meta engine.Meta, log *slog.Logger, look func(notify.Lane, *api.Lane)) (*Lanes, error) {
	l := &Lanes{gates: map[notify.Lane]*worker.Gate{}, log: log, look: look}
	for _, lane := range notify.Lanes() {
		l.gates[lane] = &worker.Gate{}
	}
	l.meta, l.name, l.apply = meta, lanesMeta, func(stored map[string]pause) {
		for lane, gate := range l.gates {
			_, shut := stored[lane.String()]
			gate.Set(shut)
		}
	}
	err := l.Follow(ctx)
	return l, err
}

// Gate is what the workers of a lane ask before they claim.
func (l *Lanes) Gate(lane notify.Lane) *worker.Gate { return l.gates[lane] }

// Set pauses a lane or lets it go on; durable when it returns nil, whatever other
// processes set at the same moment. A lane that is paused already keeps who paused
// it first.
func (l *Lanes) Set(ctx context.Context, name, by string, to api.LaneChange) (api.Lane, error) {
	lane, ok := notify.ParseLane(name)
	if !ok {
		return api.Lane{}, notify.NotFound("lane")
	}
	changed := false
	if err := l.set(ctx, func(all map[string]pause) bool {
		_, is := all[name]
		if changed = is != *to.Paused; !changed {
			return false
		}
		if *to.Paused {
			all[name] = pause{At: time.Now().UnixMilli(), By: by, Reason: to.Reason}
		} else {
			delete(all, name)
		}
		return true
	}); err != nil {
		return api.Lane{}, err
	}
	if changed {
		l.log.Warn("lane "+map[bool]string{true: "paused", false: "goes on"}[*to.Paused], "lane", name, "by", by, "reason", to.Reason)
	}
	return l.lane(lane), nil
}

// List returns every lane.
func (l *Lanes) List() (out []api.Lane) {
	for _, lane := range notify.Lanes() {
		out = append(out, l.lane(lane))
	}
	return out
}

// Paused says why a lane claims nothing; ok is false when it does.
func (l *Lanes) Paused(lane notify.Lane) (since time.Time, by, reason string, ok bool) {
	p, ok := l.get(lane.String())
	return time.UnixMilli(p.At).UTC(), p.By, p.Reason, ok
}

func (l *Lanes) lane(lane notify.Lane) api.Lane {
	out := api.Lane{Name: lane.String()}
	if since, by, reason, ok := l.Paused(lane); ok {
		out.Paused, out.Since, out.By, out.Reason = true, &since, by, reason
	}
	l.look(lane, &out)
	return out
}
