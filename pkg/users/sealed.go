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

// SealedCallers keeps callers' secrets sealed in the store below: Put seals, Get and
// List open. What is stored in clear is returned as it is, and sealed by the next Put.
//
// A secret that cannot be opened stays sealed in what Get and List return, and Put
// stores it as it is. It signs nothing then (engine.CallerSecret.Sealed), but the
// caller can be listed, changed and given a new secret.
type SealedCallers struct {
	store engine.Callers
	keys  *secrets.Keys // nil: new secrets are stored in clear, sealed ones are not opened
	log   *slog.Logger

	mu   sync.Mutex
	told map[string]bool // callers whose secrets do not open: each is logged once
}

// NewSealedCallers returns SealedCallers over a store. keys may be nil.
func NewSealedCallers(store engine.Callers, keys *secrets.Keys, log *slog.Logger) *SealedCallers {
	return &SealedCallers{store: store, keys: keys, log: log, told: map[string]bool{}}
}

// Get returns a caller with its secrets opened.
func (s *SealedCallers) Get(ctx context.Context, id string) (engine.Caller, bool, error) {
	c, ok, err := s.store.Get(ctx, id)
	if err != nil || !ok {
		return c, ok, err
	}
	s.open(&c)
	return c, true, nil
}

// List returns all callers with their secrets opened.
func (s *SealedCallers) List(ctx context.Context) ([]engine.Caller, error) {
	cs, err := s.store.List(ctx)
	if err != nil {
		return nil, err
	}
	for i := range cs {
		s.open(&cs[i])
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

// open opens the secrets of a caller that was read, which is the reader's own.
func (s *SealedCallers) open(c *engine.Caller) {
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
	first := failed != nil && !s.told[c.ID]
	if failed != nil {
		s.told[c.ID] = true
	} else {
		delete(s.told, c.ID)
	}
	s.mu.Unlock()
	if first {
		s.log.Error("a secret of a caller cannot be opened: its callbacks wait", "caller", c.ID, "err", failed, "do", s.Repair())
	}
}

// Repair says what to do about secrets that do not open.
func (s *SealedCallers) Repair() string {
	if s.keys == nil {
		return "set secrets.key_file to the key file that the secrets were sealed with; where it is lost, notifyctl caller rotate-secret CALLER makes a new secret for each caller"
	}
	return fmt.Sprintf("put the key that the secrets were sealed with into %s, from where it is kept, below the key that is there, and restart; "+
		"where it is lost, notifyctl caller rotate-secret CALLER makes a new secret for each caller", s.keys.File())
}

// SealReport says how secrets are stored. The names are of callers, sorted.
type SealReport struct {
	Secrets int      // all
	Clear   []string // that have a secret in clear
	Old     []string // that have a secret sealed with a key that opens and no longer seals
	Other   []string // that have a secret sealed with a key that is not there
	Damaged []string // that have a sealed secret whose key is there and that does not open
}

// Report reads all callers and says how their secrets are stored.
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

// listOf returns the list that the caller of a secret belongs to; nil: none.
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

// Reseal stores callers again whose secrets are in clear or sealed with an older key.
// A caller that is changed meanwhile is left to that change, which seals it.
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

// Keys are the keys; nil: there are none.
func (s *SealedCallers) Keys() *secrets.Keys { return s.keys }
