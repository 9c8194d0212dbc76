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

// holdings are the partitions that this process wants to hold, with the number of Holdings of each.
type holdings struct {
	mu            sync.Mutex
	wanted        map[topicPartition]int // wakes the loader, which reads wanted
	loadRequested chan struct{}          // the loader looks at wanted

	// The loads and fetches in progress. Each collects the users whose profiles were applied since
	// it began, because what it reads for them is older. Service.applyMu guards it.
	activeReads map[*profileRead]bool

	lastLoad atomic.Int64 // how long the latest load took, in ns
}

// profileRead is a load or a fetch in progress.
type profileRead struct {
	applied   map[string]struct{} // users whose profiles were applied since it began
	discarded bool                // Load emptied the table since it began; its result is dropped
}

// Holding keeps the profiles of one partition's users in memory.
type Holding struct {
	s    *Service
	part topicPartition
	once sync.Once
}

// Hold makes this process hold the profiles of the users in partition n of this many partitions of
// a channel, until Release is called. It does not wait: Run loads them. It returns nil without
// Config.Shares, where all users are held anyway. It also returns nil if n is not below partitions,
// for a partition that was added after the count was read: its users are not known in advance and
// are fetched instead.
func (s *Service) Hold(ch notify.Channel, partitions int, n int32) *Holding {
	if !s.cfg.Shares || int(n) >= partitions {
		return nil
	}
	h := &Holding{s: s, part: topicPartition{ch, partitions, n}}
	h.addWanted(1)
	return h
}

// Loaded reports whether all profiles of the partition are in memory. It is true for a nil Holding.
func (h *Holding) Loaded() bool { return h == nil || h.s.snap.held.Load().parts[h.part] }

// Release stops holding the partition. It may be called twice.
func (h *Holding) Release() {
	if h != nil {
		h.once.Do(func() { h.addWanted(-1) })
	}
}

func (h *Holding) addWanted(by int) {
	s := h.s
	s.holdings.mu.Lock()
	defer s.holdings.mu.Unlock()
	if s.holdings.wanted[h.part] += by; s.holdings.wanted[h.part] == 0 {
		delete(s.holdings.wanted, h.part)
	}
	s.requestLoad()
}

func (s *Service) requestLoad() {
	select {
	case s.holdings.loadRequested <- struct{}{}:
	default:
	}
}

// loadDelay is how long the loader waits before it loads: a group assigns and revokes many
// partitions one after the other.
const loadDelay = 100 * time.Millisecond

