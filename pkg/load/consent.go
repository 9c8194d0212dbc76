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
	// consentEvery is the interval at which the run asks the target whether its grant still holds.
	consentEvery = 250 * time.Millisecond
	// consentSilence is the time without an answer from the target after which the run stops.
	consentSilence = 10 * time.Second
	// consentGrace is how long requests may still run after the consent has ended. It is shorter
	// than Config.Grace, because the target no longer wants these requests.
	consentGrace = time.Second
)

var errGrantOver = &notify.Error{Kind: notify.KindForbidden, Code: "load_grant_expired", Msg: "the load grant expired"}

// keepConsent asks the target repeatedly whether its grant still holds, until ctx ends. It stops
// the run and returns the reason in three cases: the target refuses, the grant expires, or the
// target does not answer for consentSilence. After such a silence another server may have the
// target's address.
func keepConsent(ctx context.Context, r *Run) error {
	// The run ends when the grant expires, even if the target does not answer at that moment.
	if until := r.cfg.ConsentUntil; !until.IsZero() {
		defer time.AfterFunc(time.Until(until), func() { r.abort(errGrantOver) }).Stop()
	}
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
			r.abort(fmt.Errorf("the target has not confirmed the load grant in the last %v: %w", consentSilence, err))
		}
	}
	// ctx ends because the run was aborted, because everything was sent, or because the user stopped
	// the run. Only an abort has a cause.
	if cause := context.Cause(ctx); ctx.Err() != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, errAborted) {
		return cause
	}
	return nil
}

// isRefusal reports whether err means that the target accepts no more load from this run. It
// returns false for a request that was refused only because the rate was too high. Such a request
// may be sent again later.
func isRefusal(err error) bool {
	e, ok := errors.AsType[*notify.Error](err)
	return ok && strings.HasPrefix(e.Code, "load_") && e.Kind != notify.KindThrottled && e.Kind != notify.KindUnavailable
}

// CheckGrant returns an error if a scenario asks for more than a grant allows: a higher rate, or a
// target or channel that the grant does not name. No grant allows a replay, because a replay sends
// the dead letters of all callers and channels. The error is of notify.KindInvalid with the code
// load_grant_exceeded.
func CheckGrant(s Scenario, g *api.LoadGrant) error {
	s = s.WithDefaults()
	exceeded := func(field, format string, args ...any) error {
		return notify.Invalid("load_grant_exceeded", field, fmt.Sprintf(format, args...))
	}
	for i := range s.Phases {
		p, sum := &s.Phases[i], 0.0
		for _, f := range p.Faults {
			if f.Action != "" {
				return exceeded("faults", "phase %s has the action %q, which also sends the dead letters of other callers: no load grant allows it", p.Name, f.Action)
			}
		}
		for j := range p.Steps {
			st := &p.Steps[j]
			if st.Target == Null {
				continue
			}
			if st.Target == Kafka {
				return exceeded("target", "step %s has the target \"kafka\", but brokers do not check load grants: use this target only with brokers on loopback addresses", st.Name)
			}
			for _, target := range st.grantTargets() {
				if !slices.Contains(g.Targets, target) {
					return exceeded("targets", "step %s sends to the target %q, but the grant allows only %s", st.Name, target, strings.Join(g.Targets, ", "))
				}
			}
			switch {
			case st.Triggers > 0 && !slices.Contains(g.Targets, "trigger"):
				return exceeded("targets", "step %s makes triggers, but the grant allows only %s", st.Name, strings.Join(g.Targets, ", "))
			case float64(st.Size) > api.MostInLoadRequest(g.Rate):
				return exceeded("size", "step %s sends %d messages in a request, but a grant of %.0f messages a second allows at most %.0f", st.Name, st.Size, g.Rate, api.MostInLoadRequest(g.Rate))
			case st.closed():
				return exceeded("rate", "step %s sends each next request as soon as it has an answer, but the grant limits the rate: set rate or arrival of the step", st.Name)
			}
			peak, err := st.Arrival.peak(st.Size)
			if err != nil {
				return exceeded("arrival", "step %s: %v", st.Name, err)
			}
			sum += peak
		}
		if sum > g.Rate*1.001 {
			return exceeded("rate", "phase %s sends up to %.0f messages a second, but the grant allows at most %.0f", p.Name, sum, g.Rate)
		}
	}
	return nil
}

// grantTargets returns the names that a grant must list for the step: the step's channels, or
// "trigger".
func (s *Step) grantTargets() []string {
	switch {
	case s.bodies() == Trigger:
		return []string{"trigger"}
	case len(s.Mix) == 0:
		return []string{s.Channel}
	}
	var channels []string
	for _, m := range s.Mix {
		channels = append(channels, m.Channel)
	}
	return channels
}

// peak returns the highest rate of an arrival in messages a second. For a Poisson arrival it is
// the mean rate.
func (a *Arrival) peak(size int) (float64, error) {
	top := max(a.Rate, a.From, a.To, a.Peak)
	for _, l := range a.Levels {
		top = max(top, l.Rate)
	}
	if a.Shape != "trace" {
		return float64(top), nil
	}
	t, err := readTrace(a.File, a.Slot.of(), a.Factor)
	if err != nil {
		return 0, err
	}
	return float64(t.busiest(size)), nil
}
