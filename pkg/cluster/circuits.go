package cluster

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trigger"
	"github.com/notifyd/notifyd/pkg/worker"
)

// Rows of the store: which providers' routes operators hold open, and since when (ms
// since 1970); and which callers' circuits are held, and resets.
const (
	routeHoldsMeta = "held_routes"
	pinsMeta       = "pinned_circuits"
)

// What stands before the name of a circuit: it is of a provider's route or of a caller's
// callbacks.
const (
	ofProvider = "provider:"
	ofCaller   = "caller:"
)

// circuitWait bounds a change of a circuit, which goes on when its request ends: the
// audit log says already that it was made.
const circuitWait = 5 * time.Second

// pin is what an operator did to a caller's circuit.
type pin struct {
	At int64  `json:"at_ms"`
	To string `json:"to"` // "open", "closed" or "reset"
}

// CircuitConfig is what Circuits work on.
type CircuitConfig struct {
	Meta    engine.Meta
	Routes  []string // of all providers
	Health  *worker.Health
	Callers *trigger.Dispatcher
	// Alone: no other process calls back, so that pins need not be stored. They end with
	// the process then.
	Alone  bool
	Logger *slog.Logger
}

// Circuits are the breakers of providers' routes and of callers' callbacks, in this
// process.
type Circuits struct {
	cfg     CircuitConfig
	holds   followed[int64]
	pins    followed[pin]
	applied map[string]pin // of pins; nobody but pins.apply has it
}

// OpenCircuits applies the routes that are held. Pins of callers come with Follow.
func OpenCircuits(ctx context.Context, cfg CircuitConfig) (*Circuits, error) {
	c := &Circuits{cfg: cfg, applied: map[string]pin{}}
	c.holds.meta, c.holds.name, c.holds.apply = cfg.Meta, routeHoldsMeta, c.applyHolds
	c.pins.meta, c.pins.name, c.pins.apply = cfg.Meta, pinsMeta, c.applyPins
	return c, c.holds.Follow(ctx)
}

// Follow applies what operators changed through another process.
func (c *Circuits) Follow(ctx context.Context) error {
	if err := c.pins.Follow(ctx); err != nil {
		return err
	}
	return c.holds.Follow(ctx)
}

func (c *Circuits) applyHolds(stored map[string]int64) {
	for _, route := range c.cfg.Routes {
		ms, held := stored[route]
		var since time.Time
		if held {
			since = time.UnixMilli(ms)
		}
		if c.cfg.Health.Hold(route, since) {
			c.cfg.Logger.Warn("circuit "+map[bool]string{true: "held open", false: "let go"}[held]+" by an operator", "route", route)
		}
	}
}

func (c *Circuits) applyPins(stored map[string]pin) {
	for caller, p := range stored {
		if c.applied[caller] != p {
			c.applied[caller] = p
			c.setCaller(caller, p.To)
		}
	}
}

// IsProviderCircuit reports whether a circuit of this name stands before a provider's route.
func IsProviderCircuit(name string) bool { return strings.HasPrefix(name, ofProvider) }

// Own returns the breakers of this process by name.
func (c *Circuits) Own() []api.Circuit {
	var out []api.Circuit
	for _, r := range c.cfg.Health.Circuits(time.Now()) {
		one := api.Circuit{Name: ofProvider + r.Route, State: r.State, Pinned: r.Held, Reason: r.Reason, Code: r.Code, Since: orNil(r.Since)}
		if !r.Blocked.IsZero() {
			one.State, one.Until = "open", &r.Blocked
			if one.Reason == "" {
				one.Reason = "throttled"
			}
		}
		if !r.RetryAt.IsZero() && !r.Held {
			one.Until = &r.RetryAt
		}
		out = append(out, one)
	}
	for _, r := range c.cfg.Callers.Circuits() {
		out = append(out, callerCircuit(r))
	}
	slices.SortFunc(out, func(a, b api.Circuit) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func callerCircuit(c trigger.Circuit) api.Circuit {
	return api.Circuit{
		Name: ofCaller + c.Caller, State: c.State.String(), Pinned: c.Hold != limit.NotHeld,
		InFlight: c.InFlight, Limit: c.Limit, Queued: c.Queued, Since: orNil(c.Since), Until: orNil(c.Until),
	}
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Set implements server.Circuits.
func (c *Circuits) Set(ctx context.Context, name, to string) (api.Circuit, error) {
	route, isRoute := strings.CutPrefix(name, ofProvider)
	caller, isCaller := strings.CutPrefix(name, ofCaller)
	switch {
	case isRoute && to != "open" && to != "reset":
		// Held closed, calls would go on to a provider that refuses them.
		return api.Circuit{}, notify.Invalid("not_settable", "name", "a provider's circuit is held open or reset, not closed")
	case isRoute && !slices.Contains(c.cfg.Routes, route), !isRoute && (!isCaller || caller == ""):
		return api.Circuit{}, notify.NotFound("circuit")
	}
	if err := notify.BeforeAct(ctx); err != nil {
		return api.Circuit{}, err
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), circuitWait)
	defer stop()
	if isRoute {
		return c.holdRoute(ctx, route, to == "open")
	}
	if to != "open" && to != "closed" {
		to = "reset"
	}
	if err := c.keepPin(ctx, caller, to); err != nil {
		return api.Circuit{}, err
	}
	return callerCircuit(c.setCaller(caller, to)), nil
}

// holdRoute holds a route open in every process, or lets it go.
func (c *Circuits) holdRoute(ctx context.Context, route string, held bool) (api.Circuit, error) {
	if err := c.holds.set(ctx, func(all map[string]int64) bool {
		if _, is := all[route]; is == held {
			return false
		}
		if held {
			all[route] = time.Now().UnixMilli()
		} else {
			delete(all, route)
		}
		return true
	}); err != nil {
		return api.Circuit{}, err
	}
	for _, one := range c.Own() {
		if one.Name == ofProvider+route {
			return one, nil
		}
	}
	return api.Circuit{}, notify.NotFound("circuit")
}

// keepPin tells the other processes. No pin is lost when several processes keep one
// at the same moment.
func (c *Circuits) keepPin(ctx context.Context, caller, to string) error {
	if c.cfg.Alone {
		return nil
	}
	return c.pins.set(ctx, func(all map[string]pin) bool {
		now := time.Now().UnixMilli()
		maps.DeleteFunc(all, func(_ string, p pin) bool { // every process has seen it long ago
			return p.To == "reset" && now-p.At > time.Hour.Milliseconds()
		})
		all[caller] = pin{now, to}
		return true
	})
}

// setCaller holds a caller's circuit in this process, or lets it go.
func (c *Circuits) setCaller(caller, to string) (now trigger.Circuit) {
	switch to {
	case "open":
		now, _ = c.cfg.Callers.HoldCircuit(caller, limit.HeldOpen) // an error only of other pins
	case "closed":
		now, _ = c.cfg.Callers.HoldCircuit(caller, limit.HeldClosed)
	default:
		now = c.cfg.Callers.ResetCircuit(caller)
	}
	return now
}
