package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Server is an agent: it runs segments of scenarios for controllers, one at a time.
type Server struct {
	// Open connects to the target of a scenario. It returns the configuration of the run and a
	// function that closes the connections. Open may call the function token, which returns the
	// newest bearer token that the controller sent.
	Open func(ctx context.Context, s *load.Scenario, aim *Aim, token func(context.Context) (string, error)) (cfg load.Config, end func(), err error)
	// Check returns an error if a controller's bearer token does not allow a run. If Check is nil,
	// every controller that can connect may run a segment: a controller that has a certificate, or
	// that is on this machine.
	Check func(ctx context.Context, token string) error
	// Loopback is true if the listener has no TLS and listens on a loopback address. Then the agent
	// refuses every request whose Host header names another host, because a web page may have sent
	// the request (see notify.LoopbackHost).
	Loopback bool
	Version  string
	Note     func(format string, args ...any) // prints the start and the end of each run
	Now      func() time.Time                 // the agent's clock; nil: time.Now

	mu  sync.Mutex
	run *session // nil: no run
}

// Handler returns the HTTP handler for controllers.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+agentPath, s.about)
	mux.HandleFunc("POST "+runsPath, s.startRun)
	mux.HandleFunc("PUT "+runsPath+"/{id}", s.applyOrders)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A web page in a browser on this machine can send requests to the agent, too. The browser
		// adds an Origin header to such requests.
		if r.Header.Get("Origin") != "" {
			refuse(w, &notify.Error{Kind: notify.KindForbidden, Code: "bad_host", Msg: "the agent accepts no requests from browsers"})
			return
		}
		if s.Loopback && !notify.LoopbackHost(r.Host) {
			refuse(w, &notify.Error{Kind: notify.KindForbidden, Code: "bad_host", Msg: "without TLS the agent accepts only requests whose host is localhost or a loopback address"})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (s *Server) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

func (s *Server) about(w http.ResponseWriter, _ *http.Request) {
	host, _ := os.Hostname() // the name is empty after an error
	w.Header().Set("Content-Type", "application/json")
	// Encode fails if the controller has closed the connection.
	_ = json.NewEncoder(w).Encode(About{Protocol: Protocol, Version: s.Version, Host: host, Now: s.now().UnixNano()})
}

// readJSON decodes the JSON body of a request. It returns an error if the body takes longer than
// bodyTime or has more than maxRequest bytes.
func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	ctl := http.NewResponseController(w)
	if err := ctl.SetReadDeadline(time.Now().Add(bodyTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	defer func() { _ = ctl.SetReadDeadline(time.Time{}) }() // the rest of the run has no read deadline
	if t, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); t != api.TypeJSON {
		return notify.Invalid(api.CodeUnsupportedMediaType, "Content-Type", "must be "+api.TypeJSON)
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, maxRequest+1))
	if err != nil {
		return notify.Invalid(api.CodeMalformed, "", "the body ended early")
	}
	if len(b) > maxRequest {
		return &notify.Error{Kind: notify.KindTooLarge, Code: "body_too_large", Msg: fmt.Sprintf("the body has more than %d bytes, which is the maximum", maxRequest)}
	}
	if err := json.Unmarshal(b, into); err != nil {
		return notify.Invalid("bad_json", "", "the body is not valid JSON for this request: "+err.Error())
	}
	return nil
}

func (s *Server) applyOrders(w http.ResponseWriter, r *http.Request) {
	var o Orders
	if err := readJSON(w, r, &o); err != nil {
		refuse(w, err)
		return
	}
	s.mu.Lock()
	run := s.run
	s.mu.Unlock()
	if run == nil || run.id != r.PathValue("id") {
		refuse(w, &notify.Error{Kind: notify.KindNotFound, Code: "agent_run_not_found", Msg: "the agent does not have a run with this id"})
		return
	}
	run.follow(&o)
	w.WriteHeader(http.StatusNoContent)
}

