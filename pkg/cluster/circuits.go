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

// Rows of engine.Meta. held_routes contains the providers' routes that operators hold open, with
// the time of each hold (ms since 1970). pinned_circuits contains the holds and resets of callers'
// circuits.
const (
	routeHoldsMeta = "held_routes"
	pinsMeta       = "pinned_circuits"
)

// Prefixes of a circuit's name. A circuit belongs to a provider's route or to a caller's callbacks.
const (
	providerPrefix = "provider:"
	callerPrefix   = "caller:"
)

// circuitWait is the time limit of a change of a circuit. The change continues even if the
// operator's request ends, because the audit log already contains the change.
const circuitWait = 5 * time.Second

// circuitPin is an operator's change of a caller's circuit.
type circuitPin struct {
	At int64  `json:"at_ms"`
	To string `json:"to"` // "open", "closed" or "reset"
}

// CircuitConfig configures Circuits.
type CircuitConfig struct {
	Meta    engine.Meta
	Routes  []string // routes of all providers
	Health  *worker.Health
	Callers *trigger.Dispatcher
	// SingleProcess is true if only this process makes callbacks. Operators' changes of callers'
	// circuits are then kept only in memory, and are lost when the process ends.
	SingleProcess bool
	Logger        *slog.Logger
}

// Circuits shows the circuit breakers of this process: circuits of providers' routes and of callers'
// callbacks. Operators can hold and reset them in every process.
type Circuits struct {
	cfg   CircuitConfig
	holds followed[int64]
	pins  followed[circuitPin]
	// The field applied contains, for each caller, the latest operator's change that this process
	// has applied. Only applyPins uses it, with pins.mu held.
	applied map[string]circuitPin
}

// OpenCircuits returns the circuits and applies the stored holds of routes. It does not apply the
// pins of callers; the first call of Follow does.
func OpenCircuits(ctx context.Context, cfg CircuitConfig) (*Circuits, error) {
	c := &Circuits{cfg: cfg, applied: map[string]circuitPin{}}
	c.holds.meta, c.holds.name, c.holds.apply = cfg.Meta, routeHoldsMeta, c.applyHolds
	c.pins.meta, c.pins.name, c.pins.apply = cfg.Meta, pinsMeta, c.applyPins
	return c, c.holds.Follow(ctx)
}

// Follow applies the changes that operators made through another process.
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
			c.cfg.Logger.Warn("circuit "+map[bool]string{true: "held open", false: "released"}[held]+" by an operator", "route", route)
		}
	}
}

func (c *Circuits) applyPins(stored map[string]circuitPin) {
	for caller, p := range stored {
		if c.applied[caller] != p {
			c.applied[caller] = p
			c.applyToCaller(caller, p.To)
		}
	}
}

// IsProviderCircuit reports whether a circuit with this name belongs to a provider's route.
func IsProviderCircuit(name string) bool { return strings.HasPrefix(name, providerPrefix) }

// Local returns the circuit breakers of this process, sorted by name.
func (c *Circuits) Local() []api.Circuit {
	var out []api.Circuit
	for _, r := range c.cfg.Health.Circuits(time.Now()) {
		one := api.Circuit{Name: providerPrefix + r.Route, State: r.State, Pinned: r.Held, Reason: r.Reason, Code: r.Code, Since: timeOrNil(r.Since)}
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
		Name: callerPrefix + c.Caller, State: c.State.String(), Pinned: c.Hold != limit.NotHeld,
		InFlight: c.InFlight, Limit: c.Limit, Queued: c.Queued, Since: timeOrNil(c.Since), Until: timeOrNil(c.Until),
	}
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Set implements server.Circuits.
func (c *Circuits) Set(ctx context.Context, name, to string) (api.Circuit, error) {
	route, isRoute := strings.CutPrefix(name, providerPrefix)
	caller, isCaller := strings.CutPrefix(name, callerPrefix)
	switch {
	case isRoute && to != "open" && to != "reset":
		// A provider's circuit cannot be held closed: notifyd would continue to call a provider
		// that refuses the calls.
		return api.Circuit{}, notify.Invalid("not_settable", "name", "a provider's circuit can be held open or reset, but not held closed")
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
	if err := c.storePin(ctx, caller, to); err != nil {
		return api.Circuit{}, err
	}
	return callerCircuit(c.applyToCaller(caller, to)), nil
}

// holdRoute holds a route open in every process, or releases it.
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
	for _, one := range c.Local() {
		if one.Name == providerPrefix+route {
			return one, nil
		}
	}
	return api.Circuit{}, notify.NotFound("circuit")
}

// storePin stores an operator's change of a caller's circuit, so that the other processes apply
// it. If several processes store changes at the same time, no change is lost.
func (c *Circuits) storePin(ctx context.Context, caller, to string) error {
	if c.cfg.SingleProcess {
		return nil
	}
	return c.pins.set(ctx, func(all map[string]circuitPin) bool {
		now := time.Now().UnixMilli()
		maps.DeleteFunc(all, func(_ string, p circuitPin) bool { // every process has applied the pin long ago
			return p.To == "reset" && now-p.At > time.Hour.Milliseconds()
		})
		all[caller] = circuitPin{now, to}
		return true
	})
}

// applyToCaller holds a caller's circuit open or closed in this process, or resets it.
func (c *Circuits) applyToCaller(caller, to string) (now trigger.Circuit) {
	switch to {
	case "open":
		// HoldCircuit returns an error only for a state other than HeldOpen and HeldClosed.
		now, _ = c.cfg.Callers.HoldCircuit(caller, limit.HeldOpen)
	case "closed":
		now, _ = c.cfg.Callers.HoldCircuit(caller, limit.HeldClosed)
	default:
		now = c.cfg.Callers.ResetCircuit(caller)
	}
	return now
}
