package users

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is a ProfileStore over a map. fail, when set, is asked before each call.
type store struct {
	mu      sync.Mutex
	users   map[string]engine.Profile
	version uint64
	fail    func(op string) error

	scanned  int    // profiles that Scan has read
	scanning func() // called when Scan has read all and handed out none
	fetching func() // likewise, of GetMany
}

func newStore() *store { return &store{users: map[string]engine.Profile{}} }

func (s *store) check(op string) error {
	if s.fail != nil {
		return s.fail(op)
	}
	return nil
}

func (s *store) Get(_ context.Context, user string) (engine.Profile, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.users[user]
	return p, ok, s.check("get")
}

func (s *store) Put(_ context.Context, p engine.Profile) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check("put"); err != nil {
		return 0, err
	}
	if s.users[p.User].Version != p.Version {
		return 0, &notify.Error{Kind: notify.KindConflict}
	}
	s.version++
	p.Version = s.version
	s.users[p.User] = p
	return p.Version, nil
}

func (s *store) PutMany(ctx context.Context, ps []engine.Profile) error {
	for _, p := range ps {
		s.mu.Lock()
		p.Version = s.users[p.User].Version
		s.mu.Unlock()
		if _, err := s.Put(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (s *store) Changes(_ context.Context, since uint64, max int) ([]engine.Change, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check("changes"); err != nil {
		return nil, err
	}
	var cs []engine.Change
	for _, p := range s.users {
		if p.Version > since {
			cs = append(cs, engine.Change{Version: p.Version, Profile: p})
		}
	}
	slices.SortFunc(cs, func(a, b engine.Change) int { return cmp.Compare(a.Version, b.Version) })
	return cs[:min(len(cs), max)], nil
}

func (s *store) Version(context.Context) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version, s.check("version")
}

func (s *store) Scan(_ context.Context, parts []int, fn func(*engine.Profile) error) error {
	s.mu.Lock()
	users := make([]engine.Profile, 0, len(s.users))
	for _, p := range s.users {
		if parts == nil || slices.Contains(parts, int(notify.Partition([]byte(p.User), engine.ProfileParts))) {
			users = append(users, p)
		}
	}
	s.scanned += len(users)
	scanning := s.scanning
	s.mu.Unlock()
	if scanning != nil {
		scanning()
	}
	for i := range users {
		if err := fn(&users[i]); err != nil {
			return err
		}
	}
	return s.check("scan")
}

func (s *store) GetMany(_ context.Context, users []string) (out []engine.Profile, err error) {
	s.mu.Lock()
	for _, user := range users {
		if p, ok := s.users[user]; ok {
			out = append(out, p)
		}
	}
	s.mu.Unlock()
	if s.fetching != nil {
		s.fetching()
	}
	return out, s.check("getmany")
}

func (s *store) Suppressing(_ context.Context, after string, max int) (out []engine.Profile, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, user := range slices.Sorted(maps.Keys(s.users)) {
		if p := s.users[user]; user > after && len(p.Suppressed) > 0 && len(out) < max {
			out = append(out, p)
		}
	}
	return out, s.check("suppressing")
}

// cancelStore is a CancelStore over a slice.
type cancelStore struct {
	mu    sync.Mutex
	list  []engine.Cancel
	at    map[string]int // in list, by scope
	asked int            // how often Get was
	err   error          // of Get
}

func (s *cancelStore) Put(_ context.Context, c engine.Cancel) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.at[c.Scope]; ok {
		return s.list[i].Version, nil
	}
	if s.at == nil {
		s.at = map[string]int{}
	}
	s.at[c.Scope] = len(s.list)
	c.Version = uint64(len(s.list) + 1)
	s.list = append(s.list, c)
	return c.Version, nil
}

func (s *cancelStore) Get(_ context.Context, scope string) (engine.Cancel, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if i, ok := s.at[scope]; ok && s.err == nil {
		return s.list[i], true, nil
	}
	return engine.Cancel{}, false, s.err
}

func (s *cancelStore) Changes(_ context.Context, since uint64, max int) ([]engine.Cancel, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := s.list[min(int(since), len(s.list)):]
	return slices.Clone(rest[:min(len(rest), max)]), nil
}

func loaded(t testing.TB, st ProfileStore) *Service {
	t.Helper()
	s, err := New(st, Config{})
	must(t, err)
	must(t, s.Load(t.Context()))
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// whileScanning has fn called by each Scan once its rows are read.
func (s *store) whileScanning(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scanning = fn
}
