package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
	"github.com/notifyd/notifyd/pkg/term"
)

// patience is how long a dev server may take to be ready before it says why it
// is not.
const patience = 5 * time.Second

// awaitReady waits until ready returns nil. After a while it says what is in the
// way, and again when that is another thing; after limit (0: never) that is its
// error. It returns ctx's cause when ctx ends before.
func awaitReady(ctx context.Context, w io.Writer, limit time.Duration, ready func(context.Context) error) error {
	began, said := time.Now(), ""
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		took := time.Since(began)
		if limit > 0 && took >= limit {
			return &term.Error{
				Exit: term.ExitUnavailable, Err: fmt.Errorf("notifyd dev is not ready after %s: %w", took.Round(time.Second), err),
				Next: []string{"notifyd dev --ready-timeout 0   (waits as long as it takes)"},
			}
		}
		if took >= patience {
			if text := reasonOf(err); text != said {
				fmt.Fprintf(w, "notifyd dev is not ready after %.0fs: %s\n  It goes on, and refuses requests until that is over; notifyctl doctor tells more.\n", took.Seconds(), text)
				said = text
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reasonOf is an error with its code, without what changes from one time to the
// next, like how long it has been so.
func reasonOf(err error) string {
	e, ok := errors.AsType[*notify.Error](err)
	if !ok || e.Code == "" || e.Msg == "" {
		return err.Error()
	}
	return e.Msg + " (" + e.Code + ")"
}

// devReady waits for the API, seeds users and prints the banner.
func devReady(ctx context.Context, p *program, o *devOptions, b *banner, token string, steps *progress) error {
	cl := &api.Client{BaseURL: b.api, Token: func(context.Context) (string, error) { return token, nil }, Retries: 3}
	// The node first: it knows why, and a server logs what it refuses.
	if err := awaitReady(ctx, p.err, o.ready, func(ctx context.Context) error {
		if err := b.node.Ready(ctx); err != nil {
			return err
		}
		return cl.Ready(ctx)
	}); err != nil {
		return err
	}
	if o.seed == "demo" {
		steps.say("seeding users")
		if err := seed(ctx, cl); err != nil {
			return err
		}
	}
	steps.stop()
	if err := (running{os.Getpid(), b.api, b.urls.Inbox}).write(b.dir); err != nil {
		return err
	}
	_, err := io.WriteString(p.out, b.text(o))
	return err
}

// banner is what a dev server says of itself when it is ready.
type banner struct {
	dir     string
	home    string // of the user; empty: not known
	api     string // URL
	urls    simulator.URLs
	node    *app.Node
	context *devContext
	began   time.Time
}

// short writes a path with ~ for the user's folder, as shells read it.
func (b *banner) short(path string) string {
	if b.home == "" || b.home == string(filepath.Separator) {
		return path
	}
	if rest, ok := strings.CutPrefix(path, filepath.Clean(b.home)+string(filepath.Separator)); ok {
		return "~" + string(filepath.Separator) + rest
	}
	return path
}

func (b *banner) text(o *devOptions) string {
	kept := "kept; --fresh wipes it, --ephemeral keeps none"
	if o.ephemeral {
		kept = "temporary, removed at the end"
	}
	var w strings.Builder
	fmt.Fprintf(&w, "notifyd %s dev   ready in %.1fs   (simulated providers, loopback only)\n", version, time.Since(b.began).Seconds())
	fmt.Fprintf(&w, "  API       %s   description: %s/openapi.yaml\n", b.api, b.api)
	fmt.Fprintf(&w, "  Operate   %s/ui/   sign in with the token in %s\n", b.api, b.short(filepath.Join(b.dir, "token")))
	fmt.Fprintf(&w, "  Inbox     %s   what the simulated providers were sent\n", b.urls.Inbox)
	fmt.Fprintf(&w, "  Callbacks %s/   a URL for triggers; notifyctl sim callbacks counts its calls, with a trigger's id shows each\n", b.urls.Callback)
	fmt.Fprintf(&w, "  Metrics   http://%s/metrics\n", b.node.Admin())
	if log := b.node.Kafka(); log != "" {
		fmt.Fprintf(&w, "  Kafka     %s   read only: kcat -b %s -C -t notifications-push\n", log, log)
	}
	fmt.Fprintf(&w, "  Data      %s   (%s)\n", b.short(b.dir), kept)
	if o.seed == "demo" {
		fmt.Fprintf(&w, "  Seeded    %d users: ann, bob, cleo, dan (quiet hours), eve (no marketing), user-000 ... user-099\n", len(demoUsers()))
	}
	ctl := "notifyctl"
	if b.context.name != "" {
		fmt.Fprintf(&w, "  Context   %s\n", b.context)
		if !b.context.chosen {
			ctl += " --context " + b.context.name
		}
	}
	if o.context == "" {
		ctl += fmt.Sprintf(" --server %s --token-file %s/token", b.api, b.dir)
	}
	fmt.Fprintf(&w, "Try:  %s send --channel push --user ann --title Hello --body 'It works' --wait\n", ctl)
	fmt.Fprintf(&w, "      %s ls ann\n      %s ui\n", ctl, ctl)
	fmt.Fprintf(&w, "Ctrl-C stops it.\n")
	return w.String()
}
