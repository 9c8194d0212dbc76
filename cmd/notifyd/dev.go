package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/simulator"
	"github.com/notifyd/notifyd/pkg/term"
)

type devOptions struct {
	configFlags
	data       string
	port       int
	ephemeral  bool
	fresh      bool
	seed       string
	context    string
	ownContext bool // --context was given
	ledger     string
	simDir     string
	latency    time.Duration
	ready      time.Duration
}

func newDev(p *program) *cobra.Command {
	var o devOptions
	c := &cobra.Command{
		Use: "dev", Short: "Run everything in one process, with simulated providers", Args: cobra.NoArgs,
		Long: `dev runs notifyd with its embedded log and store, and beside it simulated
providers that speak the real protocols of APNs, FCM, Twilio and SendGrid. It makes
a signing key and a token, and a context "dev" for notifyctl. Nothing listens
beyond loopback. Data is kept between runs; --fresh wipes it, --ephemeral keeps
none. Ctrl-C stops it: work in flight is finished; a second Ctrl-C ends it at once.`,
		Example: `  notifyd dev
  notifyd dev --ephemeral --port 0                    # beside another one, leaves nothing
  notifyd dev --latency 200ms --set logging.level=info`,
		RunE: func(c *cobra.Command, _ []string) error {
			o.ownContext = c.Flags().Changed("context")
			return runDev(c.Context(), p, &o)
		},
	}
	o.add(c)
	f := c.Flags()
	f.StringVar(&o.data, "data-dir", "", "folder of the data (default: $XDG_DATA_HOME/notifyd/dev)")
	f.IntVar(&o.port, "port", 7420, "port of the API; the four behind it are used too; 0: free ports for everything")
	f.BoolVar(&o.ephemeral, "ephemeral", false, "keep nothing: data in a temporary folder, removed at the end")
	f.BoolVar(&o.fresh, "fresh", false, "wipe the data first")
	f.StringVar(&o.seed, "seed", "demo", "users to begin with, where they are missing: demo or none")
	f.StringVar(&o.context, "context", "dev", "name of the notifyctl context to write; empty: none")
	f.StringVar(&o.ledger, "ledger-file", "", "the simulators append every receiver they were sent to this file")
	f.StringVar(&o.simDir, "simulator-dir", "", "use simulators that run elsewhere (notifyd simulate --dir)")
	f.DurationVar(&o.latency, "latency", 5*time.Millisecond, "how long simulated providers take to answer")
	f.DurationVar(&o.ready, "ready-timeout", 2*time.Minute, "give up when it is not ready by then, and say why; 0: never")
	return c
}

// check refuses wrong values before anything is made.
func (o *devOptions) check() error {
	switch {
	case o.port < 0 || o.port > 65535-4:
		return term.Usage("--port %d: it is 0, or 1 to %d: the four ports behind it are used too", o.port, 65535-4)
	case o.seed != "demo" && o.seed != "none":
		return term.Usage("--seed %q: it is demo or none", o.seed)
	case o.latency < 0:
		return term.Usage("--latency %s: it is not below 0", o.latency)
	case o.ready < 0:
		return term.Usage("--ready-timeout %s: it is not below 0", o.ready)
	case o.ephemeral && o.fresh:
		return term.Usage("--ephemeral begins with nothing; --fresh does not go with it")
	case o.ephemeral && o.data != "":
		return term.Usage("--ephemeral keeps nothing; --data-dir does not go with it")
	}
	return nil
}

