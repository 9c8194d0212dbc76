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
	page  http.Handler // nil: there is none

	callers *callers
	cursors cursors
	small   *memory // bodies of single requests
	bulk    *memory // bodies of batches and fan-outs
	notes   *memory // small bodies of requests without a token
	posts   *memory // the others of them

	exchanges sync.Pool // *exchange
	places    [classes]places

	receiptsRead, formsRead reading

	loads loadMeters

	idPrefix string // of request ids: this process
	idNext   atomic.Uint64

	unavailable rate.Sometimes // logs of a dependency that is away
	draining    chan struct{}  // closed when the end begins
	drainOnce   sync.Once
}

// New checks the configuration. Nothing is served before Run. Close gives the
// listeners back where Run is never called.
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
		cursors:     cursors{key},
		small:       newMemory(cfg.SmallMemory, 0),
		bulk:        newMemory(cfg.BulkMemory, cfg.MemoryWait),
		posts:       newMemory(postsMemory, 0),
		notes:       newMemory(notesMemory, 0),
		idPrefix:    rand.Text()[:10],
		unavailable: rate.Sometimes{First: 3, Interval: 10 * time.Second},
		draining:    make(chan struct{}),
	}
	for c, p := range map[class]struct {
		most   int
		reason string
	}{classNormal: {cfg.MaxInFlight, "in_flight"}, classStream: {cfg.MaxStreams, "streams"}, classReceipt: {maxReceipts, "receipts"}, classPage: {maxPages, "pages"}} {
		s.places[c].most, s.places[c].reason = int64(p.most), p.reason
	}
	s.api = s.mux(routes())
	s.admin = s.adminMux()
	return s, nil
}

func (d Deps) withDefaults() (Deps, error) {
	if d.Auth == nil || d.Intake == nil || d.Users == nil || d.History == nil || d.Status == nil ||
		d.DeadLetters == nil || d.Cancels == nil || d.Campaigns == nil || d.CampaignHolds == nil {
		return d, errors.New("server: Auth, Intake, Users, History, Status, DeadLetters, Cancels, Campaigns and CampaignHolds are required")
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	return d, nil
}

// Close closes the listeners of a server that was not run.
func (s *Server) Close() error {
	err := s.cfg.Listener.Close()
	if s.cfg.AdminListener != nil {
		err = errors.Join(err, s.cfg.AdminListener.Close())
	}
	return err
}

// Addr is where the API listens.
func (s *Server) Addr() string { return s.cfg.Listener.Addr().String() }

// AdminAddr is where metrics and pprof are; empty: nowhere.
func (s *Server) AdminAddr() string {
	if s.cfg.AdminListener == nil {
		return ""
	}
	return s.cfg.AdminListener.Addr().String()
}

// Handler is the API, for tests and for other listeners than Run's.
func (s *Server) Handler() http.Handler { return s.api }

// AdminHandler serves /metrics, /debug/pprof, /healthz and /readyz.
func (s *Server) AdminHandler() http.Handler { return s.admin }

// Run serves until ctx ends, then drains: /readyz answers 503, DrainDelay
// passes, the listeners close, requests under way get DrainTimeout to end, and
// tails and waiting requests end at once. What is not answered then is answered
// 503 and cut off, which is an error. It returns nil after a clean end.
func (s *Server) Run(ctx context.Context) error {
	main := s.httpServer(s.api)
	admin := s.httpServer(s.admin)
	admin.WriteTimeout = maxProfile
	ln := newWire(s.cfg, s.newRequestID, func() { s.deps.Hooks.refused("connections") })
	main.ConnState, main.ConnContext = ln.state, withConn

	// Serving does not end with ctx but with the drain.
	g, serving := errgroup.WithContext(context.WithoutCancel(ctx))
	background, stop := context.WithCancel(serving)
	g.Go(func() error { return served(ln, main.Serve(ln)) })
	if s.cfg.AdminListener != nil {
		g.Go(func() error { return served(s.cfg.AdminListener, admin.Serve(s.cfg.AdminListener)) })
	}
	g.Go(func() error {
		return s.deps.Auth.Run(background, func(err error) {
			s.deps.Log.Warn("the key set could not be fetched; the last one holds", slog.Any("error", err))
		})
	})
	g.Go(func() error {
		defer stop()
		select {
		case <-ctx.Done():
		case <-serving.Done(): // a listener broke
		}
		return s.drain(main, admin, ln)
	})
	return g.Wait()
}

func served(ln net.Listener, err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving on %s: %w", ln.Addr(), err)
}

// drain ends serving; the admin listener goes last, so that the drain can be
// watched.
func (s *Server) drain(main, admin *http.Server, ln *wire) error {
	s.drainOnce.Do(func() { close(s.draining) })
	if s.cfg.DrainDelay > 0 {
		<-time.After(s.cfg.DrainDelay)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTimeout)
	defer cancel()
	err := main.Shutdown(ctx)
	if err != nil {
		ln.cut()
		err = fmt.Errorf("requests were cut off after %v: %w", s.cfg.DrainTimeout, errors.Join(err, main.Close()))
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

		DisableGeneralOptionsHandler: true, // "OPTIONS *" is a method there is not
		ErrorLog:                     slog.NewLogLogger(s.deps.Log.Handler(), slog.LevelDebug),
	}
}
