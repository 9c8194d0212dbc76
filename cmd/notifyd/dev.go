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
	data         string
	port         int
	ephemeral    bool
	fresh        bool
	seed         string
	contextName  string
	contextGiven bool // true: the user gave --context
	ledger       string
	simDir       string
	latency      time.Duration
	ready        time.Duration
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
			o.contextGiven = c.Flags().Changed("context")
			return runDev(c.Context(), p, &o)
		},
	}
	o.add(c)
	f := c.Flags()
	f.StringVar(&o.data, "data-dir", "", "folder of the data (default: $XDG_DATA_HOME/notifyd/dev)")
	f.IntVar(&o.port, "port", 7420, "port of the API; the four ports after it are used too; 0: free ports for everything")
	f.BoolVar(&o.ephemeral, "ephemeral", false, "keep nothing: data in a temporary folder, removed at the end")
	f.BoolVar(&o.fresh, "fresh", false, "wipe the data first")
	f.StringVar(&o.seed, "seed", "demo", "create the demo users that are missing: demo or none")
	f.StringVar(&o.contextName, "context", "dev", "name of the notifyctl context to write; empty: none")
	f.StringVar(&o.ledger, "ledger-file", "", "file to which the simulators append every receiver they were sent")
	f.StringVar(&o.simDir, "simulator-dir", "", "use simulators that run elsewhere (notifyd simulate --dir)")
	f.DurationVar(&o.latency, "latency", 5*time.Millisecond, "how long simulated providers take to answer")
	f.DurationVar(&o.ready, "ready-timeout", 2*time.Minute, "if dev is not ready within this time, print why and exit; 0: wait as long as it takes")
	return c
}

// check returns an error for a wrong value of an option. It is called before notifyd dev makes any
// file.
func (o *devOptions) check() error {
	switch {
	case o.port < 0 || o.port > 65535-4:
		return term.Usage("--port %d: use 0, or 1 to %d, because dev also uses the four ports after it", o.port, 65535-4)
	case o.seed != "demo" && o.seed != "none":
		return term.Usage("--seed %q: use demo or none", o.seed)
	case o.latency < 0:
		return term.Usage("--latency %s: use 0 or more", o.latency)
	case o.ready < 0:
		return term.Usage("--ready-timeout %s: use 0 or more", o.ready)
	case o.ephemeral && o.fresh:
		return term.Usage("--ephemeral starts with an empty folder: leave out --fresh")
	case o.ephemeral && o.data != "":
		return term.Usage("--ephemeral uses a temporary folder: leave out --data-dir")
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
	// Lock the folder before anything in the folder is opened, made or removed.
	self := app.Self()
	lock, err := app.LockFolder(dir, self)
	if err != nil {
		return alreadyRunningError(dir, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := wipeFolder(dir, o.fresh); err != nil {
		return err
	}
	steps := newProgress(p.err)
	defer steps.stop()
	steps.setStep("taking the ports")
	ports, apiListener, err := listenDevPorts(ctx, o.port)
	if err != nil {
		return err
	}
	nodeOwnsListener := false
	defer func() {
		if !nodeOwnsListener {
			_ = apiListener.Close() // runDev returns the earlier error
		}
	}()
	apiURL := "http://" + ports.api
	self.API = apiURL
	lock.Tell(self)

	sim, simDir, err := newSimulators(o, dir, ports)
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
	if err := writeSharedConfig(filepath.Join(dir, sharedConfigFile), extra, apiURL); err != nil {
		return err
	}
	l, err := o.load(p, extra)
	if err != nil {
		return err
	}
	var last recentLog
	l.Config.Dev = true
	log := newLogger(io.MultiWriter(p.err, &last), &l.Config)
	p.setStandardLogger(log)
	nodeOwnsListener = true // app.New closes the listener, also if it fails
	app.MakeRoomForFiles()
	n, err := app.New(l.Config, log, app.WithListener(apiListener), app.WithProgress(steps.setStep))
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
		// Set the caller's secret before the node runs. As soon as the node runs, it may make
		// callbacks of triggers that were registered before a restart, and the simulated receiver
		// expects signatures with this secret.
		err = n.SeedCaller(ctx, "dev", []string{urls.Callback + "/"}, secret)
	}
	if err != nil {
		return errors.Join(err, n.Close())
	}
	defer context.removeIfTemporary(o)
	b := &banner{dir: dir, home: p.getenv("HOME"), api: apiURL, urls: urls, node: n, context: context, began: began}
	steps.setStep("starting the workers")
	err = b.run(ctx, p, o, sim, token, steps)
	_ = os.Remove(filepath.Join(dir, runningFile))
	if !isRequestedStop(ctx, err) {
		return err
	}
	return nil
}

// run runs the simulators and the node until ctx ends. The simulators run until the node has stopped,
// because the node calls them while it drains.
func (b *banner) run(ctx context.Context, p *program, o *devOptions, sim *simulator.Simulator, token string, steps *progress) error {
	g, gctx := errgroup.WithContext(ctx)
	simCtx, stopSim := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSim()
	if sim != nil {
		g.Go(func() error { return sim.Run(simCtx) })
	}
	g.Go(func() error {
		defer stopSim() // runs after the node has drained
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

// newSimulators makes the simulated providers and returns their folder. With --simulator-dir the
// simulators run in another process. newSimulators then returns nil and the folder of that option.
func newSimulators(o *devOptions, dir string, ports devAddrs) (*simulator.Simulator, string, error) {
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
	// notifyd restore and notifyd serve put the store into dir itself. notifyd dev uses the store in
	// dir/data. So it would ignore the store in dir and start with an empty store.
	if _, err := os.Stat(filepath.Join(dir, "store")); err == nil {
		return dir, cleanup, &term.Error{Exit: term.ExitUsage,
			Err:  fmt.Errorf("%s contains the data of notifyd serve or of a restored backup; notifyd dev would ignore this data, because it reads only the subfolder named data", dir),
			Next: []string{"notifyd restore FILE --data-dir NEW/data, then notifyd dev --data-dir NEW", "notifyd serve --data-dir " + dir},
		}
	}
	return dir, cleanup, app.MakeDataDir(dir)
}

// wipeFolder removes the files that notifyd dev made in the folder dir. It removes nothing else,
// because a wrong --data-dir must not delete a user's files.
func wipeFolder(dir string, fresh bool) error {
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

// alreadyRunningError adds next steps to err if err means that another process holds the lock of
// the folder dir.
func alreadyRunningError(dir string, err error) error {
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

// runningInfo is the content of running.json. A dev server writes this file into its folder for scripts
// when it is ready.
type runningInfo struct {
	PID   int    `json:"pid"`
	API   string `json:"api"`
	Inbox string `json:"inbox"`
}

const runningFile = "running.json"

func (r runningInfo) write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(filepath.Join(dir, runningFile), b) // atomic, so that a script never reads half of the file
}
