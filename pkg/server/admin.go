package server

import (
	_ "embed"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/notifyd/notifyd/pkg/notify"
)

// maxProfile is the longest duration of a profile or trace. net/http/pprof extends the write
// deadline of the connection by any duration that a request names. So the admin listener must limit
// this duration itself.
const maxProfile = 90 * time.Second

// adminMux serves the admin listener: metrics, profiles and probes. It requires no token. So a
// request over loopback must have a loopback host in its Host header. Otherwise a web page could
// read the answers through a browser on this machine (DNS rebinding).
//
// Profiles contain secrets from the memory of the process and use its CPU, so they are served only
// over loopback. Connections through kubectl port-forward and ssh -L also come over loopback.
func (s *Server) adminMux() http.Handler {
	mux := http.NewServeMux()
	if s.deps.Metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(s.deps.Metrics, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	}
	profile := func(pattern string, h http.HandlerFunc) {
		mux.HandleFunc("GET "+pattern, func(w http.ResponseWriter, r *http.Request) {
			if !notify.OnLoopback(localAddrOf(r)) {
				http.Error(w, "profiles are served over loopback only, e.g. by kubectl port-forward", http.StatusForbidden)
				return
			}
			if text := r.URL.Query().Get("seconds"); text != "" {
				if n, err := strconv.ParseFloat(text, 64); err != nil || !(n > 0 && n <= maxProfile.Seconds()) {
					http.Error(w, `the parameter "seconds" must be a number above 0 and at most 90`, http.StatusBadRequest)
					return
				}
			}
			h(w, r)
		})
	}
	profile("/debug/pprof/", pprof.Index)
	profile("/debug/pprof/cmdline", pprof.Cmdline)
	profile("/debug/pprof/profile", pprof.Profile)
	profile("/debug/pprof/symbol", pprof.Symbol)
	profile("/debug/pprof/trace", pprof.Trace)
	for _, rt := range []*route{
		{path: "/healthz", class: classProbe, handler: answerHealth},
		{path: "/readyz", class: classProbe, handler: answerReady},
	} {
		mux.HandleFunc("GET "+rt.path, func(w http.ResponseWriter, r *http.Request) { s.serve(rt, w, r) })
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if notify.OnLoopback(localAddrOf(r)) && !notify.LoopbackHost(r.Host) {
			http.Error(w, "over loopback the Host header must be localhost or a loopback address", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// localAddrOf returns the local address of r's connection, or nil if it is unknown.
func localAddrOf(r *http.Request) net.Addr {
	a, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return a
}

// health is the answer of the probes.
type health struct {
	Status   string   `json:"status"`
	Version  string   `json:"version,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// answerHealth answers that the process is running, and tells its version.
func answerHealth(x *exchange) error {
	return x.json(http.StatusOK, health{Status: "ok", Version: x.srv.deps.Version})
}

// answerReady answers whether load balancers should send requests to this server.
func answerReady(x *exchange) error {
	if x.srv.isDraining() {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "draining", Msg: "this server is about to stop"}
	}
	if x.srv.deps.Ready != nil {
		if err := x.srv.deps.Ready(x.r.Context()); err != nil {
			return notReady(err)
		}
	}
	h := health{Status: "ready"}
	if x.srv.deps.Warnings != nil {
		h.Warnings = x.srv.deps.Warnings()
	}
	return x.json(http.StatusOK, h)
}

// notReady returns the answer of a probe that failed with err. The answer shows the error code and
// message of a *notify.Error. It does not show other errors, for example of a disk or a library.
func notReady(err error) error {
	out := &notify.Error{Kind: notify.KindUnavailable, Code: "not_ready", Msg: "this server cannot take requests now", Err: err}
	if e, ok := errors.AsType[*notify.Error](err); ok {
		out.Msg += ": " + e.Msg + " (" + e.Code + ")"
		out.Err = e.Err
	}
	return out
}

//go:embed openapi.yaml
var openapiYAML []byte

// OpenAPI returns the API's description, OpenAPI 3.1 in YAML.
func OpenAPI() []byte { return openapiYAML }
