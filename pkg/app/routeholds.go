package app

import (
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// routeHoldsMeta is where the store keeps which providers' routes operators hold open,
// and since when (ms since 1970).
const routeHoldsMeta = "held_routes"

// routeNames returns the routes of all providers.
func (n *Node) routeNames() (names []string) {
	for _, ch := range notify.Channels {
		names = append(names, n.provs.routes(ch).Names...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// holdRoute holds a route open in every process, or lets it go. The hold is durable
// when holdRoute returns nil.
func (n *Node) holdRoute(ctx context.Context, route string, held bool) error {
	if !slices.Contains(n.routeNames(), route) {
		return notify.NotFound("circuit")
	}
	if err := notify.BeforeAct(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	stored, err := engine.ChangeMetaMap(ctx, n.st.meta, routeHoldsMeta, func(all map[string]int64) bool {
		if _, is := all[route]; is == held {
			return false
		}
		if held {
			all[route] = time.Now().UnixMilli()
		} else {
			delete(all, route)
		}
		return true
	})
	if err == nil {
		n.applyRouteHolds(stored)
	}
	return err
}

// followRouteHolds applies the stored holds.
func (n *Node) followRouteHolds(ctx context.Context) error {
	stored, _, err := engine.ReadMetaMap[int64](ctx, n.st.meta, routeHoldsMeta)
	if err == nil {
		n.applyRouteHolds(stored)
	}
	return err
}

func (n *Node) applyRouteHolds(stored map[string]int64) {
	for _, route := range n.routeNames() {
		ms, held := stored[route]
		var since time.Time
		if held {
			since = time.UnixMilli(ms)
		}
		if n.health.Hold(route, since) {
			n.log.Warn("circuit "+map[bool]string{true: "held open", false: "let go"}[held]+" by an operator", "route", route)
		}
	}
}
