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

// holdings is the set of partitions whose users this process should keep in memory.
type holdings struct {
	mu            sync.Mutex
	wanted        map[topicPartition]int // number of Holdings by partition
	loadRequested chan struct{}          // wakes the loader, which then reads the field wanted

	// activeReads are the loads and fetches in progress. Each read collects the users whose
	// profiles were applied since the read began. The read drops its own profiles of these users,
	// because they may be older. Service.applyMu guards activeReads.
	activeReads map[*profileRead]bool

	lastLoad atomic.Int64 // duration of the latest load, in ns
}

// profileRead is a load or a fetch in progress.
type profileRead struct {
	applied   map[string]struct{} // users whose profiles were applied since this read began
	discarded bool                // Load emptied the table since this read began, so the result of this read is dropped
}

// Holding keeps the profiles of one partition's users in memory.
type Holding struct {
	s    *Service
	part topicPartition
	once sync.Once
}

// Hold makes this process keep the profiles of the users in partition n, until Release is called.
// The parameter partitions is the number of partitions of the channel. Hold does not wait; Run
// loads the profiles. Hold returns nil without Config.Shares, because then all users are in memory
// anyway. It also returns nil if n is not below partitions. Such a partition was added after the
// number was read, so its users are not known in advance; they are fetched by id instead.
func (s *Service) Hold(ch notify.Channel, partitions int, n int32) *Holding {
	if !s.cfg.Shares || int(n) >= partitions {
		return nil
	}
	h := &Holding{s: s, part: topicPartition{ch, partitions, n}}
	h.addWanted(1)
	return h
}

// Loaded reports whether all profiles of the partition are in memory. A nil Holding returns true.
func (h *Holding) Loaded() bool { return h == nil || h.s.snap.held.Load().parts[h.part] }

// Release ends the Holding of the partition. A second call does nothing.
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

// loadDelay is how long the loader waits before it loads. A consumer group assigns and revokes many
// partitions one after the other, and one load then covers all of them.
const loadDelay = 100 * time.Millisecond

// runLoader loads the profiles of wanted partitions and drops the profiles of other partitions,
// until ctx ends.
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
			s.cfg.Log.Error("profiles of the assigned partitions cannot be loaded; until they are loaded, each profile is read from the store by its user id", "err", err)
			if !pause.Wait(ctx) {
				return
			}
		}
	}
}

// wantedShare returns the share of all wanted partitions.
func (h *holdings) wantedShare() *share {
	h.mu.Lock()
	defer h.mu.Unlock()
	parts := make(map[topicPartition]bool, len(h.wanted))
	for p := range h.wanted {
		parts[p] = true
	}
	return newShare(parts)
}

// loadWanted changes the table so that it has the users of the wanted partitions, and no others.
//
// The load must not overwrite a newer profile with an older one. So before loadWanted reads the
// first row, it makes the method apply keep the users of these partitions. If apply stores a
// profile after that, this profile wins over the profile that the load reads. A change that was
// applied earlier is also in the rows that the load reads, because the store returns what was
// committed.
func (s *Service) loadWanted(ctx context.Context) error {
	began := time.Now()
	s.applyMu.Lock()
	want, held := s.holdings.wantedShare(), s.snap.held.Load()
	more, less := newShare(want.partsWithout(held)), held.partsWithout(want)
	if len(more.parts)+len(less) == 0 && maps.Equal(s.snap.keptShare.parts, held.parts) {
		s.applyMu.Unlock()
		return nil
	}
	held = held.intersect(want)
	// Store held before the method apply may drop users: the table must have every user of this share.
	s.snap.held.Store(held)
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
		known, _ := s.snap.guests.lookUp(key) // the table already has all channels of a guest
		return newer || known || s.snap.keptChannels(key) == 0
	}, func(piece func()) {
		s.applyMu.Lock()
		defer s.applyMu.Unlock()
		if !r.discarded {
			piece()
		}
	})
	s.applyMu.Lock()
	if r.discarded { // Load has asked the loader to load everything again
		s.applyMu.Unlock()
		return nil
	}
	s.snap.held.Store(s.snap.keptShare)
	s.applyMu.Unlock()
	debug.FreeOSMemory() // a load needs several times the memory that it keeps
	if len(more.parts) > 0 {
		s.holdings.lastLoad.Store(int64(time.Since(began)))
		s.cfg.Log.Info("profiles of the assigned partitions are loaded", "partitions", len(more.parts), "users", s.snap.users.len(), "took", time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// readParts reads the users of the missing partitions and adds them to l. It skips a partition that
// is no longer wanted. Otherwise, when several processes start, the first process would read all
// users, because it owns all partitions for a moment. readParts returns the partitions that are
// still wanted at the end. From then on, apply keeps the users of these partitions and of the
// partitions that were held before (keptShare).
func (s *Service) readParts(ctx context.Context, l *loader, held, missing *share) (*share, error) {
	var buf []byte
	for i := range engine.ProfileParts {
		if !slices.Contains(missing.profileParts(), i) {
			continue
		}
		s.applyMu.Lock()
		if left := missing.intersect(s.holdings.wantedShare()); len(left.parts) < len(missing.parts) {
			missing = left
			s.snap.keptShare = held.withParts(missing.parts)
		}
		scope := s.snap.keptShare
		s.applyMu.Unlock()
		if !slices.Contains(missing.profileParts(), i) {
			continue
		}
		err := s.store.Scan(ctx, []int{i}, func(p *engine.Profile) error {
			user := []byte(p.User)
			if missing.channelsOf(user) == 0 {
				return nil
			}
			if v := s.snap.packProfile(buf[:0], p, scope.channelsOf(user)); len(v) > 0 {
				l.add(hashKey(user), user, v)
				buf = v
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// beginReading registers a new load or fetch. s.applyMu must be held.
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

// apply makes p the user's current profile and reports the user to all active reads. s.applyMu must
// be held.
func (s *Service) apply(p *engine.Profile) {
	s.snap.apply(p)
	for r := range s.holdings.activeReads {
		r.applied[p.User] = struct{}{}
	}
}

// Fetch reads profiles by user id, for users that are Unknown on a channel, and keeps them in
// memory for a while. Such users belong to the share of another process, or to a share that is
// still loading. If the store fails, Fetch returns its error and the users stay Unknown. After
// success a user becomes Unknown again only after many other users were fetched.
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
	for _, user := range names { // from here on the method apply keeps changes of these users
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
		// A user that is not a guest any more may have missed changes. So it stays Unknown.
		if _, guest := s.snap.guests.lookUp([]byte(user)); guest {
			s.addGuest(user, true)
		}
	}
	return nil
}

// addGuest makes a user a guest (see the type guests). Other users may then stop being guests.
// addGuest removes these users from the table, unless they belong to this process's share.
// s.applyMu must be held.
func (s *Service) addGuest(user string, known bool) {
	s.snap.guestMu.Lock()
	gone := s.snap.guests.add(user, known)
	s.snap.guestMu.Unlock()
	for _, u := range gone {
		if key := []byte(u); s.snap.keptChannels(key) == 0 {
			s.snap.users.put(hashKey(key), key, nil)
		}
	}
}

// HeldUsers returns how many users with a profile are in memory.
func (s *Service) HeldUsers() int { return s.snap.users.len() }

// LastLoad returns how long the latest load of assigned partitions took. 0 means that there was no
// load.
func (s *Service) LastLoad() time.Duration { return time.Duration(s.holdings.lastLoad.Load()) }