func runDev(ctx context.Context, p *program, o *devOptions) (err error) {
	began := time.Now()
	if err := o.check(); err != nil {
		return err
	}
	dir, cleanup, err := devFolder(p, o)
	if err != nil {
		return err
	}
	defer cleanup()
	// Before anything is opened, made or wiped.
	self := app.Self()
	lock, err := app.LockFolder(dir, self)
	if err != nil {
		return runsAlready(dir, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := wipe(dir, o.fresh); err != nil {
		return err
	}
	steps := newProgress(p.err)
	defer steps.stop()
	steps.say("taking the ports")
	ports, apiListener, err := devPorts(ctx, o.port)
	if err != nil {
		return err
	}
	taken := false
	defer func() {
		if !taken {
			_ = apiListener.Close() // nobody has it: the error is another one
		}
	}()
	apiURL := "http://" + ports.api
	self.API = apiURL
	lock.Tell(self)

	sim, simDir, err := simulators(o, dir, ports)
	if err != nil {
		return err
	}
	if sim != nil {
		defer sim.Close()
	}
	extra, urls, secret, err := devConfig(dir, simDir, ports)
	if err != nil {
		return err
	}
	self.Inbox = urls.Inbox
	lock.Tell(self)
	if err := writeBeside(filepath.Join(dir, besideFile), extra, apiURL); err != nil {
		return err
	}
	l, err := o.load(p, extra)
	if err != nil {
		return err
	}
	var last recent
	l.Config.Dev = true
	log := logger(io.MultiWriter(p.err, &last), &l.Config)
	p.standard(log)
	taken = true
	app.MakeRoomForFiles()
	n, err := app.New(l.Config, log, app.WithListener(apiListener), app.WithProgress(steps.say))
	if err != nil {
		return err
	}
	n.Describe(app.About{Config: l.Print(), Log: last.Lines})
	token, err := devToken(dir)
	context := &devContext{}
	if err == nil {
		context, err = writeContext(ctx, p, o, term.Context{Server: apiURL, TokenFile: filepath.Join(dir, "token"), Simulators: urls.Control})
	}
	if err == nil {
		// Before anything runs: a callback that was left from an earlier start
		// must be signed as the simulated receiver expects.
		err = n.SeedCaller(ctx, "dev", []string{urls.Callback + "/"}, secret)
	}
	if err != nil {
		return errors.Join(err, n.Close())
	}
	defer context.restore(o)
	b := &banner{dir: dir, home: p.getenv("HOME"), api: apiURL, urls: urls, node: n, context: context, began: began}
	steps.say("starting the workers")
	err = b.run(ctx, p, o, sim, token, steps)
	_ = os.Remove(filepath.Join(dir, runningFile))
	if !interrupted(ctx, err) {
		return err
	}
	return nil
}

// run runs the parts until ctx ends.
func (b *banner) run(ctx context.Context, p *program, o *devOptions, sim *simulator.Simulator, token string, steps *progress) error {
	g, gctx := errgroup.WithContext(ctx)
	simCtx, stopSim := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSim()
	if sim != nil {
		g.Go(func() error { return sim.Run(simCtx) })
	}
	g.Go(func() error {
		defer stopSim() // after notifyd has drained, which needs its providers
		return b.node.Run(gctx)
	})
	g.Go(func() error {
		if err := devReady(gctx, p, o, b, token, steps); err != nil && gctx.Err() == nil {
			return err
		}
		return nil
	})
	return g.Wait()
}

// simulators makes them, unless they run elsewhere.
func simulators(o *devOptions, dir string, ports devAddrs) (*simulator.Simulator, string, error) {
	if o.simDir != "" {
		return nil, o.simDir, nil
	}
	simDir := filepath.Join(dir, "simulator")
	sim, err := simulator.New(simulator.Config{
		Dir: simDir, ControlAddr: ports.control, LedgerFile: o.ledger,
		APNs: simulator.APNsConfig{Latency: simulator.Constant(o.latency)},
		FCM:  simulator.FCMConfig{Latency: simulator.Constant(o.latency)},
		Twilio: simulator.TwilioConfig{
			Latency: simulator.Constant(o.latency), RetryAfter: time.Second,
		},
		SendGrid: simulator.SendGridConfig{Latency: simulator.Constant(o.latency)},
		Callback: simulator.CallbackConfig{Addr: ports.callback, Latency: simulator.Constant(o.latency)},
		Receipts: simulator.Receipts{Delay: simulator.Constant(200 * time.Millisecond), SendGridURL: "http://" + ports.api + "/v1/receipts/sendgrid"},
	})
	return sim, simDir, err
}

func devFolder(p *program, o *devOptions) (dir string, cleanup func(), err error) {
	cleanup = func() {}
	if o.ephemeral {
		if dir, err = os.MkdirTemp("", "notifyd-dev-"); err != nil {
			return "", cleanup, app.BadDataDir(os.TempDir(), err)
		}
		return dir, func() { _ = os.RemoveAll(dir) }, nil
	}
	if dir = o.data; dir == "" {
		dir = app.DataFolder(p.getenv, "dev")
	}
	// What restore made stands in the folder itself: dev would start empty beside it.
	if _, err := os.Stat(filepath.Join(dir, "store")); err == nil {
		return dir, cleanup, &term.Error{Exit: term.ExitUsage,
			Err:  fmt.Errorf("%s holds the data of notifyd serve or of a restored backup; dev keeps its data in the folder data below its own", dir),
			Next: []string{"notifyd restore FILE --data-dir NEW/data, then notifyd dev --data-dir NEW", "notifyd serve --data-dir " + dir},
		}
	}
	return dir, cleanup, app.MakeDataDir(dir)
}

// wipe removes only what notifyd made: a wrong --data-dir must not cost anybody
// a folder.
func wipe(dir string, fresh bool) error {
	if !fresh {
		return nil
	}
	for _, name := range []string{"data", "data.secrets-key", "simulator", "key.pem", "token", runningFile} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// runsAlready says what to do when another process has the folder.
func runsAlready(dir string, err error) error {
	if !app.Locked(err) {
		return err
	}
	e := &term.Error{Exit: term.ExitUnavailable, Err: err}
	if h, ok := app.HolderOf(dir); ok {
		if h.Inbox != "" {
			e.Next = append(e.Next, "use it: its inbox is "+h.Inbox)
		}
		e.Next = append(e.Next, fmt.Sprintf("kill %d                             (stops it)", h.PID))
	}
	e.Next = append(e.Next, "notifyd dev --ephemeral --port 0     (another one beside it)")
	return e
}

// running is what a dev server that is ready leaves in its folder for scripts.
type running struct {
	PID   int    `json:"pid"`
	API   string `json:"api"`
	Inbox string `json:"inbox"`
}

const runningFile = "running.json"

func (r running) write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(filepath.Join(dir, runningFile), b) // whole: scripts look for it
}
