package server

import (
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

// healthz says that the process answers, nothing more.
func (s *Server) healthz(x *exchange) error {
	return x.json(http.StatusOK, map[string]string{"status": "ok"})
}

// readyz says whether requests should come here.
func (s *Server) readyz(x *exchange) error {
	if s.isDraining() {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "draining", Msg: "this server is about to stop"}
	}
	if s.deps.Ready != nil {
		if err := s.deps.Ready(x.r.Context()); err != nil {
			return &notify.Error{Kind: notify.KindUnavailable, Code: "not_ready", Msg: "this server cannot take requests now", Err: err}
		}
	}
	return x.json(http.StatusOK, map[string]string{"status": "ready"})
}
