package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Roles of a process. RoleWorker may be followed by a channel or a lane: worker:push means both
// lanes of push, worker:push-bulk means one of them.
const (
	RoleAll        = "all"
	RoleAPI        = "api"        // accepts requests, and empties the spill buffer into the log
	RoleWorker     = "worker"     // calls providers: first attempts and retries of its lanes
	RoleScheduler  = "scheduler"  // releases due timers
	RoleDispatcher = "dispatcher" // calls the URLs of triggers
	RoleOperator   = "operator"   // history, dead letters, jobs, audit, reconcile, purge
)

// Roles lists the roles that a process may have.
var Roles = []string{RoleAll, RoleAPI, RoleWorker, RoleScheduler, RoleDispatcher, RoleOperator}

// Tasks says what a process does.
type Tasks struct {
	API, Scheduler, Dispatcher, Operator bool
	Lanes                                []notify.Lane // lanes whose workers the process runs
}

// ParseRoles returns the tasks of the given roles. A role may occur more than once. ParseRoles
// returns an error for an unknown role, channel or lane, and if no role is given.
func ParseRoles(roles []string) (t Tasks, err error) {
	if len(roles) == 0 {
		return t, fmt.Errorf("no role is given; the roles are %s", strings.Join(Roles, ", "))
	}
	for _, role := range roles {
		name, what, some := strings.Cut(strings.TrimSpace(role), ":")
		if some && name != RoleWorker {
			return t, fmt.Errorf("%q: only the role %s may be followed by a channel or a lane", role, RoleWorker)
		}
		switch name {
		case RoleAll:
			t = Tasks{API: true, Scheduler: true, Dispatcher: true, Operator: true, Lanes: notify.Lanes()}
		case RoleAPI:
			t.API = true
		case RoleScheduler:
			t.Scheduler = true
		case RoleDispatcher:
			t.Dispatcher = true
		case RoleOperator:
			t.Operator = true
		case RoleWorker:
			found := false
			for _, l := range notify.Lanes() {
				if some && l.String() != what && l.Channel.String() != what {
					continue
				}
				if found = true; !slices.Contains(t.Lanes, l) {
					t.Lanes = append(t.Lanes, l)
				}
			}
			if !found {
				return t, fmt.Errorf("%q: there is no channel or lane %q", role, what)
			}
		default:
			return t, fmt.Errorf("%q is not a role; the roles are %s", role, strings.Join(Roles, ", "))
		}
	}
	return t, nil
}

// Calls reports whether the tasks include a lane of a channel.
func (t *Tasks) Calls(ch notify.Channel) bool {
	return slices.ContainsFunc(t.Lanes, func(l notify.Lane) bool { return l.Channel == ch })
}
