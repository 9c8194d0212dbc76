package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type prefs struct{ *Store }

func cloneProfile(p engine.Profile) engine.Profile {
	if p.Addresses != nil {
		as := make(map[string][]string, len(p.Addresses))
		for ch, a := range p.Addresses {
			as[ch] = slices.Clone(a)
		}
		p.Addresses = as
	}
	p.OptOut, p.Suppressed = slices.Clone(p.OptOut), maps.Clone(p.Suppressed)
	if p.QuietHours != nil {
		q := *p.QuietHours
		p.QuietHours = &q
	}
	return p
}

func (s prefs) Get(ctx context.Context, user string) (engine.Profile, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.profiles[user]
	return cloneProfile(p), ok, check(ctx)
}

func (s prefs) Put(ctx context.Context, p engine.Profile) (uint64, error) {
	if err := check(ctx); err != nil {
		return 0, err
	}
	if err := checkUser(p.User); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Version != s.profiles[p.User].Version {
		return 0, conflict("profile_changed", "the profile was changed since it was read")
	}
	return s.put(p), nil
}

func checkUser(user string) error {
	if user == "" || len(user) > notify.MaxUserID {
		return notify.Invalid("bad_user", "user_id", "a user id has 1 to 128 bytes")
	}
	return nil
}

func (s prefs) put(p engine.Profile) uint64 {
	s.profileV++
	p = cloneProfile(p)
	p.Version = s.profileV
	s.profiles[p.User] = p
	return p.Version
}

func (s prefs) PutMany(ctx context.Context, ps []engine.Profile) error {
	if err := check(ctx); err != nil {
		return err
	}
	for _, p := range ps {
		if err := checkUser(p.User); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range ps {
		s.put(p)
	}
	return nil
}

func (s prefs) Changes(ctx context.Context, since uint64, max int) ([]engine.Change, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []engine.Change
	for _, p := range s.profiles {
		if p.Version > since {
			out = append(out, engine.Change{Version: p.Version, Profile: cloneProfile(p)})
		}
	}
	slices.SortFunc(out, func(a, b engine.Change) int { return cmp.Compare(a.Version, b.Version) })
	return out[:clamp(len(out), max)], check(ctx)
}

func clamp(n, limit int) int { return min(n, max(limit, 0)) }

func (s prefs) Version(ctx context.Context) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.profileV, check(ctx)
}

func (s prefs) Scan(ctx context.Context, fn func(*engine.Profile) error) error {
	if err := check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	var all []engine.Profile
	for _, p := range s.profiles {
		all = append(all, cloneProfile(p))
	}
	s.mu.Unlock()
	for i := range all {
		if err := fn(&all[i]); err != nil {
			return err
		}
	}
	return nil
}
