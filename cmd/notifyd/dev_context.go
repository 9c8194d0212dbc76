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

// devToken signs a token for the developer, and keeps it in dir.
func devToken(dir string) (token string, err error) {
	d := app.Default()
	token, err = sign(filepath.Join(dir, "key.pem"), server.TokenSpec{
		Caller: "dev", Scopes: api.Scopes[:], Issuer: d.Auth.Issuer, Audience: d.Auth.Audience, TTL: 30 * 24 * time.Hour,
	})
	if err != nil {
		return "", err
	}
	return token, atomicfile.WriteFile(filepath.Join(dir, "token"), []byte(token+"\n"))
}

// devContext is the context of notifyctl that a dev server wrote.
type devContext struct {
	getenv func(string) string
	name   string // empty: none
	chosen bool
	now    term.Context
	before string // that was chosen before
}

// writeContext writes it and chooses it. A context that another server answers
// at is left alone: this one gets a name of its own then, and is not chosen.
func writeContext(ctx context.Context, p *program, o *devOptions, x term.Context) (*devContext, error) {
	c := &devContext{getenv: p.getenv, name: o.context, chosen: true, now: x}
	if o.context == "" {
		return c, nil
	}
	cs, err := term.OpenContexts(p.getenv)
	if err != nil {
		return nil, err
	}
	if was, ok := cs.List[o.context]; ok && was.Server != x.Server && !o.ownContext && answers(ctx, was.Server) {
		u, err := url.Parse(x.Server)
		if err != nil {
			return nil, err
		}
		c.name, c.chosen = o.context+"-"+u.Port(), false
	}
	c.before = cs.Current()
	if err := cs.Set(c.name, x); err != nil {
		return nil, err
	}
	if !c.chosen {
		return c, nil
	}
	return c, cs.Use(c.name)
}

// answers reports whether a server is there.
func answers(ctx context.Context, server string) bool {
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
	_ = resp.Body.Close() // nothing of it is read
	return resp.StatusCode == http.StatusOK
}

// restore takes back the context of a server that leaves nothing: its token is
// gone with its folder. What somebody changed meanwhile stays.
func (c *devContext) restore(o *devOptions) {
	if c.name == "" || !o.ephemeral && c.chosen {
		return
	}
	cs, err := term.OpenContexts(c.getenv)
	if err != nil || cs.List[c.name] != c.now {
		return
	}
	was := cs.Current()
	if cs.Remove(c.name) != nil || was != c.name {
		return
	}
	if _, err := cs.Get(c.before); err == nil {
		_ = cs.Use(c.before) // a courtesy: notifyctl context use does it too
	}
}

// String is the line of the banner.
func (c *devContext) String() string {
	if c.chosen {
		return fmt.Sprintf("%q written and chosen for notifyctl", c.name)
	}
	return fmt.Sprintf("%q written; notifyctl talks to another server: notifyctl context use %s", c.name, c.name)
}
