// Package users decides for every send whether the user wants it, when, and at which addresses. A
// ProfileStore stores the profiles. Each process that delivers has a Snapshot of them, which its
// workers read without waiting. The Service applies all changes of the store to the Snapshot. So an
// opt-out takes effect in all processes within a second.
//
// If only one process delivers, its Snapshot has all users. With several processes, each Snapshot
// has the users of the process's share: the partitions that its workers own (Hold). A process
// fetches other users by id (Fetch).
//
// While the store is down, the Snapshot gets older. Bulk stops as soon as the Snapshot is no longer
// Fresh, and users that are not in memory stay Unknown. Cancels reads new cancellations from the
// store in the same way. Callers and SealedCallers read the callers.
//
// Start reading at Snapshot.DecideMany (snapshot.go, find.go, table.go). Then read Service.Run,
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

// Config configures a Service or a Cancels. The zero value is valid.
type Config struct {
	// Poll is how often the process reads changes that other processes made.
	Poll time.Duration `default:"250ms" min:"0"`
	// MaxAge is how old the snapshot may be while bulk is sent.
	MaxAge time.Duration `default:"1s" min:"0"`
	// Batch is how many changes are read in one call.
	Batch int `default:"1000" min:"0"`
	// MaxCancels is how many cancellations a Cancels keeps in memory.
	MaxCancels int `default:"1048576" min:"0"`
	// MaxSuppressed bounds the suppression list. If the list has this many addresses, Suppress
	// stores only addresses that are in the user's profile.
	MaxSuppressed int `default:"500000" min:"0"`
	// Shares means that several processes share the users. This process then keeps only the
	// profiles of the partitions for which Hold was called, not of all users.
	Shares bool
	// Log receives a message if changes cannot be read.
	Log *slog.Logger `default:"discard"`
}

// Service reads and writes profiles and keeps the Snapshot current. Its methods may be called from
// any goroutine.
type Service struct {
	cfg   Config
	store ProfileStore
	snap  *Snapshot

	woken chan struct{} // wakes Run, which then reads changes

	fullLog rate.Sometimes // limits the log line about dead addresses that are not stored

	userLocks [64]sync.Mutex // by hash of the user; locked from the read of a profile until the profile is stored

	follower follower // lock its mutex before applyMu

	applyMu sync.Mutex // locked while the snapshot is written; guards the maps below
	// ownVersions contains, by user, the version that this process wrote last. The entry is removed
	// when follower.cursor reaches the version.
	ownVersions map[string]uint64
	// writesInProgress has an entry for each user that this process is writing. The entry is the
	// latest version that applyChanges has read since the write began.
	writesInProgress map[string]*uint64

	holdings holdings
}

// New returns a Service over a store. The caller must call Run. It may call Load before, to wait for
// the first load. New returns an error if cfg is not valid.
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

// Snapshot returns the snapshot that workers read. Every call returns the same Snapshot, which the
// Service keeps current.
func (s *Service) Snapshot() *Snapshot { return s.snap }

