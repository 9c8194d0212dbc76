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

// lanesMeta is the name of the row of engine.Meta with the paused lanes.
const lanesMeta = "paused_lanes"

// lanePause says which operator paused a lane, when and why.
type lanePause struct {
	At     int64  `json:"at_ms"` // ms since 1970
	By     string `json:"by"`
	Reason string `json:"reason,omitempty"`
}

// Lanes pauses lanes and implements server.Lanes. The pauses are stored. In every process, the
// gates of the workers follow the stored pauses.
type Lanes struct {
	followed[lanePause]
	gates     map[notify.Lane]*worker.Gate
	log       *slog.Logger
	addStatus func(notify.Lane, *api.Lane)
}

// OpenLanes returns the lanes with the stored pauses applied. Call it before the workers run. List
// and Set call addStatus to fill the fields of an api.Lane that do not describe the pause.
func OpenLanes(ctx context.Context, meta engine.Meta, log *slog.Logger, addStatus func(notify.Lane, *api.Lane)) (*Lanes, error) {
	l := &Lanes{gates: map[notify.Lane]*worker.Gate{}, log: log, addStatus: addStatus}
	for _, lane := range notify.Lanes() {
		l.gates[lane] = &worker.Gate{}
	}
	l.meta, l.name, l.apply = meta, lanesMeta, func(stored map[string]lanePause) {
		for lane, gate := range l.gates {
			_, shut := stored[lane.String()]
			gate.Set(shut)
		}
	}
	err := l.Follow(ctx)
	return l, err
}

// Gate returns the gate of a lane. The lane's workers check the gate before they claim receivers.
func (l *Lanes) Gate(lane notify.Lane) *worker.Gate { return l.gates[lane] }

// Set pauses or resumes a lane. When it returns nil, the change is durable, even if other processes
// change lanes at the same time. If a lane is already paused, it keeps the operator, time and
// reason of the first pause.
func (l *Lanes) Set(ctx context.Context, name, by string, to api.LaneChange) (api.Lane, error) {
	lane, ok := notify.ParseLane(name)
	if !ok {
		return api.Lane{}, notify.NotFound("lane")
	}
	changed := false
	if err := l.set(ctx, func(all map[string]lanePause) bool {
		_, is := all[name]
		if changed = is != *to.Paused; !changed {
			return false
		}
		if *to.Paused {
			all[name] = lanePause{At: time.Now().UnixMilli(), By: by, Reason: to.Reason}
		} else {
			delete(all, name)
		}
		return true
	}); err != nil {
		return api.Lane{}, err
	}
	if changed {
		l.log.Warn("lane "+map[bool]string{true: "paused", false: "resumed"}[*to.Paused], "lane", name, "by", by, "reason", to.Reason)
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

// Paused returns when, by which operator and why a lane was paused. The result ok is false if the
// lane is not paused.
func (l *Lanes) Paused(lane notify.Lane) (since time.Time, by, reason string, ok bool) {
	p, ok := l.get(lane.String())
	return time.UnixMilli(p.At).UTC(), p.By, p.Reason, ok
}

func (l *Lanes) lane(lane notify.Lane) api.Lane {
	out := api.Lane{Name: lane.String()}
	if since, by, reason, ok := l.Paused(lane); ok {
		out.Paused, out.Since, out.By, out.Reason = true, &since, by, reason
	}
	l.addStatus(lane, &out)
	return out
}
