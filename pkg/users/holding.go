package users

import (
	"context"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// holdings are the parts that this process wants to hold, with how many Holdings of each
// there are.
type holdings struct {
	mu     sync.Mutex
	wanted map[part]int
	asked  chan struct{} // the loader looks at wanted

	// The loads and fetches under way, each with the users whose profiles were applied
	// since it began: what it reads of them is older. Service.applyMu guards it.
	reading map[*reading]bool

	lastLoad atomic.Int64 // how long the latest load took, in ns
}

// reading is a load or a fetch under way.
type reading struct {
	since map[string]struct{} // users whose profiles were applied meanwhile
	void  bool                // Load has emptied the table meanwhile
}

// Holding keeps the profiles of a part in memory.
type Holding struct {
	s    *Service
	part part
	once sync.Once
}

// Hold makes this process hold the profiles of the users whose partition is n of so many
// on a channel, until Release is called: Run loads them. It does not wait. Without
// Config.Shares all users are held anyway. A partition that was added after partitions
// were counted, so that n is not below partitions, has no users that are known ahead: they
// are fetched.
func (s *Service) Hold(ch notify.Channel, partitions int, n int32) *Holding {
	if !s.cfg.Shares || int(n) >= partitions {
		return nil
	}
	h := &Holding{s: s, part: part{ch, partitions, n}}
	h.count(1)
	return h
}

// Loaded reports whether all profiles of the part are in memory; true of a nil Holding.
func (h *Holding) Loaded() bool { return h == nil || h.s.snap.held.Load().parts[h.part] }

// Release lets the part go. It may be called twice.
func (h *Holding) Release() {
	if h != nil {
		h.once.Do(func() { h.count(-1) })
	}
}

func (h *Holding) count(by int) {
	s := h.s
	s.holdings.mu.Lock()
	defer s.holdings.mu.Unlock()
	if s.holdings.wanted[h.part] += by; s.holdings.wanted[h.part] == 0 {
		delete(s.holdings.wanted, h.part)
	}
	s.askLoader()
}

func (s *Service) askLoader() {
	select {
	case s.holdings.asked <- struct{}{}:
	default:
	}
}

// gatherParts is how long the loader waits before it loads: partitions are assigned and
// taken in numbers, by one group after the other.
const gatherParts = 100 * time.Millisecond

// runLoader loads what is wanted and lets go what is not, until ctx ends.
func (s *Service) runLoader(ctx context.Context) {
	for {
		select {
		case <-s.holdings.asked:
		case <-ctx.Done():
			return
		}
		notify.Sleep(ctx, gatherParts)
		for pause := (notify.Pause{Most: 5 * time.Second}); ; {
			err := s.loadWanted(ctx)
			if err == nil || ctx.Err() != nil {
				break
			}
			s.cfg.Log.Error("profiles cannot be loaded; they are read one by one", "err", err)
			if !pause.Wait(ctx) {
				return
			}
		}
	}
}

// share returns the share that is wanted now.
func (h *holdings) share() *share {
	h.mu.Lock()
	defer h.mu.Unlock()
	parts := make(map[part]bool, len(h.wanted))
	for p := range h.wanted {
		parts[p] = true
	}
	return newShare(parts)
}

// loadWanted makes the table hold the users of the wanted parts, and no others.
//
// A profile that changes while the parts are read must not be overwritten by what was
// read before the change. So apply keeps users of the parts from before the first row is
// read, and what it has applied since then wins. A change that was applied before that is
// older than what is read, because the store shows what was committed.
func (s *Service) loadWanted(ctx context.Context) error {
	began := time.Now()
	s.applyMu.Lock()
	want, held := s.holdings.share(), s.snap.held.Load()
	more, less := newShare(want.without(held)), held.without(want)
	if len(more.parts)+len(less) == 0 && maps.Equal(s.snap.scope.parts, held.parts) {
		s.applyMu.Unlock()
		return nil
	}
	held = held.only(want)
	s.snap.held.Store(held) // before apply lets go of users: what is held is current
	s.snap.scope = want
	r := s.beginReading()
	s.applyMu.Unlock()
	defer s.endReading(r)

	l := &loader{t: &s.snap.users}
	more, err := s.readParts(ctx, l, held, more)
	if err != nil {
		return err
	}
	l.merge(func(key []byte) bool { return s.snap.keeps(key) != 0 }, func(key []byte) bool {
		_, newer := r.since[string(key)]
		known, _ := s.snap.guests.held(key) // of a guest the table has all channels
		return newer || known || s.snap.keeps(key) == 0
	}, func(piece func()) {
		s.applyMu.Lock()
		defer s.applyMu.Unlock()
		if !r.void {
			piece()
		}
	})
	s.applyMu.Lock()
	if r.void { // Load has asked for all of it anew
		s.applyMu.Unlock()
		return nil
	}
	s.snap.held.Store(s.snap.scope)
	s.applyMu.Unlock()
	debug.FreeOSMemory() // a load takes several times what it leaves
	if len(more.parts) > 0 {
		s.holdings.lastLoad.Store(int64(time.Since(began)))
		s.cfg.Log.Info("profiles of the assigned partitions are loaded", "partitions", len(more.parts), "users", s.snap.users.len(), "took", time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// readParts adds the users of more to l and returns the parts that are still wanted when
// all are read: the first process of many that start is assigned all partitions for a
// moment, and must not read all users. The scope is held and those parts then.
func (s *Service) readParts(ctx context.Context, l *loader, held, more *share) (*share, error) {
	var buf []byte
	for i := range engine.ProfileParts {
		if !slices.Contains(more.profileParts(), i) {
			continue
		}
		s.applyMu.Lock()
		if left := more.only(s.holdings.share()); len(left.parts) < len(more.parts) {
			more = left
			s.snap.scope = held.and(more.parts)
		}
		scope := s.snap.scope
		s.applyMu.Unlock()
		if !slices.Contains(more.profileParts(), i) {
			continue
		}
		err := s.store.Scan(ctx, []int{i}, func(p *engine.Profile) error {
			user := []byte(p.User)
			if more.channels(user) == 0 {
				return nil
			}
			if v := s.snap.packProfile(buf[:0], p, scope.channels(user)); len(v) > 0 {
				l.add(hashKey(user), user, v)
				buf = v
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return more, nil
}

// beginReading needs applyMu.
func (s *Service) beginReading() *reading {
	r := &reading{since: map[string]struct{}{}}
	s.holdings.reading[r] = true
	return r
}

func (s *Service) endReading(r *reading) {
	s.applyMu.Lock()
	defer s.applyMu.Unlock()
	delete(s.holdings.reading, r)
}

// apply makes a profile the user's current one. The caller has applyMu.
func (s *Service) apply(p *engine.Profile) {
	s.snap.apply(p)
	for r := range s.holdings.reading {
		r.since[p.User] = struct{}{}
	}
}

// Fetch reads the profiles of those of the users that are Unknown on a channel by their
// ids and holds them for a while: of other shares, or of one that is being loaded. It
// returns the store's error; they stay Unknown then. After that a user may be Unknown
// again only because many others were fetched.
func (s *Service) Fetch(ctx context.Context, ch notify.Channel, users [][]byte) error {
	var names []string
	for _, user := range users {
		if a := s.snap.find(user, ch, notify.OTP, time.Time{}); a.Action == Unknown {
			names = append(names, string(user))
		}
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		return nil
	}
	s.applyMu.Lock()
	for _, user := range names { // apply keeps their changes from here on
		if known, _ := s.snap.guests.held([]byte(user)); !known {
			s.invite(user, false)
		}
	}
	r := s.beginReading()
	s.applyMu.Unlock()
	defer s.endReading(r)
	ps, err := s.store.GetMany(ctx, names)
	if err != nil {
		return err
	}
	s.applyMu.Lock()
	defer s.applyMu.Unlock()
	if r.void {
		return notify.Unavailable("preferences", time.Second, nil)
	}
	for i := range ps {
		if _, newer := r.since[ps[i].User]; !newer {
			s.apply(&ps[i])
		}
	}
	for _, user := range names {
		// One that had to go meanwhile took with it what was applied since.
		if _, guest := s.snap.guests.held([]byte(user)); guest {
			s.invite(user, true)
		}
	}
	return nil
}

// invite makes a user a guest. Guests that have to go leave the table, unless they are
// of this process's share. The caller has applyMu.
func (s *Service) invite(user string, known bool) {
	s.snap.guestMu.Lock()
	gone := s.snap.guests.put(user, known)
	s.snap.guestMu.Unlock()
	for _, u := range gone {
		if key := []byte(u); s.snap.keeps(key) == 0 {
			s.snap.users.set(hashKey(key), key, nil)
		}
	}
}

// HeldUsers is how many users who set something are in memory.
func (s *Service) HeldUsers() int { return s.snap.users.len() }

// LastLoad is how long the latest load of assigned partitions took; 0: there was none.
func (s *Service) LastLoad() time.Duration { return time.Duration(s.holdings.lastLoad.Load()) }
