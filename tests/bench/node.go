package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// node is a notifyd node that runs in this process, and a client for it.
type node struct {
	*app.Node
	url    string
	client *api.Client
	*background
}

// background is a function that runs in a goroutine until the method end is called.
type background struct {
	stop context.CancelFunc
	done chan error
}

func inBackground(ctx context.Context, run func(context.Context) error) *background {
	b := &background{done: make(chan error, 1)}
	ctx, b.stop = context.WithCancel(ctx)
	go func() { b.done <- run(ctx) }()
	return b
}

func (b *background) end() {
	b.stop()
	rig.Ok(<-b.done)
}

// config returns the configuration of a node whose data is in dir. The node uses the stub for all
// providers. If sync is true, the log fsyncs before it acknowledges.
func (b *bench) config(dir string, sync bool) app.Config {
	cfg := app.Default()
	cfg.DataDir, cfg.Secrets.KeyFile = dir, filepath.Join(dir, "secrets-key")
	cfg.API.Listen, cfg.API.Admin, cfg.Log.Listen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	cfg.API.Rate, cfg.API.Burst = 1e6, 1e6
	cfg.Log.Sync, cfg.Log.CapMiB = sync, 16<<10
	if !sync {
		cfg.Log.Linger = 500 * time.Microsecond // without fsync, a longer linger saves nothing
	}
	cfg.Providers.Stub = true
	cfg.Auth.KeyFile = filepath.Join(dir, "key.pem")
	rig.Ok(os.MkdirAll(dir, 0o700))
	if _, err := os.Stat(cfg.Auth.KeyFile); err != nil {
		rig.Ok(os.WriteFile(cfg.Auth.KeyFile, rig.Must(server.NewSigningKey()), 0o600))
	}
	return cfg
}

// start opens a node, runs it in the background and waits until it is ready. If prepare is not nil,
// start calls it before the node runs.
func (b *bench) start(ctx context.Context, cfg app.Config, role string, prepare func(*app.Node)) *node {
	log := slog.New(slog.DiscardHandler)
	if b.verbose {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	app.MakeRoomForFiles()
	a := rig.Must(app.New(cfg, log))
	if prepare != nil {
		prepare(a)
	}
	token := rig.Must(rig.Must(server.OpenSigner(cfg.Auth.KeyFile)).Sign(server.TokenSpec{
		Caller: "bench", Scopes: api.Scopes[:], Issuer: cfg.Auth.Issuer, Audience: cfg.Auth.Audience, TTL: 6 * time.Hour, Now: time.Now(),
	}))
	n := &node{Node: a, url: "http://" + a.Addr()}
	n.client = client(n.url, token)
	n.background = inBackground(ctx, func(ctx context.Context) error { return a.RunAs(ctx, role) })
	rig.Ok(rig.Until(ctx, "the node is ready", func() (bool, error) {
		select {
		case err := <-n.done:
			return false, errors.Join(errors.New("the node ended before it was ready"), err)
		default:
			return n.client.Ready(ctx) == nil, nil
		}
	}))
	return n
}

func client(url, token string) *api.Client {
	return &api.Client{
		BaseURL: url, HTTPClient: &http.Client{Transport: api.NewTransport(chainCallers)},
		Token: func(context.Context) (string, error) { return token, nil },
	}
}

// folder returns the path of a new folder. It does not create the folder.
func (b *bench) folder(name string) string {
	b.nodes++
	return filepath.Join(b.dir, fmt.Sprintf("%s-%d-%d", name, os.Getpid(), b.nodes))
}

// offer sends the load st to a server for d. It panics if a request fails or is rejected. In the
// result, Rates.Acked is the number of accepted receivers per second.
func offer(ctx context.Context, name string, d time.Duration, st load.Step, cl *api.Client) *load.Result {
	return run(ctx, load.SingleStep(name, d, st), load.Config{Target: &load.HTTP{Client: cl}})
}

// generate generates the requests of the load st for d. Their target is load.Null, so nothing is
// sent.
func generate(ctx context.Context, d time.Duration, st load.Step) *load.Result {
	return run(ctx, load.SingleStep("null", d, st), load.Config{})
}

func run(ctx context.Context, s load.Scenario, cfg load.Config) *load.Result {
	r := rig.Must(load.New(s, cfg))
	res := rig.Must(r.Run(ctx))
	if t := &res.Totals; t.Failed > 0 || t.Rejected > 0 {
		panic(fmt.Errorf("%d receivers failed, %d were rejected: %v", t.Failed, t.Rejected, res.Errors))
	}
	rig.Ok(ctx.Err())
	return res
}
