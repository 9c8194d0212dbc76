package app

import (
	"slices"
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
)

// SeedCaller adds what is missing, updates its own ports and secrets, and does not change what
// somebody else has set.
func TestSeedCaller(t *testing.T) {
	t.Parallel()
	l := run(t, testConfig(t, t.TempDir()), seams{})
	ctx, callers := t.Context(), l.st.callers
	seed := func(url, secret string) engine.Caller {
		t.Helper()
		if err := l.SeedCaller(ctx, "dev", []string{url}, secret); err != nil {
			t.Fatal(err)
		}
		c, ok, err := callers.Get(ctx, "dev")
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		return c
	}
	change := func(f func(*engine.Caller)) {
		t.Helper()
		c, _, err := callers.Get(ctx, "dev")
		if err == nil {
			f(&c)
			err = callers.Put(ctx, c)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, c engine.Caller, secrets []string, urls ...string) {
		t.Helper()
		var have []string
		for _, s := range c.Secrets {
			have = append(have, s.Secret)
		}
		if !slices.Equal(c.CallbackURLs, urls) || !slices.Equal(have, secrets) {
			t.Errorf("%s: %v with %v, want %v with %v", what, c.CallbackURLs, have, urls, secrets)
		}
	}
	first := seed("http://127.0.0.1:1/", "s1")
	check("nothing was there", first, []string{"s1"}, "http://127.0.0.1:1/")
	if again := seed("http://127.0.0.1:1/", "s1"); again.Version != first.Version {
		t.Error("the same again was written")
	}
	change(func(c *engine.Caller) { c.CallbackURLs, c.Rate = append(c.CallbackURLs, "https://mine/"), 7 })
	c := seed("http://127.0.0.1:2/", "s1")
	check("another port", c, []string{"s1"}, "https://mine/", "http://127.0.0.1:2/")
	if c.Rate != 7 {
		t.Errorf("the rate was changed to %v", c.Rate)
	}
	check("another secret", seed("http://127.0.0.1:2/", "s2"), []string{"s2"}, "https://mine/", "http://127.0.0.1:2/")
	change(func(c *engine.Caller) {
		c.CallbackURLs, c.Secrets = []string{"https://mine/"}, []engine.CallerSecret{{Secret: "rotated"}}
	})
	check("taken away by its user", seed("http://127.0.0.1:3/", "s3"), []string{"rotated"}, "https://mine/")
	change(func(c *engine.Caller) {
		c.Secrets = []engine.CallerSecret{{Secret: engine.SealedPrefix + "v1:lost:AAAA"}}
	})
	check("its key was lost", seed("http://127.0.0.1:3/", "s3"), []string{"s3"}, "https://mine/")
}
