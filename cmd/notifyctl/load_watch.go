package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/load/report"
	"github.com/notifyd/notifyd/pkg/load/screen"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// watchOptions contains the flags that say how to show a run and where to write its result.
type watchOptions struct {
	noUI    bool
	noKeep  bool
	metrics string
	out     string
}

// screenEvery is how often a run makes a snapshot for the live screen.
const screenEvery = 250 * time.Millisecond

// watchedRun is a run in the form that package screen shows. The goroutine of the run closes the
// channel done after the run has ended and its result is set.
type watchedRun struct {
	run  *load.Run
	stop context.CancelFunc
	done chan struct{}
}

func (w *watchedRun) Latest() *load.Snapshot { return w.run.Snapshot() }
func (w *watchedRun) Done() <-chan struct{}  { return w.done }
func (w *watchedRun) Stop()                  { w.stop() }
func (w *watchedRun) Mark(text string)       { w.run.Mark(text) }

// steerer returns the Steerer with which a person changes the rate of the run. It returns nil if
// the rate of this run cannot be changed.
func (w *watchedRun) steerer() screen.Steerer {
	if !w.run.Steerable() {
		return nil
	}
	return w.run
}

// showsPanels reports whether the run is shown on the live screen.
func showsPanels(p *program, o *watchOptions) bool {
	return hasScreen(p) && !o.noUI && !p.global.quiet && p.global.output == "table" && p.global.jq == ""
}

// watchLoad runs a scenario and shows it: in a terminal on the live screen, with -o jsonl as JSON
// lines on standard output, otherwise as lines on standard error. It returns after the run's
// goroutine has ended.
func watchLoad(ctx context.Context, p *program, r *load.Run, o *watchOptions) (*load.Result, error) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	w := &watchedRun{run: r, stop: stop, done: make(chan struct{})}
	ended, err := serveMetrics(ctx, p, o.metrics, w)
	if err != nil {
		return nil, err
	}
	defer ended()
	var (
		res    *load.Result
		runErr error
		wg     sync.WaitGroup
	)
	wg.Go(func() {
		defer close(w.done)
		res, runErr = r.Run(running)
	})
	defer wg.Wait()
	watchErr := watch(ctx, p, w, o)
	if watchErr != nil {
		stop() // nothing can show the run any more
	}
	wg.Wait()
	return res, errors.Join(runErr, watchErr)
}

func watch(ctx context.Context, p *program, w *watchedRun, o *watchOptions) error {
	from := 0
	if showsPanels(p, o) {
		left, err := watchScreen(ctx, p, w)
		if err != nil {
			return err
		}
		if left == screen.LeftAtEnd {
			return nil
		}
		if s := w.Latest(); s != nil && len(s.Seconds) > 0 {
			from = s.Seconds[len(s.Seconds)-1].Second + 1
		}
	}
	// When ctx ends, the run ends, and its goroutine then closes the channel done. The lines that
	// the run writes until then must be shown too, so showing them does not end with ctx.
	ctx = context.WithoutCancel(ctx)
	switch {
	case p.global.jq != "":
	case p.global.output == "jsonl":
		return screen.Lines(ctx, p.out, w, screen.JSONL, from)
	case p.global.output == "table" && !p.global.quiet:
		return screen.Lines(ctx, p.err, w, screen.Text, from)
	}
	<-w.done
	return nil
}

// watchScreen shows the live screen. While it is shown, Ctrl-C is an ordinary key and sends no
// signal. So watchScreen ends the process itself at the second Ctrl-C.
func watchScreen(ctx context.Context, p *program, w *watchedRun) (screen.Left, error) {
	p.drawing.Store(true)
	left, err := screen.Run(ctx, p.in, p.out, screenEnv(p), screen.Options{Source: w, Control: w, Steer: w.steerer(), ASCII: !utf8Locale(p.getenv)})
	p.drawing.Store(false)
	if err == nil && left == screen.LeftAtOnce {
		os.Exit(term.ExitInterrupt)
	}
	return left, err
}

// serveMetrics serves the figures of a run on a loopback address. An empty addr means no metrics.
// The returned function stops the server and waits until its goroutine has ended.
func serveMetrics(ctx context.Context, p *program, addr string, w *watchedRun) (end func(), err error) {
	if addr == "" {
		return func() {}, nil
	}
	if _, _, err := net.SplitHostPort(addr); err != nil || !notify.LoopbackHost(addr) {
		return nil, term.Usage("--metrics %q must be a loopback address and a port, such as 127.0.0.1:9469", addr)
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", report.MetricsHandler(w.Latest))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(ln) }) // returns after Close
	p.note("metrics: http://%s/metrics", ln.Addr())
	return func() { _ = s.Close(); wg.Wait() }, nil
}

// finishLoad prints the result of a run and stores it. If one of the two fails, it still does the
// other.
func finishLoad(p *program, res *load.Result, o *watchOptions) (err error) {
	if o.out != "" {
		err = report.WriteFile(o.out, res)
	}
	err = errors.Join(err, printRun(p, res))
	if o.noKeep {
		return err
	}
	if failed := keepRun(p, res, ""); failed != nil {
		// Print the warning even with --quiet, because the result of the run is not stored.
		fmt.Fprintln(p.err, term.Clean("warning: "+failed.Error()))
	}
	return err
}
