package app

import (
	"context"
	"sync"
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

// lanes pauses lanes: what operators want is in the store, and the gates before
// the workers follow it.
type lanes struct {
	n     *Node
	meta  engine.Meta
	gates map[notify.Lane]*worker.Gate

	mu     sync.Mutex
	paused map[string]pause // as stored
}

// openLanes reads what was paused before the workers are made.
func openLanes(ctx context.Context, n *Node) (*lanes, error) {
	l := &lanes{n: n, meta: n.st.meta, gates: map[notify.Lane]*worker.Gate{}}
	for _, lane := range notify.Lanes() {
		l.gates[lane] = &worker.Gate{}
	}
	err := l.follow(ctx)
	return l, err
}

// follow reads what another process changed.
func (l *lanes) follow(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	stored, _, err := engine.ReadMetaMap[pause](ctx, l.meta, lanesMeta)
	if err == nil {
		l.applyLocked(stored)
	}
	return err
}

func (l *lanes) applyLocked(stored map[string]pause) {
	l.paused = stored
	for _, lane := range notify.Lanes() {
		_, shut := stored[lane.String()]
		l.gates[lane].Set(shut)
	}
}

// Set pauses a lane or lets it go on; durable when it returns nil, whatever other
// processes set at the same moment. A lane that is paused already keeps who paused
// it first.
func (l *lanes) Set(ctx context.Context, name, by string, to api.LaneChange) (api.Lane, error) {
	lane, ok := notify.ParseLane(name)
	if !ok {
		return api.Lane{}, notify.NotFound("lane")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := false
	stored, err := engine.ChangeMetaMap(ctx, l.meta, lanesMeta, func(all map[string]pause) bool {
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
	})
	if err != nil {
		return api.Lane{}, err
	}
	l.applyLocked(stored)
	if changed {
		l.n.log.Warn("lane "+map[bool]string{true: "paused", false: "goes on"}[*to.Paused], "lane", name, "by", by, "reason", to.Reason)
	}
	return l.lane(lane), nil
}

// List returns every lane.
func (l *lanes) List() []api.Lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]api.Lane, 0, len(l.gates))
	for _, lane := range notify.Lanes() {
		out = append(out, l.lane(lane))
	}
	return out
}

// Paused says why a lane claims nothing; ok is false when it does.
func (l *lanes) Paused(lane notify.Lane) (since time.Time, by, reason string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.paused[lane.String()]
	return time.UnixMilli(p.At).UTC(), p.By, p.Reason, ok
}

// lane is as it stands now; the lock is held.
func (l *lanes) lane(lane notify.Lane) api.Lane {
	out := api.Lane{Name: lane.String()}
	if p, ok := l.paused[out.Name]; ok {
		at := time.UnixMilli(p.At).UTC()
		out.Paused, out.Since, out.By, out.Reason = true, &at, p.By, p.Reason
	}
	for _, g := range l.n.lags() {
		if g.Group == lane.Group() || g.Group == lane.RetryGroup() {
			out.Lag += g.Lag
			out.InFlight += g.InFlight
		}
	}
	if st, ok := l.n.standing(lane); ok {
		out.Stands = st.String()
	}
	return out
}
