package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
)

// Server is the HTTP API of one process.
type Server struct {
	cfg   Config
	deps  Deps
	api   http.Handler
	admin http.Handler
	page  http.Handler // nil: no operator page

	callers *callerTable
	cursors cursorSealer
	small   *memory // bodies of single requests
	bulk    *memory // bodies of batches and fan-outs
	notes   *memory // small bodies of requests without a token
	posts   *memory // large bodies of requests without a token

	exchanges sync.Pool // *exchange
	places    [classes]requestLimit

	receiptsRead, formsRead openBodies

	loads loadMeters

	idPrefix string // prefix of request ids; differs between processes
	idNext   atomic.Uint64

	unavailable rate.Sometimes // limits log lines about a dependency that is not available
	draining    chan struct{}  // closed by drain: then streams end, and /readyz answers 503
	drainOnce   sync.Once
}

// New returns a Server. It returns an error if the configuration is not valid. The Server serves
// nothing before Run. If Run is never called, the caller must call Close, which closes the
// listeners.
func New(cfg Config, deps Deps) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	deps, err := deps.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(cfg.mayListen("listen", cfg.Listener), cfg.mayListen("admin", cfg.AdminListener)); err != nil {
		return nil, err
	}
	key := cfg.CursorKey
	if key == nil {
		key = make([]byte, 32)
		rand.Read(key) // never fails
	}
	s := &Server{
		cfg: cfg, deps: deps,
		callers:     newCallers(deps.Callers, deps.SharedTokens, cfg.Rate, cfg.Burst, cfg.MaxCallers),
		cursors:     cursorSealer{key},
		small:       newMemory(cfg.SmallMemory, 0),
		bulk:        newMemory(cfg.BulkMemory, cfg.MemoryWait),
		posts:       newMemory(postsMemory, 0),
		notes:       newMemory(notesMemory, 0),
		idPrefix:    rand.Text()[:10],
		unavailable: rate.Sometimes{First: 3, Interval: 10 * time.Second},
		draining:    make(chan struct{}),
	}
	for c, p := range map[routeClass]struct {
		most   int
		reason string
	}{classNormal: {cfg.MaxInFlight, "in_flight"}, classStream: {cfg.MaxStreams, "streams"}, classReceipt: {maxReceipts, "receipts"}, classPage: {maxPages, "pages"}} {
		s.places[c].max, s.places[c].reason = int64(p.most), p.reason
	}
	s.api = s.mux(routes())
	s.admin = s.adminMux()
	return s, nil
}

func (d Deps) withDefaults() (Deps, error) {
	if d.Auth == nil || d.Intake == nil || d.Users == nil || d.History == nil || d.Status == nil ||
		d.DeadLetters == nil || d.Cancels == nil || d.Campaigns == nil || d.CampaignHolds == nil || d.Tail == nil {
		return d, errors.New("server: Auth, Intake, Users, History, Status, DeadLetters, Cancels, Campaigns, CampaignHolds and Tail are required")
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	return d, nil
}

// Close closes the listeners of a Server whose Run was not called.
func (s *Server) Close() error {
	err := s.cfg.Listener.Close()
	if s.cfg.AdminListener != nil {
		err = errors.Join(err, s.cfg.AdminListener.Close())
	}
	return err
}

// Addr returns the address of the API.
func (s *Server) Addr() string { return s.cfg.Listener.Addr().String() }

// AdminAddr returns the address of metrics and pprof, or "" if they are not served.
func (s *Server) AdminAddr() string {
	if s.cfg.AdminListener == nil {
		return ""
	}
	return s.cfg.AdminListener.Addr().String()
}

// Handler returns the handler of the API, for tests and for additional listeners.
func (s *Server) Handler() http.Handler { return s.api }

// AdminHandler serves /metrics, /debug/pprof, /healthz and /readyz.
func (s *Server) AdminHandler() http.Handler { return s.admin }

// Run serves until ctx ends and then drains. At the start of the drain, /readyz answers 503, and
// tails and waiting feed requests end. After DrainDelay the listeners close, and other requests get
// DrainTimeout to end. A request that is not answered within DrainTimeout gets 503, and its
// connection is closed; Run then returns an error. After a clean end Run returns nil.
func (s *Server) Run(ctx context.Context) error {
	main := s.httpServer(s.api)
	admin := s.httpServer(s.admin)
	admin.WriteTimeout = maxProfile
	ln := newConnListener(s.cfg, s.newRequestID, func() { s.deps.Hooks.refused("connections") })
	main.ConnState, main.ConnContext = ln.onConnState, withConn

	// Serving ends when the drain ends, not when ctx ends.
	g, serving := errgroup.WithContext(context.WithoutCancel(ctx))
	background, stop := context.WithCancel(serving)
	g.Go(func() error { return serveError(ln, main.Serve(ln)) })
	if s.cfg.AdminListener != nil {
		g.Go(func() error { return serveError(s.cfg.AdminListener, admin.Serve(s.cfg.AdminListener)) })
	}
	g.Go(func() error {
		return s.deps.Auth.Run(background, func(err error) {
			s.deps.Log.Warn("the key set could not be fetched; the last one stays in use", slog.Any("error", err))
		})
	})
	g.Go(func() error {
		defer stop()
		select {
		case <-ctx.Done():
		case <-serving.Done(): // a listener failed
		}
		return s.drain(main, admin, ln)
	})
	return g.Wait()
}

func serveError(ln net.Listener, err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving on %s failed: %w", ln.Addr(), err)
}

// drain ends serving. It closes the admin listener last, so that operators can watch the drain.
func (s *Server) drain(main, admin *http.Server, ln *connListener) error {
	s.drainOnce.Do(func() { close(s.draining) })
	if s.cfg.DrainDelay > 0 {
		<-time.After(s.cfg.DrainDelay)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTimeout)
	defer cancel()
	err := main.Shutdown(ctx)
	if err != nil {
		ln.closeAll()
		err = fmt.Errorf("the drain took longer than %v, so requests were cut off: %w", s.cfg.DrainTimeout, errors.Join(err, main.Close()))
	}
	return errors.Join(err, admin.Close())
}

func (s *Server) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

func (s *Server) httpServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: s.cfg.ReadHeaderTimeout,
		ReadTimeout:       s.cfg.ReadTimeout,
		WriteTimeout:      s.cfg.WriteTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		MaxHeaderBytes:    s.cfg.MaxHeaderBytes,

		DisableGeneralOptionsHandler: true, // the server treats "OPTIONS *" as an unknown method
		ErrorLog:                     slog.NewLogLogger(s.deps.Log.Handler(), slog.LevelDebug),
	}
}
