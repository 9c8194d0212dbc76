// Package users decides for every single send whether a user wants it, when, and at which
// addresses. A ProfileStore keeps the profiles. Each process that delivers holds a Snapshot, which
// its workers read without waiting. It follows the store's changes, so that an opt-out binds
// everywhere within a second. A single process holds all users. Each of several processes holds the
// users of its share, the partitions that its workers own (Hold), and fetches others by id (Fetch).
//
// While the store is down, the Snapshot ages: bulk stops once it is no longer Fresh, and users that
// are not held stay Unknown. Cancels follows cancellations in the same way. Callers and
// SealedCallers read the callers.
//
// Start reading at Snapshot.Look (snapshot.go, find.go, table.go), then Service.Run and
// Service.updateProfile for writes, and holding.go for shares.
package users

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Config of a Service. The zero value is valid.
type Config struct {
	// Poll is how often the process looks for changes by other processes.
	Poll time.Duration `default:"250ms" min:"0"`
	// MaxAge is how old the snapshot may be for bulk.
	MaxAge time.Duration `default:"1s" min:"0"`
	// Batch is how many changes are read at once.
	Batch int `default:"1000" min:"0"`
	// MaxCancels is how many cancellations a Cancels holds in memory.
	MaxCancels int `default:"1048576" min:"0"`
	// MaxSuppressed bounds the suppression list: while it holds this many addresses, Suppress stores
	// no address that is not in the user's profile.
	MaxSuppressed int `default:"500000" min:"0"`
	// Shares: several processes share the users. This one holds the profiles of the partitions that
	// Hold names, not of all users.
	Shares bool
	// Log receives failures to follow changes.
	Log *slog.Logger `default:"discard"`
}

// Service reads and writes profiles and keeps the Snapshot current. Its methods may be called from
// any goroutine.
type Service struct {
	cfg   Config
	store ProfileStore
	snap  *Snapshot

	woken chan struct{} // wakes Run, which then looks for changes

	fullLog rate.Sometimes // limits the log line about dead addresses that are not stored

	userLocks [64]sync.Mutex // by hash of the user: held from read to store of a profile

	follower follower // its mutex is locked before applyMu

	applyMu          sync.Mutex         // held while the snapshot is written; guards the maps below
	ownVersions      map[string]uint64  // by user: version of a write of this process that the cursor has not reached
	writesInProgress map[string]*uint64 // by user with a write in progress: the latest version that was followed since it began

	holdings holdings
}

// New returns a Service over a store. Call Load, then Run.
func New(store ProfileStore, cfg Config) (*Service, error) {
	cfg = setting.Fill(cfg)
	if err := setting.Err("prefs", &cfg); err != nil {
		return nil, err
	}
	return &Service{
		cfg: cfg, store: store, snap: newSnapshot(cfg.Shares), ownVersions: map[string]uint64{}, writesInProgress: map[string]*uint64{}, woken: make(chan struct{}, 1), fullLog: rate.Sometimes{Interval: time.Minute},
		holdings: holdings{wanted: map[topicPartition]int{}, loadRequested: make(chan struct{}, 1), activeReads: map[*profileRead]bool{}},
	}, nil
}

// Snapshot returns the snapshot that workers read. It is always the same one, and current.
func (s *Service) Snapshot() *Snapshot { return s.snap }

