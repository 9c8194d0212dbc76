package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	// consentEvery is between two questions whether the grant still holds.
	consentEvery = 250 * time.Millisecond
	// consentSilence is for how long the target may leave them without an answer.
	consentSilence = 10 * time.Second
)

// keepConsent asks until ctx ends whether the target's grant still holds, and ends the
// sending when it does not, or when the target has said nothing for long: it may be
// another one now.
func keepConsent(ctx context.Context, r *Run) {
	for last := time.Now(); waitUntil(ctx, time.Now().Add(consentEvery)); {
		call, stop := context.WithTimeout(ctx, 2*time.Second)
		err := r.cfg.Consent(call)
		stop()
		switch {
		case err == nil:
			last = time.Now()
		case isRefusal(err):
			r.abort(err)
		case time.Since(last) > consentSilence:
			r.abort(fmt.Errorf("the target did not confirm its load grant for %v: %w", consentSilence, err))
		}
	}
}

// isRefusal reports whether the target takes no load of this run any more. What is refused
// for the rate alone is taken later.
func isRefusal(err error) bool {
	e, ok := errors.AsType[*notify.Error](err)
	return ok && strings.HasPrefix(e.Code, "load_") && e.Kind != notify.KindThrottled && e.Kind != notify.KindUnavailable
}

// CheckGrant refuses a scenario that asks for more than a grant allows: a rate, a channel
// or triggers. It returns notify.KindInvalid with code load_grant_exceeded.
func CheckGrant(s Scenario, g *api.LoadGrant) error {
	s = s.WithDefaults()
	exceeded := func(field, format string, args ...any) error {
		return notify.Invalid("load_grant_exceeded", field, fmt.Sprintf(format, args...))
	}
	for i := range s.Phases {
		p, sum := &s.Phases[i], 0.0
		for j := range p.Steps {
			st := &p.Steps[j]
			if st.Target == Null {
				continue
			}
			if st.Target == Kafka {
				return exceeded("target", "step %s: brokers know no grants, so target kafka is for loopback", st.Name)
			}
			target := st.Channel
			if st.bodies() == Trigger {
				target = "trigger"
			}
			switch {
			case !slices.Contains(g.Targets, target):
				return exceeded("targets", "step %s sends to %s, and the grant names %s", st.Name, target, strings.Join(g.Targets, ", "))
			case st.Triggers > 0 && !slices.Contains(g.Targets, "trigger"):
				return exceeded("targets", "step %s makes triggers, and the grant names %s", st.Name, strings.Join(g.Targets, ", "))
			case st.closed():
				return exceeded("rate", "step %s sends as fast as it is answered, and the grant has a rate: give the step an arrival", st.Name)
			}
			peak, err := st.Arrival.peak(st.Size)
			if err != nil {
				return exceeded("arrival", "step %s: %v", st.Name, err)
			}
			sum += peak
		}
		if sum > g.Rate*1.001 {
			return exceeded("rate", "phase %s sends %.0f messages a second at its highest, and the grant allows %.0f", p.Name, sum, g.Rate)
		}
	}
	return nil
}

// peak is the highest rate of an arrival, in messages a second; of a poisson the mean one.
func (a *Arrival) peak(size int) (float64, error) {
	top := max(a.Rate, a.From, a.To, a.Peak)
	for _, l := range a.Levels {
		top = max(top, l.Rate)
	}
	if a.Shape != "trace" {
		return float64(top), nil
	}
	due, err := readTrace(a.File)
	if err != nil {
		return 0, err
	}
	best, from := 0, 0
	for to := range due {
		for due[to]-due[from] >= time.Second {
			from++
		}
		best = max(best, to-from+1)
	}
	return float64(best * size), nil
}