// Load reads every profile. With Config.Shares it reads only the suppression list, and Run then
// reads the profiles of the held partitions again. Until the first Load returns, the snapshot is
// incomplete and not Fresh. A later Load needs memory for the old snapshot and for all profiles
// that it reads.
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
	keep := s.snap.keptShare // all users
	if s.cfg.Shares {
		keep = newShare(nil)
	}
	var buf []byte
	read := func(p *engine.Profile) error {
		user := []byte(p.User)
		h := hashKey(user)
		if v := s.snap.packProfile(buf[:0], p, keep.channelsOf(user)); len(v) > 0 {
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
	// Recorded versions may belong to changes that the store has lost.
	clear(s.ownVersions)
	for _, v := range s.writesInProgress {
		*v = 0
	}
	s.follower.asOf.Store(&at)
	return nil
}

// eachSuppressing calls fn with every profile that suppresses an address, ordered by user. It
// begins after the user lastUser, and stops when fn returns an error.
func (s *Service) eachSuppressing(ctx context.Context, lastUser string, fn func(*engine.Profile) error) error {
	for {
		ps, err := s.store.Suppressing(ctx, lastUser, s.cfg.Batch)
		if err != nil {
			return err
		}
		for i := range ps {
			if err := fn(&ps[i]); err != nil {
				return err
			}
			lastUser = ps[i].User
		}
		if len(ps) < s.cfg.Batch {
			return nil
		}
	}
}

// dropProfiles drops all profiles and makes the loader read the wanted partitions again. s.applyMu
// must be held.
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

// Wake makes Run read changes within 10 ms. Wake itself does not wait.
func (s *Service) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Run loads the snapshot if it is not loaded yet, and then applies changes until ctx ends. It then
// returns nil. While the store is down the snapshot gets older; see Fresh. If the store lost
// changes, Run loads everything again. A second goroutine loads the partitions for which Hold was
// called. It ends before Run returns.
func (s *Service) Run(ctx context.Context) error {
	var loader sync.WaitGroup
	defer loader.Wait()
	loader.Go(func() { s.runLoader(ctx) })
	anew := false
	return s.follower.run(ctx, &s.cfg, "changes of preferences cannot be read from the store", s.woken, func(ctx context.Context) (err error) {
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

// Follow applies all changes that were stored before the call. Run calls Follow.
func (s *Service) Follow(ctx context.Context) error {
	return follow(ctx, &s.follower, s.cfg.Batch, s.store.Changes, s.applyChanges)
}

func (s *Service) applyChanges(changes []engine.Change) {
	s.applyMu.Lock()
	defer s.applyMu.Unlock()
	for i := range changes {
		c := &changes[i]
		if s.ownVersions[c.Profile.User] <= c.Version { // otherwise a write of this process is newer
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

// Age returns the time since the snapshot last certainly had every change of the store. Before the
// first load it returns the longest duration.
func (s *Service) Age(now time.Time) time.Duration { return s.follower.age(now) }

// Fresh reports whether bulk may be sent, because the snapshot is at most MaxAge old.
func (s *Service) Fresh(now time.Time) bool { return s.Age(now) <= s.cfg.MaxAge }

// Loaded reports whether the profiles were read. Before that no user has preferences or addresses.
func (s *Service) Loaded() bool { return s.follower.asOf.Load() != nil }

// Get reads the profile of a user from the store. It returns notify.KindNotFound if the user has no
// profile.
func (s *Service) Get(ctx context.Context, user string) (engine.Profile, error) {
	p, ok, err := s.store.Get(ctx, user)
	if err == nil && !ok {
		err = notify.NotFound("user")
	}
	return p, err
}

// Put stores the preferences and addresses of a user and returns the stored profile. Every call of
// Decide in this process that begins after Put returns uses the new profile. Other processes use it
// within a second. If p.Version is not 0, it must equal the stored version; otherwise Put returns
// notify.KindConflict. Put ignores p.Suppressed: the stored value stays.
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

// updateProfile reads a profile, changes it with the function fn, stores it and applies it to the
// snapshot. If another process stores the profile in the meantime, even as the user's first
// profile, updateProfile reads it again and calls fn again.
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
			s.applyWrite(&p) // another process may have stored this profile, so apply it here too
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

// beginWrite registers that a write of the user is in progress. Until the write ends, applyChanges
// records the latest version that it reads of this user's profile, so that the write does not replace
// a newer profile in memory. The caller holds the user's lock in userLocks, and must call the returned
// function after the write.
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

// applyWrite applies a stored profile to the snapshot. If a later change was already applied,
// applyWrite does nothing. It also records the version: if the follower has read an earlier change
// and applies it only after this write, that change must not undo the write.
func (s *Service) applyWrite(p *engine.Profile) {
	s.applyMu.Lock()
	defer s.applyMu.Unlock()
	if p.Version < s.ownVersions[p.User] || p.Version < *s.writesInProgress[p.User] {
		return
	}
	s.apply(p)
	s.ownVersions[p.User] = p.Version // removed when the cursor reaches the version
}
