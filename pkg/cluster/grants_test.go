package cluster

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

func openGrants(t *testing.T, meta engine.Meta, providers string) *Grants {
	t.Helper()
	g, err := OpenGrants(t.Context(), meta, "cluster-1", slog.New(slog.DiscardHandler), func(context.Context) string { return providers })
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e.Code
	}
	return ""
}

func grantFor(providers string) api.LoadGrantRequest {
	return api.LoadGrantRequest{Seconds: 60, Rate: 1000, Targets: []string{"push"}, Providers: providers, Hosts: []string{"staging.example:7420"}}
}

// TestGrantOfTwoProcesses: what one process grants and revokes, the others follow, and
// only a token that the cluster signed is one.
func TestGrantOfTwoProcesses(t *testing.T) {
	t.Parallel()
	meta, ctx, host := memory.New().Meta(), t.Context(), "staging.example:7420"
	a, b := openGrants(t, meta, api.ProvidersStub), openGrants(t, meta, api.ProvidersStub)
	made, err := a.Create(ctx, "ann", grantFor(api.ProvidersStub))
	if err != nil || made.State != api.GrantActive || made.Cluster != "cluster-1" {
		t.Fatal(made, err)
	}
	if _, err := b.Check(made.Token, host); codeOf(err) != "load_grant_unknown" {
		t.Errorf("before it looked: %v", err)
	}
	if _, err := b.CheckStored(ctx, made.Token, host); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string]string{
		"another signature": api.SignLoadGrant(made, ed25519.NewKeyFromSeed(make([]byte, 32))),
		"changed":           strings.Replace(made.Token, ".ey", ".ez", 1),
		"no token":          "x",
	} {
		if _, err := b.Check(bad, host); codeOf(err) != "load_grant_malformed" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.Check(made.Token, "production.example:7420"); codeOf(err) != "load_grant_host" {
		t.Errorf("another host: %v", err)
	}
	if _, err := b.Change(ctx, made.ID, "bob", "revoked"); err != nil {
		t.Fatal(err)
	}
	if err := a.Follow(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Check(made.Token, host); codeOf(err) != "load_grant_revoked" {
		t.Errorf("revoked by the other: %v", err)
	}
	if _, err := openGrants(t, memory.New().Meta(), api.ProvidersStub).Check(made.Token, host); codeOf(err) != "load_grant_malformed" {
		t.Errorf("at another cluster: %v", err)
	}
}

// TestGrantEnds: it holds for its time and no longer.
func TestGrantEnds(t *testing.T) {
	t.Parallel()
	g := openGrants(t, memory.New().Meta(), api.ProvidersStub)
	made, err := g.Create(t.Context(), "ann", grantFor(api.ProvidersStub))
	if err != nil {
		t.Fatal(err)
	}
	now := made.ExpiresAt.Add(-time.Millisecond)
	g.now = func() time.Time { return now }
	if _, err := g.Check(made.Token, made.Hosts[0]); err != nil {
		t.Error(err)
	}
	now = made.ExpiresAt
	if _, err := g.Check(made.Token, made.Hosts[0]); codeOf(err) != "load_grant_expired" {
		t.Error(err)
	}
}

// TestGrantForRealProviders: it waits for another operator, and no grant that names less
// is made where they are called.
func TestGrantForRealProviders(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := openGrants(t, memory.New().Meta(), api.ProvidersReal)
	for _, less := range []string{api.ProvidersStub, api.ProvidersSimulated} {
		if _, err := g.Create(ctx, "ann", grantFor(less)); codeOf(err) != "load_providers" {
			t.Errorf("%s: %v", less, err)
		}
	}
	made, err := g.Create(ctx, "ann", grantFor(api.ProvidersReal))
	if err != nil || made.State != api.GrantPending {
		t.Fatal(made, err)
	}
	if _, err := g.Check(made.Token, made.Hosts[0]); codeOf(err) != "load_grant_pending" {
		t.Error(err)
	}
	if _, err := g.Change(ctx, made.ID, "ann", "approved"); codeOf(err) != "load_grant_own" {
		t.Errorf("approved by who asked: %v", err)
	}
	if _, err := g.Change(ctx, made.ID, "bob", "approved"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Check(made.Token, made.Hosts[0]); err != nil {
		t.Error(err)
	}
	if _, err := g.Change(ctx, made.ID, "bob", "approved"); codeOf(err) != "load_grant_state" {
		t.Errorf("approved twice: %v", err)
	}
	if _, err := g.Change(ctx, "lg_none", "bob", "revoked"); codeOf(err) != "load_grant_not_found" {
		t.Error(err)
	}
	list, err := g.List(ctx)
	if err != nil || len(list.Items) != 1 || list.Items[0].ApprovedBy != "bob" || list.Items[0].Token != "" {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestLookSeesTheProviders: a grant ends to hold when a worker starts that calls worse.
func TestLookSeesTheProviders(t *testing.T) {
	t.Parallel()
	mode := api.ProvidersStub
	g, err := OpenGrants(t.Context(), memory.New().Meta(), "c", slog.New(slog.DiscardHandler), func(context.Context) string { return mode })
	if err != nil {
		t.Fatal(err)
	}
	made, err := g.Create(t.Context(), "ann", grantFor(api.ProvidersSimulated))
	if err != nil {
		t.Fatal(err)
	}
	mode = api.ProvidersReal
	if _, err := g.CheckStored(t.Context(), made.Token, made.Hosts[0]); codeOf(err) != "load_providers" {
		t.Error(err)
	}
}

func TestGrantRules(t *testing.T) {
	t.Parallel()
	g := openGrants(t, memory.New().Meta(), api.ProvidersStub)
	for field, change := range map[string]func(*api.LoadGrantRequest){
		"seconds":   func(r *api.LoadGrantRequest) { r.Seconds = 86_401 },
		"rate":      func(r *api.LoadGrantRequest) { r.Rate = 0 },
		"targets":   func(r *api.LoadGrantRequest) { r.Targets = slices.Repeat([]string{"push"}, 5) },
		"providers": func(r *api.LoadGrantRequest) { r.Providers = "" },
		"hosts":     func(r *api.LoadGrantRequest) { r.Hosts = []string{"*.example"} },
		"reason":    func(r *api.LoadGrantRequest) { r.Reason = strings.Repeat("x", 513) },
	} {
		in := grantFor(api.ProvidersStub)
		change(&in)
		_, err := g.Create(t.Context(), "ann", in)
		if e, ok := errors.AsType[*notify.Error](err); !ok || e.Code != "bad_load_grant" || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestGrantsThatAreOver: the stored row keeps a bounded number of grants, the newest of those
// that are over, and every one that holds.
func TestGrantsThatAreOver(t *testing.T) {
	t.Parallel()
	g := openGrants(t, memory.New().Meta(), api.ProvidersStub)
	holds, err := g.Create(t.Context(), "ann", grantFor(api.ProvidersStub))
	if err != nil {
		t.Fatal(err)
	}
	for range listGrants + 20 {
		made, err := g.Create(t.Context(), "ann", grantFor(api.ProvidersStub))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Change(t.Context(), made.ID, "ann", "revoked"); err != nil {
			t.Fatal(err)
		}
	}
	list, err := g.List(t.Context())
	if err != nil || len(list.Items) != listGrants {
		t.Fatalf("%d grants are listed, %v", len(list.Items), err)
	}
	if last := list.Items[len(list.Items)-1]; last.ID != holds.ID {
		t.Errorf("the grant that holds is gone; the oldest is %+v", last)
	}
}
