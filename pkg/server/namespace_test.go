package server

import (
	"context"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// boundIntake keeps what the last request was bound to.
type boundIntake struct {
	*world
	users string
}

func (b *boundIntake) Single(ctx context.Context, m request.Meta, body []byte) (request.Answer, error) {
	b.users = m.Users
	return b.world.Single(ctx, m, body)
}

// TestTokenOfANamespace: a token with the claim users reads and writes profiles and
// histories of its own namespace, hands the binding to the intake, and is no
// operator's, whatever its scopes say.
func TestTokenOfANamespace(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for _, user := range []string{"shop:ann", "bob"} {
		w.users[user] = engine.Profile{User: user, Version: 1}
	}
	in := &boundIntake{world: w}
	s := w.start(t, Config{}, func(d *Deps) { d.Intake = in })
	signer, err := NewSigner(signingKey())
	if err != nil {
		t.Fatal(err)
	}
	bound, err := signer.Sign(TokenSpec{Caller: "shop", Scopes: api.Scopes[:], Users: "shop:", Issuer: issuer, Audience: audience, TTL: time.Hour, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	free := token(t, "shop", api.ScopeUsers, api.ScopeRead, api.ScopeSend)
	for _, rt := range []struct{ method, path, body string }{
		{"GET", "/v1/users/", ""}, {"PUT", "/v1/users/", "{}"}, {"GET", "/v1/users/#/notifications", ""},
	} {
		path := func(user string) string {
			if rt.path == "/v1/users/" {
				return rt.path + user
			}
			return "/v1/users/" + user + "/notifications"
		}
		if got := ask(s, rt.method, path("shop:ann"), bound, rt.body); got.status != 200 {
			t.Errorf("%s %s: %d %s", rt.method, path("shop:ann"), got.status, got.body)
		}
		for _, other := range []string{"bob", "shop", "shopping:ann", "x"} {
			if got := ask(s, rt.method, path(other), bound, rt.body); got.status != 403 || got.problem(t).Code != "user_forbidden" {
				t.Errorf("%s %s: %d %s", rt.method, path(other), got.status, got.body)
			}
		}
		if got := ask(s, rt.method, path("bob"), free, rt.body); got.status != 200 {
			t.Errorf("unbound, %s %s: %d %s", rt.method, path("bob"), got.status, got.body)
		}
	}
	for tok, want := range map[string]string{bound: "shop:", free: ""} {
		in.users = "?"
		if ask(s, "POST", "/v1/notifications", tok, `{}`); in.users != want {
			t.Errorf("the intake is told %q, want %q", in.users, want)
		}
	}
	for _, path := range []string{"/v1/ops/suppressions", "/v1/ops/dead-letters", "/v1/ops/callers"} {
		if got := ask(s, "GET", path, bound, ""); got.status != 403 || got.problem(t).Code != "scope_missing" {
			t.Errorf("%s of a bound token: %d", path, got.status)
		}
	}
	if _, err := signer.Sign(TokenSpec{Caller: "shop", Users: "\x00", Now: time.Now()}); notify.KindOf(err) != notify.KindInvalid {
		t.Errorf("a prefix that no id has: %v", err)
	}
	// A claim that binds to nothing is no claim of a token for all.
	for _, raw := range []string{`{"users":""}`, `{"users":7}`, `{"users":["shop:"]}`} {
		var c claims
		if err := c.UnmarshalJSON([]byte(raw)); notify.KindOf(err) != notify.KindUnauthorized {
			t.Errorf("%s: %v", raw, err)
		}
	}
}
