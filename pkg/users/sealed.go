package users

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
)

// SealedCallers encrypts (seals) the secrets of callers before they are stored: Put seals secrets,
// Get and List open them. A secret that is stored in clear text is returned unchanged. The next Put
// seals it.
//
// If a secret cannot be opened, Get and List return it sealed, and Put stores it unchanged. Such a
// secret cannot sign (engine.CallerSecret.Sealed). The caller can still be listed, changed and
// given a new secret.
type SealedCallers struct {
	store engine.Callers
	// nil: new secrets are stored in clear text, and sealed secrets cannot be opened
	keys *secrets.Keys
	log  *slog.Logger

	mu sync.Mutex
	// Callers for which it was already logged that a secret cannot be opened. A caller is logged
	// once, and again only after all its secrets could be opened in between.
	logged map[string]bool
}

// NewSealedCallers returns SealedCallers over a store. The parameter keys may be nil.
func NewSealedCallers(store engine.Callers, keys *secrets.Keys, log *slog.Logger) *SealedCallers {
	return &SealedCallers{store: store, keys: keys, log: log, logged: map[string]bool{}}
}

// Get returns a caller. Its secrets are opened if their keys are present.
func (s *SealedCallers) Get(ctx context.Context, id string) (engine.Caller, bool, error) {
	c, ok, err := s.store.Get(ctx, id)
	if err != nil || !ok {
		return c, ok, err
	}
	s.openSecrets(&c)
	return c, true, nil
}

// List returns all callers. Their secrets are opened if their keys are present.
func (s *SealedCallers) List(ctx context.Context) ([]engine.Caller, error) {
	cs, err := s.store.List(ctx)
	if err != nil {
		return nil, err
	}
	for i := range cs {
		s.openSecrets(&cs[i])
	}
	return cs, nil
}

// Put stores a caller with its secrets sealed.
func (s *SealedCallers) Put(ctx context.Context, c engine.Caller) error {
	c.Secrets = slices.Clone(c.Secrets)
	for i := range c.Secrets {
		if one := &c.Secrets[i]; s.keys != nil && !one.Sealed() {
			one.Secret = s.keys.Seal(c.ID, one.Secret)
		}
	}
	return s.store.Put(ctx, c)
}

// openSecrets opens the secrets of a caller in place. No other goroutine may use c.
func (s *SealedCallers) openSecrets(c *engine.Caller) {
	var failed error
	for i := range c.Secrets {
		if one := &c.Secrets[i]; one.Sealed() {
			text, err := s.keys.Open(c.ID, one.Secret)
			if err != nil {
				failed = err
				continue
			}
			one.Secret = text
		}
	}
	s.mu.Lock()
	first := failed != nil && !s.logged[c.ID]
	if failed != nil {
		s.logged[c.ID] = true
	} else {
		delete(s.logged, c.ID)
	}
	s.mu.Unlock()
	if first {
		s.log.Error("a secret of a caller cannot be opened, so the callbacks to this caller wait", "caller", c.ID, "err", failed, "do", s.Repair())
	}
}

// Repair returns what an operator must do so that secrets open again.
func (s *SealedCallers) Repair() string {
	if s.keys == nil {
		return "set secrets.key_file to the key file with which the secrets were sealed; if that file is lost, run notifyctl caller rotate-secret CALLER for each caller to make new secrets"
	}
	return fmt.Sprintf("add the key with which the secrets were sealed to %s, below the key that is already there, and restart; "+
		"if the key is lost, run notifyctl caller rotate-secret CALLER for each caller to make new secrets", s.keys.File())
}

// SealReport reports how secrets are stored. The lists contain caller ids, sorted.
type SealReport struct {
	Secrets int      // number of all secrets
	Clear   []string // callers with a secret in clear text
	// Callers with a secret sealed with an older key. An older key opens secrets but does not seal.
	Old     []string
	Other   []string // callers with a secret whose key is missing
	Damaged []string // callers with a secret that does not open although its key is present
}

// Report reads all callers and returns how their secrets are stored.
func (s *SealedCallers) Report(ctx context.Context) (r SealReport, err error) {
	cs, err := s.store.List(ctx)
	if err != nil {
		return r, err
	}
	for i := range cs {
		for _, one := range cs[i].Secrets {
			r.Secrets++
			if list := r.listOf(s.keys, cs[i].ID, one); list != nil && !slices.Contains(*list, cs[i].ID) {
				*list = append(*list, cs[i].ID)
			}
		}
	}
	for _, list := range [][]string{r.Clear, r.Old, r.Other, r.Damaged} {
		slices.Sort(list)
	}
	return r, nil
}

// listOf returns the list to which the caller of a secret belongs, or nil if it belongs to no list.
func (r *SealReport) listOf(keys *secrets.Keys, caller string, one engine.CallerSecret) *[]string {
	if !one.Sealed() {
		return &r.Clear
	}
	switch _, err := keys.Open(caller, one.Secret); {
	case errors.Is(err, secrets.ErrOtherKey):
		return &r.Other
	case err != nil:
		return &r.Damaged
	case !keys.Current(one.Secret):
		return &r.Old
	}
	return nil
}

// Reseal stores again all callers that have a secret in clear text or sealed with an older key. Put
// seals the secrets with the current key. If another process changes a caller at the same time,
// Reseal skips that caller, because the other change seals its secrets.
func (s *SealedCallers) Reseal(ctx context.Context) (changed int, err error) {
	if s.keys == nil {
		return 0, nil
	}
	r, err := s.Report(ctx)
	if err != nil {
		return 0, err
	}
	for _, id := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(r.Clear, r.Old)))) {
		c, ok, err := s.Get(ctx, id)
		if err == nil && !ok {
			continue // removed in the meantime
		}
		if err == nil {
			err = s.Put(ctx, c)
		}
		switch {
		case err == nil:
			changed++
		case notify.KindOf(err) != notify.KindConflict:
			return changed, err
		}
	}
	return changed, nil
}

// Keys returns the keys; nil if there are no keys.
func (s *SealedCallers) Keys() *secrets.Keys { return s.keys }
