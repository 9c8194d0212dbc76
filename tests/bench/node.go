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
)

// node is a notifyd in this process.
type node struct {
	*app.Node
	url    string
	client *api.Client
	stop   context.CancelFunc
	done   chan error
}

// config of a node in dir, with the stub for all providers.
func (b *bench) config(dir string, sync bool) (app.Config, error) {
	cfg := app.Default()
	cfg.DataDir, cfg.Secrets.KeyFile = dir, filepath.Join(dir, "secrets-key")
	cfg.API.Listen, cfg.API.Admin, cfg.Log.Listen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	cfg.API.Rate, cfg.API.Burst = 1e6, 1e6
	cfg.Log.Sync, cfg.Log.CapMiB = sync, 16<<10
	if !sync {
		cfg.Log.Linger = 500 * time.Microsecond // no fsync to share
	}
	cfg.Providers.Stub = true
	cfg.Auth.KeyFile = filepath.Join(dir, "key.pem")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return cfg, err
	}
	if _, err := os.Stat(cfg.Auth.KeyFile); err == nil {
		return cfg, nil
	}
	pem, err := server.NewSigningKey()
	if err == nil {
		err = os.WriteFile(cfg.Auth.KeyFile, pem, 0o600)
	}
	return cfg, err
}

// start opens and runs a node; prepare, if given, sees it before it runs.
func (b *bench) start(ctx context.Context, cfg app.Config, role string, prepare func(*app.Node)) (*node, error) {
	log := slog.New(slog.DiscardHandler)
	if b.verbose {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	app.MakeRoomForFiles()
	a, err := app.New(cfg, log)
	if err != nil {
		return nil, err
	}
	if prepare != nil {
		prepare(a)
	}
	signer, err := server.OpenSigner(cfg.Auth.KeyFile)
	var token string
	if err == nil {
		token, err = signer.Sign(server.TokenSpec{
			Caller: "bench", Scopes: api.Scopes[:], Issuer: cfg.Auth.Issuer, Audience: cfg.Auth.Audience, TTL: 6 * time.Hour, Now: time.Now(),
		})
	}
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	n := &node{Node: a, url: "http://" + a.Addr(), done: make(chan error, 1)}
	n.client = client(n.url, token)
	ctx, n.stop = context.WithCancel(ctx)
	go func() { n.done <- a.RunAs(ctx, role) }()
	for began := time.Now(); ; {
		err := n.client.Ready(ctx)
		if err == nil {
			return n, nil
		}
		select {
		case err := <-n.done:
			return nil, fmt.Errorf("the node ended: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Since(began) > 3*time.Minute {
			return nil, errors.Join(fmt.Errorf("the node does not become ready: %w", err), n.end())
		}
	}
}

func (n *node) end() error {
	n.stop()
	return <-n.done
}

func client(url, token string) *api.Client {
	return &api.Client{
		BaseURL: url, HTTPClient: &http.Client{Transport: api.NewTransport(0)},
		Token: func(context.Context) (string, error) { return token, nil },
	}
}

// folder returns a fresh one for a node.
func (b *bench) folder(name string) string {
	b.nodes++
	return filepath.Join(b.dir, fmt.Sprintf("%s-%d-%d", name, os.Getpid(), b.nodes))
}

// offer sends a step to a server for d; requests that fail are an error.
func offer(ctx context.Context, name string, d time.Duration, st load.Step, cl *api.Client) (*load.Result, error) {
	return run(ctx, load.One(name, d, st), load.Config{Target: &load.HTTP{Client: cl}})
}

// generated makes what a step sends, and sends it nowhere.
func generated(ctx context.Context, d time.Duration, st load.Step) (*load.Result, error) {
	return run(ctx, load.One("null", d, st), load.Config{})
}

func run(ctx context.Context, s load.Scenario, cfg load.Config) (*load.Result, error) {
	r, err := load.New(s, cfg)
	if err != nil {
		return nil, err
	}
	res, err := r.Run(ctx)
	if err != nil {
		return nil, err
	}
	if t := &res.Totals; t.Failed > 0 || t.Rejected > 0 {
		return res, fmt.Errorf("%d receivers failed, %d were rejected: %v", t.Failed, t.Rejected, res.Errors)
	}
	return res, ctx.Err()
}

// offered is how many receivers a second were accepted.
func offered(r *load.Result, err error) (float64, error) {
	if err != nil {
		return 0, err
	}
	return r.Rates.Acked, nil
}
