package app

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
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
	l := &lanes{n: n, meta: n.st.meta, gates: map[notify.Lane]*worker.Gate{}, paused: map[string]pause{}}
	b, err := l.meta.GetMeta(ctx, lanesMeta)
	if err != nil {
		return nil, err
	}
	if len(b) > 0 {
		if err := json.Unmarshal(b, &l.paused); err != nil {
			return nil, fmt.Errorf("which lanes are paused: %w", err)
		}
	}
	for _, lane := range notify.Lanes() {
		l.gates[lane] = &worker.Gate{}
		_, shut := l.paused[lane.String()]
		l.gates[lane].Set(shut)
	}
	return l, nil
}

// follow reads what another process changed.
func (l *lanes) follow(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.followLocked(ctx)
}

func (l *lanes) followLocked(ctx context.Context) error {
	b, err := l.meta.GetMeta(ctx, lanesMeta)
	if err != nil {
		return err
	}
	now := map[string]pause{}
	if len(b) > 0 {
		if err := json.Unmarshal(b, &now); err != nil {
			return err
		}
	}
	l.paused = now
	for _, lane := range notify.Lanes() {
		_, shut := now[lane.String()]
		l.gates[lane].Set(shut)
	}
	return nil
}

// Set pauses a lane or lets it go on; durable when it returns nil. A lane that
// is paused already keeps who paused it first.
func (l *lanes) Set(ctx context.Context, name string, to server.LaneChange) (api.Lane, error) {
	lane, ok := notify.ParseLane(name)
	if !ok {
		return api.Lane{}, notify.NotFound("lane")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n.own == nil { // another process may have changed it since
		if err := l.followLocked(ctx); err != nil {
			return api.Lane{}, err
		}
	}
	if _, is := l.paused[name]; is != to.Paused {
		next := map[string]pause{}
		for k, v := range l.paused {
			next[k] = v
		}
		if to.Paused {
			next[name] = pause{At: time.Now().UnixMilli(), By: to.By, Reason: to.Reason}
		} else {
			delete(next, name)
		}
		b, err := json.Marshal(next)
		if err != nil {
			return api.Lane{}, err
		}
		if err := l.meta.PutMeta(ctx, lanesMeta, b); err != nil {
			return api.Lane{}, err
		}
		l.paused = next
		l.gates[lane].Set(to.Paused)
		l.n.log.Warn("lane "+map[bool]string{true: "paused", false: "goes on"}[to.Paused], "lane", name, "by", to.By, "reason", to.Reason)
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