// runLoader loads wanted profiles and drops the others, until ctx ends.
func (s *Service) runLoader(ctx context.Context) {
	for {
		select {
		case <-s.holdings.loadRequested:
		case <-ctx.Done():
			return
		}
		notify.Sleep(ctx, loadDelay)
		for pause := (notify.Pause{Most: 5 * time.Second}); ; {
			err := s.loadWanted(ctx)
			if err == nil || ctx.Err() != nil {
				break
			}
			s.cfg.Log.Error("profiles of the assigned partitions cannot be loaded; until then each is read from the store by its id", "err", err)
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
	parts := make(map[topicPartition]bool, len(h.wanted))
	for p := range h.wanted {
		parts[p] = true
	}
	return newShare(parts)
}

// loadWanted makes the table hold the users of the wanted partitions, and no others.
//
// A profile that changes during the load must not be overwritten by an older read. So apply keeps
// the users of these partitions from before the first row is read, and profiles applied since then
// win over the load. A change applied before that is not newer than what the load reads, because
// the store returns what was committed.
func (s *Service) loadWanted(ctx context.Context) error {
	began := time.Now()
	s.applyMu.Lock()
	want, held := s.holdings.share(), s.snap.held.Load()
	more, less := newShare(want.without(held)), held.without(want)
	if len(more.parts)+len(less) == 0 && maps.Equal(s.snap.keptShare.parts, held.parts) {
		s.applyMu.Unlock()
		return nil
	}
	held = held.intersect(want)
	s.snap.held.Store(held) // before apply drops users: what is held stays current
	s.snap.keptShare = want
	r := s.beginReading()
	s.applyMu.Unlock()
	defer s.endReading(r)

	l := &loader{t: &s.snap.users}
	more, err := s.readParts(ctx, l, held, more)
	if err != nil {
		return err
	}
	l.merge(func(key []byte) bool { return s.snap.keptChannels(key) != 0 }, func(key []byte) bool {
		_, newer := r.applied[string(key)]
		known, _ := s.snap.guests.lookUp(key) // the table has all channels of a guest
		return newer || known || s.snap.keptChannels(key) == 0
	}, func(piece func()) {
		s.applyMu.Lock()
		defer s.applyMu.Unlock()
		if !r.discarded {
			piece()
		}
	})
	s.applyMu.Lock()
	if r.discarded { // Load asked the loader for everything again
		s.applyMu.Unlock()
		return nil
	}
	s.snap.held.Store(s.snap.keptShare)
	s.applyMu.Unlock()
	debug.FreeOSMemory() // a load uses several times the memory that it leaves in use
	if len(more.parts) > 0 {
		s.holdings.lastLoad.Store(int64(time.Since(began)))
		s.cfg.Log.Info("profiles of the assigned partitions are loaded", "partitions", len(more.parts), "users", s.snap.users.len(), "took", time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// readParts adds the users of more to l and returns the partitions that are still wanted when all
// are read. The first of several starting processes is assigned all partitions for a moment and
// must not read all users. On return keptShare has held and the returned partitions.
func (s *Service) readParts(ctx context.Context, l *loader, held, more *share) (*share, error) {
	var buf []byte
	for i := range engine.ProfileParts {
		if !slices.Contains(more.profileParts(), i) {
			continue
		}
		s.applyMu.Lock()
		if left := more.intersect(s.holdings.share()); len(left.parts) < len(more.parts) {
			more = left
			s.snap.keptShare = held.plus(more.parts)
		}
		scope := s.snap.keptShare
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

// beginReading registers a load or a fetch. The caller holds applyMu.
func (s *Service) beginReading() *profileRead {
	r := &profileRead{applied: map[string]struct{}{}}
	s.holdings.activeReads[r] = true
	return r
}

func (s *Service) endReading(r *profileRead) {
	s.applyMu.Lock()
	defer s.applyMu.Unlock()
	delete(s.holdings.activeReads, r)
}

// apply makes p the user's current profile. The caller holds applyMu.
func (s *Service) apply(p *engine.Profile) {
	s.snap.apply(p)
	for r := range s.holdings.activeReads {
		r.applied[p.User] = struct{}{}
	}
}

// Fetch reads the profiles of users that are Unknown on a channel by their ids and holds them for a
// while. Such users belong to another share, or to one that is being loaded. If the store fails,
// Fetch returns its error and the users stay Unknown. After success a user becomes Unknown again
// only because many others were fetched.
func (s *Service) Fetch(ctx context.Context, ch notify.Channel, users [][]byte) error {
	var names []string
	for _, user := range users {
		if a := s.snap.lookUpOne(user, ch, notify.OTP, time.Time{}); a.Action == Unknown {
			names = append(names, string(user))
		}
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		return nil
	}
	s.applyMu.Lock()
	for _, user := range names { // from here on apply keeps changes of these users
		if known, _ := s.snap.guests.lookUp([]byte(user)); !known {
			s.addGuest(user, false)
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
	if r.discarded {
		return notify.Unavailable("preferences", time.Second, nil)
	}
	for i := range ps {
		if _, newer := r.applied[ps[i].User]; !newer {
			s.apply(&ps[i])
		}
	}
	for _, user := range names {
		// A user that stopped being a guest lost the changes applied since.
		if _, guest := s.snap.guests.lookUp([]byte(user)); guest {
			s.addGuest(user, true)
		}
	}
	return nil
}

// addGuest makes a user a guest. It removes users that stopped being guests from the table, unless
// they belong to this process's share. The caller holds applyMu.
func (s *Service) addGuest(user string, known bool) {
	s.snap.guestMu.Lock()
	gone := s.snap.guests.add(user, known)
	s.snap.guestMu.Unlock()
	for _, u := range gone {
		if key := []byte(u); s.snap.keptChannels(key) == 0 {
			s.snap.users.set(hashKey(key), key, nil)
		}
	}
}

// HeldUsers returns how many users with a profile are in memory.
func (s *Service) HeldUsers() int { return s.snap.users.len() }

// LastLoad returns how long the latest load of assigned partitions took; 0: there was none.
func (s *Service) LastLoad() time.Duration { return time.Duration(s.holdings.lastLoad.Load()) }
