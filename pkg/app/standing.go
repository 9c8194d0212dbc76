package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
)

// Ready returns nil if the process can do its work. Otherwise it returns an error that states the
// reason.
func (n *Node) Ready(context.Context) error {
	if err := n.st.ready(); err != nil {
		return err
	}
	if (n.embedded != nil || len(n.tasks.Lanes) > 0) && !n.prefs.Fresh(time.Now()) {
		return notify.Unavailable("preferences", time.Second, errors.New(n.preferencesText()))
	}
	return nil
}

// preferencesText says how old the snapshot of the preferences is.
func (n *Node) preferencesText() string {
	if !n.prefs.Loaded() {
		return "the preferences have not been read yet"
	}
	return fmt.Sprintf("the snapshot of the preferences is %s old", n.prefs.Age(time.Now()).Round(time.Millisecond))
}

// callStop returns the reason why this process, or another process, can make no call of a lane now.
// The second result is false if calls can be made.
func (n *Node) callStop(l notify.Lane) (server.LaneStop, bool) {
	st, ok := n.ownCallStop(l)
	if !ok && n.servers != nil {
		return n.servers.standings.Find(l, time.Now())
	}
	return st, ok
}

// ownCallStop returns the reason why this process can make no call of a lane now. The second result
// is false if calls can be made.
func (n *Node) ownCallStop(l notify.Lane) (server.LaneStop, bool) {
	routes := n.provs.routes(l.Channel)
	c, ok := n.health.StoppedBy(&routes, time.Now())
	return server.LaneStop{Account: c.Account, Code: c.Code, Blocked: !c.Blocked.IsZero(), Until: c.RetryAt}, ok
}

// callStopText returns the reason of callStop as a text, or "" if calls can be made.
func (n *Node) callStopText(l notify.Lane) string {
	why, ok := n.callStop(l)
	if !ok {
		return ""
	}
	return why.String()
}

// unreachable checks the profile of a dead letter's user. If a notification to the user would be
// suppressed now, it returns the code of the suppression. Otherwise it returns "".
func (n *Node) unreachable(d *engine.DeadLetter) string {
	ch, ok := notify.ParseChannel(d.Channel)
	cat, known := notify.ParseCategory(d.Category)
	if !ok || !known {
		return ""
	}
	code, err := n.prefs.Unreachable(context.Background(), d.User, ch, cat)
	if err != nil {
		n.log.Warn("the profile of a dead letter's user cannot be read, so it is not known whether the user can be reached", "err", err)
	}
	return code
}

// lookAtLane adds what this process knows about a lane to the parameter answer.
func (n *Node) lookAtLane(lane notify.Lane, answer *api.Lane) {
	for _, g := range n.groups.lags() {
		if g.Group == lane.Group() || g.Group == lane.RetryGroup() {
			answer.Lag += g.Lag
			answer.InFlight += g.InFlight
		}
	}
	answer.Stands = n.callStopText(lane)
}