// Load reads every profile. With Config.Shares it reads only the suppression list, and Run then
// reads the held partitions (again). Until Load returns, the snapshot is empty and not Fresh. It
// needs memory for the snapshot and one profile.
func (s *Service) Load(ctx context.Context) error {
	s.follower.mu.Lock()
	defer s.follower.mu.Unlock()
	s.applyMu.Lock()
	defer s.applyMu.Unlock()
	at := time.Now()
	version, err := s.store.Version(ctx)
	if err != nil {
		return err
	}
	users, supp := &loader{t: &s.snap.users}, &loader{t: &s.snap.suppressedBy}
	suppressed, listed := newSet(), int64(0)
	keep := s.snap.keptShare // all
	if s.cfg.Shares {
		keep = newShare(nil)
	}
	var buf []byte
	read := func(p *engine.Profile) error {
		user := []byte(p.User)
		h := hashKey(user)
		if v := s.snap.packProfile(buf[:0], p, keep.channels(user)); len(v) > 0 {
			users.add(h, user, v)
			buf = v
		}
		if len(p.Suppressed) > 0 {
			buf = packSuppressed(buf[:0], p)
			supp.add(h, user, buf)
			for b := buf; len(b) > 0; {
				var a []byte
				a, b = cutField(b)
				suppressed.adjustCount(a, 1)
				listed++
			}
		}
		return nil
	}
	if s.cfg.Shares {
		err = s.eachSuppressing(ctx, "", read)
	} else {
		err = s.store.Scan(ctx, nil, read)
	}
	if err != nil {
		return err
	}
	if s.cfg.Shares {
		s.dropProfiles()
	}
	s.snap.suppressed.replaceWith(suppressed)
	s.snap.suppressedCount.Store(listed)
	supp.publishAll()
	users.publishAll()
	s.follower.cursor = version
	// Older versions may belong to changes that the store has lost.
	clear(s.ownVersions)
	for _, v := range s.writesInProgress {
		*v = 0
	}
	s.follower.asOf.Store(&at)
	return nil
}

// eachSuppressing calls fn with every profile that suppresses an address, in order of the user and
// behind after, until fn returns an error.
func (s *Service) eachSuppressing(ctx context.Context, after string, fn func(*engine.Profile) error) error {
	for {
		ps, err := s.store.Suppressing(ctx, after, s.cfg.Batch)
		if err != nil {
			return err
		}
		for i := range ps {
			if err := fn(&ps[i]); err != nil {
				return err
			}
			after = ps[i].User
		}
		if len(ps) < s.cfg.Batch {
			return nil
		}
	}
}

// dropProfiles drops all profiles, so that the loader reads the wanted partitions again. The caller
// holds applyMu.
func (s *Service) dropProfiles() {
	s.snap.keptShare = newShare(nil)
	s.snap.held.Store(s.snap.keptShare)
	s.snap.guestMu.Lock()
	s.snap.guests = guests{}
	s.snap.guestMu.Unlock()
	for r := range s.holdings.activeReads {
		r.discarded = true
	}
	s.requestLoad()
}

// Wake makes Run look for changes within 10 ms. It does not wait for that.
func (s *Service) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Run loads the snapshot unless it is loaded, and follows changes until ctx ends. It then returns
// nil. While the store is down the snapshot ages; see Fresh. If the store lost changes, Run loads
// everything again. A second goroutine, which ends before Run returns, loads the partitions that
// Hold names.
func (s *Service) Run(ctx context.Context) error {
	var loader sync.WaitGroup
	defer loader.Wait()
	loader.Go(func() { s.runLoader(ctx) })
	anew := false
	return s.follower.run(ctx, &s.cfg, "preferences cannot follow changes", s.woken, func(ctx context.Context) (err error) {
		if anew || !s.Loaded() {
			err = s.Load(ctx)
		} else {
			err = s.Follow(ctx)
		}
		if e, ok := errors.AsType[*notify.Error](err); err == nil || ok && e.Code == engine.CodeRegressed {
			anew = err != nil
		}
		return err
	})
}

// Follow applies all changes stored before the call. Run calls it.
func (s *Service) Follow(ctx context.Context) error {
	return follow(ctx, &s.follower, s.cfg.Batch, s.store.Changes, s.applyChanges)
}

func (s *Service) applyChanges(changes []engine.Change) {
	s.applyMu.Lock()
	defer s.applyMu.Unlock()
	for i := range changes {
		c := &changes[i]
		if s.ownVersions[c.Profile.User] <= c.Version { // otherwise this process's own write is newer
			s.apply(&c.Profile)
		}
		if v := s.writesInProgress[c.Profile.User]; v != nil {
			*v = max(*v, c.Version)
		}
		s.follower.cursor = max(s.follower.cursor, c.Version)
	}
	for user, version := range s.ownVersions {
		if version <= s.follower.cursor {
			delete(s.ownVersions, user)
		}
	}
}

