package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/term"
)

// devToken signs a token for the caller "dev" and writes it to the file "token" in the folder dir.
// The token is valid for 30 days.
func devToken(dir string) (token string, err error) {
	d := app.Default()
	token, err = signToken(filepath.Join(dir, "key.pem"), server.TokenSpec{
		Caller: "dev", Scopes: api.Scopes[:], Issuer: d.Auth.Issuer, Audience: d.Auth.Audience, TTL: 30 * 24 * time.Hour,
	})
	if err != nil {
		return "", err
	}
	return token, atomicfile.WriteFile(filepath.Join(dir, "token"), []byte(token+"\n"))
}

// devContext is the context of notifyctl that a dev server wrote.
type devContext struct {
	getenv   func(string) string
	name     string // empty: no context was written
	chosen   bool   // true: it was made the current context of notifyctl
	written  term.Context
	previous string // name of the context that was current before
}

// writeContext writes x as a context of notifyctl and makes it the current context. There is one
// exception: a context of this name belongs to another server that still runs, and the user did not
// give --context. In this case writeContext does not change that context. It writes x under a name that
// ends with the port, and does not make x the current context.
func writeContext(ctx context.Context, p *program, o *devOptions, x term.Context) (*devContext, error) {
	c := &devContext{getenv: p.getenv, name: o.contextName, chosen: true, written: x}
	if o.contextName == "" {
		return c, nil
	}
	cs, err := term.OpenContexts(p.getenv)
	if err != nil {
		return nil, err
	}
	if was, ok := cs.List[o.contextName]; ok && was.Server != x.Server && !o.contextGiven && serverAnswers(ctx, was.Server) {
		u, err := url.Parse(x.Server)
		if err != nil {
			return nil, err
		}
		c.name, c.chosen = o.contextName+"-"+u.Port(), false
	}
	c.previous = cs.Current()
	if err := cs.Set(c.name, x); err != nil {
		return nil, err
	}
	if !c.chosen {
		return c, nil
	}
	return c, cs.Use(c.name)
}

// serverAnswers reports whether the server's /healthz answers with 200 within a second.
func serverAnswers(ctx context.Context, server string) bool {
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/healthz", nil)
	if err != nil {
		return false
	}
	t := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // only the status is needed
	return resp.StatusCode == http.StatusOK
}

// removeIfTemporary removes the context in two cases: the user gave --ephemeral, or writeContext
// did not make the context the current one. It does not remove a context that was changed after
// writeContext. If the removed context was current, it makes the previous context current again.
func (c *devContext) removeIfTemporary(o *devOptions) {
	if c.name == "" || !o.ephemeral && c.chosen {
		return
	}
	cs, err := term.OpenContexts(c.getenv)
	if err != nil || cs.List[c.name] != c.written {
		return
	}
	was := cs.Current()
	if cs.Remove(c.name) != nil || was != c.name {
		return
	}
	if _, err := cs.Get(c.previous); err == nil {
		_ = cs.Use(c.previous) // an error is ignored: the user can run notifyctl context use
	}
}

// String returns the line of the banner about the context.
func (c *devContext) String() string {
	if c.chosen {
		return fmt.Sprintf("%q written and chosen for notifyctl", c.name)
	}
	return fmt.Sprintf("%q written; notifyctl talks to another server: notifyctl context use %s", c.name, c.name)
}
