package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
)

var errSilent = errors.New("the controller was silent for 3 s")

// session is one run of an agent.
type session struct {
	server *Server
	id     string // a secret that only the controller gets: the agent accepts only Orders with this id
	aim    Aim
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	orders  Orders
	changed chan struct{} // closed and replaced by each new Orders
	run     *load.Run     // nil: not started yet
	watch   *time.Timer   // ends the run if no Orders arrive for 3 s (the constant silence)
}

// follow replaces the session's orders by the new orders o and carries o out. If the new orders
// have no token, the session keeps its earlier token.
func (s *session) follow(o *Orders) {
	s.mu.Lock()
	token := s.orders.Token
	s.orders = *o
	if o.Token == "" {
		s.orders.Token = token
	}
	close(s.changed)
	s.changed = make(chan struct{})
	run := s.run
	if s.watch != nil {
		s.watch.Reset(silence)
	}
	s.mu.Unlock()
	if o.Stop {
		s.cancel(context.Canceled)
	}
	if run != nil && o.Steer != nil {
		run.Steer(*o.Steer)
	}
}

// toldToStop reports whether the controller has stopped the run.
func (s *session) toldToStop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orders.Stop
}

func (s *session) token(context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orders.Token, nil
}

// runSegment runs the segment. It returns when the segment has ended, or when ctx ends.
func (s *session) runSegment(ctx context.Context, sc *load.Scenario, st *Start, emit func(Event)) error {
	watch := time.AfterFunc(silence, func() { s.cancel(errSilent) })
	defer watch.Stop()
	s.mu.Lock()
	s.watch = watch
	s.mu.Unlock()
	cfg, end, err := s.server.Open(ctx, sc, &s.aim, s.token)
	if err != nil {
		return err
	}
	defer end()
	// The agent must not do these things, because the controller does them: read the ledger, ask the
	// server for figures, cause faults and run actions.
	cfg.Ledger, cfg.State, cfg.Faults, cfg.Server, cfg.Actions = nil, nil, nil, nil, nil
	cfg.Callback, cfg.Segment, cfg.OrderBase, cfg.Promises, cfg.Steerable = s.aim.Callback, st.Segment, st.OrderBase, st.Promises, st.Steerable
	var failed error
	cfg.Report = func(f *load.Frame, err error) {
		if err != nil { // the controller will miss this frame, so end the run and send the error
			failed = err
			s.cancel(err)
			return
		}
		emit(Event{Frame: f})
	}
	cfg.Begin = func(ctx context.Context, phase int, _ time.Time) (time.Time, error) {
		emit(Event{Ready: &phase})
		return s.awaitPhase(ctx, phase)
	}
	run, err := load.New(*sc, cfg)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.run = run
	s.mu.Unlock()
	if _, err := run.Run(ctx); err != nil {
		return err
	}
	return failed
}

// awaitPhase waits until the controller orders the phase to begin. It returns the moment at which
// the phase begins, by the clock of time.Now.
func (s *session) awaitPhase(ctx context.Context, phase int) (time.Time, error) {
	for {
		s.mu.Lock()
		o, changed := s.orders, s.changed
		s.mu.Unlock()
		if o.Phase >= phase {
			at := time.Unix(0, o.At)
			return time.Now().Add(at.Sub(s.server.now())), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		}
	}
}