// Age returns how long ago the snapshot was known to hold every change. Before the first load it
// returns the longest duration.
func (s *Service) Age(now time.Time) time.Duration { return s.follower.age(now) }

// Fresh reports whether bulk may be sent: the snapshot is at most MaxAge old.
func (s *Service) Fresh(now time.Time) bool { return s.Age(now) <= s.cfg.MaxAge }

// Loaded reports whether the profiles were read. Until then no user has preferences or addresses.
func (s *Service) Loaded() bool { return s.follower.asOf.Load() != nil }

// Get returns the profile of a user from the store, or notify.KindNotFound.
func (s *Service) Get(ctx context.Context, user string) (engine.Profile, error) {
	p, ok, err := s.store.Get(ctx, user)
	if err == nil && !ok {
		err = notify.NotFound("user")
	}
	return p, err
}

// Put stores what a user set and returns the stored profile. It binds every Decide of this process
// that begins after Put returns, and other processes within a second. Version, unless 0, must be
// the stored version (else notify.KindConflict). A user cannot set Suppressed: the stored value
// stays.
func (s *Service) Put(ctx context.Context, p engine.Profile) (engine.Profile, error) {
	if err := s.Validate(&p); err != nil {
		return p, err
	}
	return s.updateProfile(ctx, p.User, func(stored *engine.Profile) error {
		if p.Version != 0 && p.Version != stored.Version {
			return &notify.Error{Kind: notify.KindConflict, Code: "version_conflict", Field: "version", Msg: "the profile has changed since it was read; read it again and repeat the change"}
		}
		suppressed, version := stored.Suppressed, stored.Version
		*stored = p
		stored.Suppressed, stored.Version = suppressed, version
		return nil
	})
}

var errUnchanged = errors.New("unchanged")

// updateProfile reads, changes, stores and applies a profile. If another process stores the profile
// in between, even a user's first one, updateProfile reads it again.
func (s *Service) updateProfile(ctx context.Context, user string, fn func(*engine.Profile) error) (engine.Profile, error) {
	mu := &s.userLocks[hashKey([]byte(user))%uint64(len(s.userLocks))]
	mu.Lock()
	defer mu.Unlock()
	defer s.beginWrite(user)()
	for {
		p, ok, err := s.store.Get(ctx, user)
		if err != nil {
			return p, err
		}
		if !ok {
			p = engine.Profile{User: user}
		}
		err = fn(&p)
		if errors.Is(err, errUnchanged) {
			s.applyWrite(&p) // another process may have stored it; apply it here too
			return p, nil
		}
		if err != nil {
			return p, err
		}
		read := p.Version
		p.Version, err = s.store.Put(ctx, p)
		if notify.KindOf(err) == notify.KindConflict && ctx.Err() == nil {
			continue
		}
		if err != nil {
			p.Version = read
			return p, err
		}
		s.applyWrite(&p)
		return p, nil
	}
}

// beginWrite tells the follower that a write of the user is in progress. The caller holds the
// user's lock in userLocks, and calls end after the write.
func (s *Service) beginWrite(user string) (end func()) {
	s.applyMu.Lock()
	s.writesInProgress[user] = new(uint64)
	s.applyMu.Unlock()
	return func() {
		s.applyMu.Lock()
		delete(s.writesInProgress, user)
		s.applyMu.Unlock()
	}
}

// applyWrite applies a stored profile to the snapshot. A change that the follower read earlier and
// applies later must not undo it, and it must not undo a later change that was already applied.
func (s *Service) applyWrite(p *engine.Profile) {
	s.applyMu.Lock()
	defer s.applyMu.Unlock()
	if p.Version < s.ownVersions[p.User] || p.Version < *s.writesInProgress[p.User] {
		return
	}
	s.apply(p)
	s.ownVersions[p.User] = p.Version // removed once the cursor has passed it
}
