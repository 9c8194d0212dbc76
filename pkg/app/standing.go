package app

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
)

// Ready is nil when the process can do its work; else it says why not.
func (n *Node) Ready(context.Context) error {
	if err := n.st.ready(); err != nil {
		return err
	}
	if (n.own != nil || len(n.tasks.Lanes) > 0) && !n.prefs.Fresh(time.Now()) {
		return notify.Unavailable("preferences", time.Second, fmt.Errorf("snapshot is %s old", n.prefs.Age(time.Now())))
	}
	return nil
}

// standing says why no call of a lane can be made now, in this process or in another.
func (n *Node) standing(l notify.Lane) (server.Standing, bool) {
	st, ok := n.ownStanding(l)
	if !ok && n.servers != nil {
		return n.servers.standings.Of(l, time.Now())
	}
	return st, ok
}

// ownStanding says why this process can make no call of a lane now.
func (n *Node) ownStanding(l notify.Lane) (server.Standing, bool) {
	routes := n.provs.routes(l.Channel)
	c, ok := n.health.Standing(&routes, time.Now())
	return server.Standing{Account: c.Account, Code: c.Code, Blocked: !c.Blocked.IsZero(), Until: c.RetryAt}, ok
}

// stands says why no call of a lane can be made now.
func (n *Node) stands(l notify.Lane) string {
	why, ok := n.standing(l)
	if !ok {
		return ""
	}
	return why.String()
}

// unreachable returns the code with which the profile of a letter's user would
// suppress it now, "" if it would not.
func (n *Node) unreachable(d *engine.DeadLetter) string {
	ch, ok := notify.ParseChannel(d.Channel)
	cat, known := notify.ParseCategory(d.Category)
	if !ok || !known {
		return ""
	}
	code, err := n.prefs.Unreachable(context.Background(), d.User, ch, cat)
	if err != nil {
		n.log.Warn("whether a user can be reached is not known", "err", err)
	}
	return code
}

// lookAtLane adds what this process knows of a lane.
func (n *Node) lookAtLane(lane notify.Lane, out *api.Lane) {
	for _, g := range n.groups.lags() {
		if g.Group == lane.Group() || g.Group == lane.RetryGroup() {
			out.Lag += g.Lag
			out.InFlight += g.InFlight
		}
	}
	out.Stands = n.stands(lane)
}
