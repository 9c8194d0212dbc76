package server

import (
	"errors"
	"net/http"
	"net/http/pprof"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// adminMux serves what only people of this machine should see.
func (s *Server) adminMux() http.Handler {
	mux := http.NewServeMux()
	if s.deps.Metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(s.deps.Metrics, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	}
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	for _, rt := range []*route{
		{path: "/healthz", class: classProbe, handler: (*Server).healthz},
		{path: "/readyz", class: classProbe, handler: (*Server).readyz},
	} {
		mux.HandleFunc("GET "+rt.path, func(w http.ResponseWriter, r *http.Request) { s.serve(rt, w, r) })
	}
	return mux
}

// health is the answer of the probes.
type health struct {
	Status   string   `json:"status"`
	Version  string   `json:"version,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// healthz says that the process answers, and which it is.
func (s *Server) healthz(x *exchange) error {
	return x.json(http.StatusOK, health{Status: "ok", Version: s.deps.Version})
}

// readyz says whether requests should come here.
func (s *Server) readyz(x *exchange) error {
	if s.isDraining() {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "draining", Msg: "this server is about to stop"}
	}
	if s.deps.Ready != nil {
		if err := s.deps.Ready(x.r.Context()); err != nil {
			return notReady(err)
		}
	}
	h := health{Status: "ready"}
	if s.deps.Warnings != nil {
		h.Warnings = s.deps.Warnings()
	}
	return x.json(http.StatusOK, h)
}

// notReady tells the reason as far as it is meant to be told: our code and
// message, not what a disk or a library said.
func notReady(err error) error {
	out := &notify.Error{Kind: notify.KindUnavailable, Code: "not_ready", Msg: "this server cannot take requests now", Err: err}
	if e, ok := errors.AsType[*notify.Error](err); ok {
		out.Msg += ": " + e.Msg + " (" + e.Code + ")"
		out.Err = e.Err
	}
	return out
}
