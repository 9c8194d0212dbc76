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

// SealedCallers seals the secrets of callers in the store below it: Put seals, Get and List open. A
// secret stored in clear is returned as it is, and sealed by the next Put.
//
// A secret that cannot be opened stays sealed in the results of Get and List, and Put stores it
// unchanged. It cannot sign then (engine.CallerSecret.Sealed), but the caller can still be listed,
// changed and given a new secret.
type SealedCallers struct {
	store engine.Callers
	keys  *secrets.Keys // nil: new secrets are stored in clear, sealed ones are not opened
	log   *slog.Logger

	mu     sync.Mutex
	logged map[string]bool // callers whose secrets do not open and were logged, so that each is logged once
}

// NewSealedCallers returns SealedCallers over a store. keys may be nil.
func NewSealedCallers(store engine.Callers, keys *secrets.Keys, log *slog.Logger) *SealedCallers {
	return &SealedCallers{store: store, keys: keys, log: log, logged: map[string]bool{}}
}

// Get returns a caller with its secrets opened.
func (s *SealedCallers) Get(ctx context.Context, id string) (engine.Caller, bool, error) {
	c, ok, err := s.store.Get(ctx, id)
	if err != nil || !ok {
		return c, ok, err
	}
	s.openSecrets(&c)
	return c, true, nil
}

// List returns all callers with their secrets opened.
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

// openSecrets opens the secrets of a caller that was just read. c must belong to the reader alone.
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
		s.log.Error("a secret of a caller cannot be opened: its callbacks wait", "caller", c.ID, "err", failed, "do", s.Repair())
	}
}

// Repair returns what an operator has to do about secrets that do not open.
func (s *SealedCallers) Repair() string {
	if s.keys == nil {
		return "set secrets.key_file to the key file with which the secrets were sealed; if that file is lost, notifyctl caller rotate-secret CALLER makes a new secret for each caller"
	}
	return fmt.Sprintf("add the key with which the secrets were sealed to %s, below the key that is already there, and restart; "+
		"if the key is lost, notifyctl caller rotate-secret CALLER makes a new secret for each caller", s.keys.File())
}

// SealReport says how secrets are stored. The lists hold caller ids, sorted.
type SealReport struct {
	Secrets int      // number of all secrets
	Clear   []string // callers with a secret in clear
	Old     []string // callers with a secret sealed with an older key, which opens secrets but no longer seals
	Other   []string // callers with a secret sealed with a key that is missing
	Damaged []string // callers with a sealed secret that does not open although its key is present
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

// listOf returns the list to which the caller of a secret belongs; nil: none.
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

// Reseal stores again the callers whose secrets are in clear or sealed with an older key. It skips
// a caller that another process changes at the same time, because that change seals it.
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
		if err == nil && ok {
			err = s.Put(ctx, c)
		}
		if err != nil && notify.KindOf(err) != notify.KindConflict {
			return changed, err
		}
		changed++
	}
	return changed, nil
}

// Keys returns the keys; nil: there are none.
func (s *SealedCallers) Keys() *secrets.Keys { return s.keys }
