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

// explainAfter is how long a dev server may take to become ready before awaitReady prints the reason of
// the delay.
const explainAfter = 5 * time.Second

// awaitReady calls the function check every 20 ms until it returns nil. After explainAfter it
// prints the error of check to w, and prints it again whenever the reason changes. When the time
// limit has passed, awaitReady returns the error of check. A limit of 0 means that there is no
// limit. If ctx ends first, awaitReady returns ctx's cause.
func awaitReady(ctx context.Context, w io.Writer, limit time.Duration, check func(context.Context) error) error {
	began, said := time.Now(), ""
	for {
		err := check(ctx)
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
		if took >= explainAfter {
			if text := reasonOf(err); text != said {
				fmt.Fprintf(w, "notifyd dev is not ready after %.0fs: %s\n  It keeps trying, and refuses requests until then; notifyctl doctor shows more.\n", took.Seconds(), text)
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

// reasonOf returns the message and the code of an error. It omits details that change from one
// check to the next, such as how long something has been down.
func reasonOf(err error) string {
	e, ok := errors.AsType[*notify.Error](err)
	if !ok || e.Code == "" || e.Msg == "" {
		return err.Error()
	}
	return e.Msg + " (" + e.Code + ")"
}

// devReady waits until the node and its API are ready, adds the demo users, writes running.json and
// prints the banner.
func devReady(ctx context.Context, p *program, o *devOptions, b *banner, token string, steps *progress) error {
	cl := &api.Client{BaseURL: b.api, Token: func(context.Context) (string, error) { return token, nil }, Retries: 3}
	// The node is checked before the API. The node knows why it is not ready. The API would log each
	// request that it refuses until the node is ready.
	if err := awaitReady(ctx, p.err, o.ready, func(ctx context.Context) error {
		if err := b.node.Ready(ctx); err != nil {
			return err
		}
		return cl.Ready(ctx)
	}); err != nil {
		return err
	}
	if o.seed == "demo" {
		steps.setStep("seeding users")
		if err := seedDemoUsers(ctx, cl); err != nil {
			return err
		}
	}
	steps.stop()
	if err := (runningInfo{os.Getpid(), b.api, b.urls.Inbox}).write(b.dir); err != nil {
		return err
	}
	_, err := io.WriteString(p.out, b.text(o))
	return err
}

// banner holds the values that a dev server prints when it is ready.
type banner struct {
	dir     string
	home    string // the user's home folder; empty: not known
	api     string // URL of the API
	urls    simulator.URLs
	node    *app.Node
	context *devContext
	began   time.Time
}

// shortPath returns a path with ~ for the user's home folder, in the form that shells understand.
func (b *banner) shortPath(path string) string {
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
	fmt.Fprintf(&w, "  Operate   %s/ui/   sign in with the token in %s\n", b.api, b.shortPath(filepath.Join(b.dir, "token")))
	fmt.Fprintf(&w, "  Inbox     %s   what the simulated providers were sent\n", b.urls.Inbox)
	fmt.Fprintf(&w, "  Callbacks %s/   a URL for triggers; notifyctl sim callbacks counts its calls, with a trigger's id shows each\n", b.urls.Callback)
	fmt.Fprintf(&w, "  Metrics   http://%s/metrics\n", b.node.Admin())
	if log := b.node.Kafka(); log != "" {
		fmt.Fprintf(&w, "  Kafka     %s   read only: kcat -b %s -C -t notifications-push\n", log, log)
	}
	fmt.Fprintf(&w, "  Data      %s   (%s)\n", b.shortPath(b.dir), kept)
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
	if o.contextName == "" {
		ctl += fmt.Sprintf(" --server %s --token-file %s/token", b.api, b.dir)
	}
	fmt.Fprintf(&w, "Try:  %s send --channel push --user ann --title Hello --body 'It works' --wait\n", ctl)
	fmt.Fprintf(&w, "      %s ls ann\n      %s ui\n", ctl, ctl)
	fmt.Fprintf(&w, "Ctrl-C stops it.\n")
	return w.String()
}