// startRun runs a segment. It sends events in the response until the run ends. If the connection
// breaks, it ends the run.
func (s *Server) startRun(w http.ResponseWriter, r *http.Request) {
	// Check the token before the body is read. So a caller without a token cannot make the agent
	// use 8 MiB of memory.
	if s.Check != nil {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || token == "" {
			refuse(w, &notify.Error{Kind: notify.KindUnauthorized, Code: "no_token", Msg: "the agent needs a bearer token of its server"})
			return
		}
		if err := s.Check(r.Context(), token); err != nil {
			refuse(w, err)
			return
		}
	}
	var st Start
	if err := readJSON(w, r, &st); err != nil {
		refuse(w, err)
		return
	}
	sc, err := st.scenario()
	if err != nil {
		refuse(w, err)
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	run := &session{server: s, id: rand.Text(), aim: st.Aim, cancel: cancel, changed: make(chan struct{}), orders: Orders{Phase: -1, Token: st.Aim.Token}}
	if err := s.claim(run); err != nil {
		refuse(w, err)
		return
	}
	defer s.release()
	s.note("run of %s, segment %d of %d: begins for the controller %s", sc.Name, st.Segment.I, st.Segment.N, r.RemoteAddr)
	events, gone := make(chan Event), make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer close(events)
		emit := func(e Event) {
			select {
			case events <- e:
			case <-gone: // the controller has closed the connection
			}
		}
		emit(Event{Run: run.id})
		err := run.runSegment(ctx, &sc, &st, emit)
		if err == nil && ctx.Err() != nil && !run.toldToStop() {
			// The run ended early, but the controller did not stop it.
			err = &notify.Error{Kind: notify.KindUnavailable, Code: "agent_stopped", Msg: "the agent was stopped", Err: context.Cause(ctx)}
		}
		if err != nil {
			s.note("run of %s: %v", sc.Name, err)
			emit(Event{Failed: problemOf(err)})
			return
		}
		s.note("run of %s: done", sc.Name)
		emit(Event{Done: true})
	})
	w.Header().Set("Content-Type", "application/x-ndjson")
	if err := stream(w, events); err != nil {
		cancel(fmt.Errorf("the connection to the controller broke: %w", err))
	}
	close(gone)
}

// stream writes the events of the channel until the channel is closed. Once a second it also writes
// an empty event, which shows that the agent is alive.
func stream(w http.ResponseWriter, events <-chan Event) error {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	ctl, enc := http.NewResponseController(w), json.NewEncoder(w)
	for {
		var e Event
		select {
		case next, more := <-events:
			if !more {
				return nil
			}
			e = next
		case <-tick.C:
		}
		// Limit the time of a write: a controller that does not read must not block the run.
		if err := ctl.SetWriteDeadline(time.Now().Add(silence)); err != nil {
			return err
		}
		if err := enc.Encode(e); err != nil {
			return err
		}
		if err := ctl.Flush(); err != nil {
			return err
		}
	}
}

func (s *Server) note(format string, args ...any) {
	if s.Note != nil {
		s.Note(format, args...)
	}
}

func (s *Server) claim(run *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		return &notify.Error{Kind: notify.KindConflict, Code: "agent_busy", Msg: "the agent does another run; it can do only one run at a time"}
	}
	s.run = run
	return nil
}

func (s *Server) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run = nil
}

// scenario returns the scenario that the agent runs. It removes faults, thresholds and drains,
// because the controller is responsible for them.
func (st *Start) scenario() (s load.Scenario, err error) {
	if st.Protocol != Protocol {
		return s, &notify.Error{Kind: notify.KindInvalid, Code: "agent_protocol", Field: "protocol", Msg: fmt.Sprintf("is version %d, but the agent uses version %d: use the same release of notifyctl on all machines", st.Protocol, Protocol)}
	}
	if s, err = load.ParseScenario([]byte(st.Scenario)); err != nil {
		return s, err
	}
	if err := Suits(&s); err != nil {
		return s, err
	}
	s.Thresholds, s.Objective = nil, nil
	for i := range s.Phases {
		s.Phases[i].Faults, s.Phases[i].Drain = nil, 0
	}
	return s, nil
}

// Suits returns an error of notify.KindInvalid if agents cannot send the scenario. This is the case
// if the scenario starts a notifyd or reads a trace from a file.
func Suits(s *load.Scenario) error {
	if m := cmp.Or(s.Server.Mode, "context"); m != "context" && !s.OnlyNull() {
		return notify.Invalid("bad_scenario", "server.mode", fmt.Sprintf("is %q, but agents can send only to a running server: use \"context\"", m))
	}
	for _, p := range s.Phases {
		for _, st := range p.Steps {
			if st.Arrival.File != "" {
				return notify.Invalid("bad_scenario", "arrival.file", fmt.Sprintf("step %s reads a trace from a file, but agents do not have the file", st.Name))
			}
		}
	}
	return nil
}
