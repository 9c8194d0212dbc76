package users

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
)

// rawCallers is engine.Callers over a map, without versions.
type rawCallers map[string]engine.Caller

func (r rawCallers) Get(_ context.Context, id string) (engine.Caller, bool, error) {
	c, ok := r[id]
	c.Secrets = slices.Clone(c.Secrets)
	return c, ok, nil
}

func (r rawCallers) Put(_ context.Context, c engine.Caller) error {
	c.Secrets = slices.Clone(c.Secrets)
	r[c.ID] = c
	return nil
}

func (r rawCallers) List(ctx context.Context) (out []engine.Caller, _ error) {
	for id := range r {
		c, _, _ := r.Get(ctx, id)
		out = append(out, c)
	}
	return out, nil
}

func TestSealedCallers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	newKeys := func() *secrets.Keys {
		k, err := secrets.MakeKeys(filepath.Join(t.TempDir(), "key"))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	const newer, older = "whsec_AAAA", "whsec_BBBB"
	store, keys := rawCallers{"clear": {ID: "clear", Secrets: []engine.CallerSecret{{Secret: older}}}}, newKeys()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	s := NewSealedCallers(store, keys, logger)
	put := func(s *SealedCallers, c engine.Caller) {
		t.Helper()
		if err := s.Put(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	get := func(s *SealedCallers, id string) engine.Caller {
		t.Helper()
		c, ok, err := s.Get(ctx, id)
		if err != nil || !ok {
			t.Fatal(id, ok, err)
		}
		return c
	}
	report := func(s *SealedCallers) SealReport {
		t.Helper()
		r, err := s.Report(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}

	in := engine.Caller{ID: "shop", Rate: 7, Secrets: []engine.CallerSecret{{Secret: newer, Created: 2}, {Secret: older, Created: 1, Expires: 3}}}
	put(s, in)
	if in.Secrets[0].Secret != newer {
		t.Error("Put changed what it was given")
	}
	for _, one := range store["shop"].Secrets {
		if !one.Sealed() || strings.Contains(one.Secret, "AAAA") || strings.Contains(one.Secret, "BBBB") {
			t.Errorf("stored as %q", one.Secret)
		}
	}
	if got := get(s, "shop"); got.Rate != 7 || !slices.Equal(got.Secrets, in.Secrets) {
		t.Errorf("got %+v", got)
	}
	all, err := s.List(ctx)
	if err != nil || len(all) != 2 || slices.ContainsFunc(all, func(c engine.Caller) bool { return slices.ContainsFunc(c.Secrets, engine.CallerSecret.Sealed) }) {
		t.Errorf("list %+v, %v", all, err)
	}

	// What an earlier release stored opens, and is sealed by a Put or by Reseal.
	if got := get(s, "clear"); got.Secrets[0].Secret != older {
		t.Errorf("of an earlier release: %+v", got)
	}
	if r := report(s); !slices.Equal(r.Clear, []string{"clear"}) || r.Secrets != 3 || len(r.Old)+len(r.Other)+len(r.Damaged) > 0 {
		t.Errorf("report %+v", r)
	}
	if n, err := s.Reseal(ctx); n != 1 || err != nil || !store["clear"].Secrets[0].Sealed() || get(s, "clear").Secrets[0].Secret != older {
		t.Errorf("sealed %d, %v: %+v", n, err, store["clear"])
	}
	if log.Len() > 0 {
		t.Errorf("log %s", &log)
	}

	// With another key, or none, the secret stays sealed, and so it does in a Put. Each
	// caller is logged once.
	for _, other := range []*secrets.Keys{newKeys(), nil} {
		log.Reset()
		o := NewSealedCallers(store, other, logger)
		before := store["shop"].Secrets
		for range 2 {
			c := get(o, "shop")
			if !slices.Equal(c.Secrets, before) {
				t.Errorf("with another key: %+v", c)
			}
			put(o, c)
		}
		if r := report(o); !slices.Equal(r.Other, []string{"clear", "shop"}) {
			t.Errorf("report %+v", r)
		}
		if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "rotate-secret") || other != nil && !strings.Contains(log.String(), other.File()) {
			t.Errorf("log %s", &log)
		}
	}
	if got := get(s, "shop"); !slices.Equal(got.Secrets, in.Secrets) {
		t.Errorf("after a Put with another key: %+v", got)
	}

	// A row of one caller that is given to another does not open.
	moved := store["shop"]
	moved.ID = "bank"
	store["bank"] = moved
	if c := get(s, "bank"); !c.Secrets[0].Sealed() || !slices.Equal(report(s).Damaged, []string{"bank"}) {
		t.Errorf("moved to another caller: %+v", c)
	}
}

// changedCallers refuses the Put of a caller that another process has changed.
type changedCallers struct {
	rawCallers
	changed string
}

func (c changedCallers) Put(ctx context.Context, in engine.Caller) error {
	if in.ID == c.changed {
		return &notify.Error{Kind: notify.KindConflict, Code: "caller_changed"}
	}
	return c.rawCallers.Put(ctx, in)
}

// Reseal counts only the callers that it has changed itself.
func TestResealCountsItsOwnChanges(t *testing.T) {
	t.Parallel()
	keys, err := secrets.MakeKeys(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	store := changedCallers{rawCallers{}, "b"}
	for _, id := range []string{"a", "b"} {
		store.rawCallers[id] = engine.Caller{ID: id, Secrets: []engine.CallerSecret{{Secret: "whsec_AAAA"}}}
	}
	n, err := NewSealedCallers(store, keys, slog.New(slog.DiscardHandler)).Reseal(t.Context())
	if n != 1 || err != nil || !store.rawCallers["a"].Secrets[0].Sealed() || store.rawCallers["b"].Secrets[0].Sealed() {
		t.Errorf("sealed %d, %v: %+v", n, err, store.rawCallers)
	}
}
