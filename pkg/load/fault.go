package load

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// FaultControl makes simulated providers fail, and ends the failures.
type FaultControl interface {
	// Begin starts a fault and returns the function that ends it.
	Begin(ctx context.Context, f *FaultSpec) (end func(context.Context) error, err error)
}

// ProcessControl kills, pauses and stops processes that the run owns.
type ProcessControl interface {
	// Fault kills, pauses or stops the process, as f.Process says. The returned function end starts
	// the process again, or lets a paused process continue.
	Fault(ctx context.Context, f *FaultSpec) (end func(context.Context) error, err error)
}

// Begin implements FaultControl. It adds a rule to the simulators. The function that it returns
// removes the rule.
func (l *Simulators) Begin(ctx context.Context, f *FaultSpec) (func(context.Context) error, error) {
	rule := simulator.Rule{
		Account: f.Account, Pool: f.Pool, Prefix: f.Prefix,
		Rate: f.Share, Do: simulator.Action(f.Do), Status: f.Status, Code: f.Code, RetryAfter: simulator.Duration(f.RetryAfter),
		Latency: simulator.Latency{Median: simulator.Duration(f.Latency.Median), P99: simulator.Duration(f.Latency.P99)},
	}
	if err := rule.Provider.UnmarshalText([]byte(f.Provider)); err != nil {
		return nil, err
	}
	if n, err := strconv.Atoi(f.Account); err == nil {
		if rule.Account, err = l.accountSID(ctx, n); err != nil {
			return nil, err
		}
	}
	var made simulator.Rule
	if err := l.Call(ctx, http.MethodPost, "/control/rules", rule, &made); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		err := l.Call(ctx, http.MethodDelete, fmt.Sprintf("/control/rules/%d", made.Number), nil, nil)
		if notify.KindOf(err) == notify.KindNotFound { // the rule has ended by itself
			return nil
		}
		return err
	}, nil
}

// accountSID returns the SID of Twilio account n, counted from 1. It returns an error of
// notify.KindInvalid if there are fewer accounts.
func (l *Simulators) accountSID(ctx context.Context, n int) (string, error) {
	var c struct {
		Twilio []struct {
			SID string `json:"sid"`
		} `json:"twilio"`
	}
	if err := l.Call(ctx, http.MethodGet, "/credentials.json", nil, &c); err != nil {
		return "", err
	}
	if n < 1 || n > len(c.Twilio) {
		return "", notify.Invalid(codeScenario, "account", fmt.Sprintf("is %d, but must be from 1 to %d, the number of Twilio accounts", n, len(c.Twilio)))
	}
	return c.Twilio[n-1].SID, nil
}

// label returns the text for a fault in charts and errors: its name, or what it does.
func (f *FaultSpec) label() string {
	if f.Name != "" {
		return f.Name
	}
	switch {
	case f.Process != "":
		return f.Process + " notifyd"
	case f.Action != "":
		return f.Action
	}
	return f.Do + " " + cmp.Or(f.Provider, "all providers")
}

// runFaults runs the faults of a phase side by side. Of the faults that kill, pause or stop the
// notifyd process, only one runs at a time. The next one waits until the previous one has ended,
// because starting a process takes a while. Every fault that began is ended, even if ctx ends.
// runFaults returns the first error.
func (r *Run) runFaults(ctx context.Context, p *PhaseSpec, began time.Time) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	process := make(chan struct{}, 1)
	var first error
	for i := range p.Faults {
		f := &p.Faults[i]
		wg.Go(func() {
			if err := r.runFault(ctx, f, began, process); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if first == nil {
					first = fmt.Errorf("fault %s: %w", f.label(), err)
				}
			}
		})
	}
	wg.Wait()
	return first
}

func (r *Run) runFault(ctx context.Context, f *FaultSpec, began time.Time, process chan struct{}) error {
	at := began.Add(f.At.of())
	if !waitUntil(ctx, at) {
		return nil
	}
	if f.Action != "" {
		r.c.mark(Marker{At: r.since(time.Now()), Kind: "fault", Text: f.label()})
		return r.cfg.Actions[f.Action](ctx)
	}
	var end func(context.Context) error
	var err error
	if f.Process != "" {
		select {
		case process <- struct{}{}:
			defer func() { <-process }()
		case <-ctx.Done():
			return nil
		}
		end, err = r.cfg.Process.Fault(ctx, f)
	} else {
		end, err = r.cfg.Faults.Begin(ctx, f)
	}
	if err != nil {
		return err
	}
	n := r.c.faultBegan(f.label())
	if f.For > 0 {
		waitUntil(ctx, at.Add(f.For.of()))
	} else {
		<-ctx.Done() // continue to the end of the phase
	}
	err = end(context.WithoutCancel(ctx))
	r.c.faultEnded(n, err)
	return err
}
