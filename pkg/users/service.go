// Package users answers, for every single send, whether a user wants it, when,
// and at which addresses. Profiles are kept by a ProfileStore; each process that
// delivers holds a Snapshot that its workers read without waiting, and follows
// the change table, so that an opt-out binds everywhere within a second. One process
// holds all users. Of several each holds the users of its share: those of the partitions
// that its workers own (Hold); others it fetches by id (Fetch).
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
	// Poll is how often changes of other processes are looked for.
	Poll time.Duration `default:"250ms" min:"0"`
	// MaxAge is how old the snapshot may be for bulk.
	MaxAge time.Duration `default:"1s" min:"0"`
	// Batch is how many changes are read at once.
	Batch int `default:"1000" min:"0"`
	// MaxCancels is how many cancellations are held in memory; of a Cancels.
	MaxCancels int `default:"1048576" min:"0"`
	// MaxSuppressed is how many dead addresses that no profile lists are held; see Suppress.
	MaxSuppressed int `default:"500000" min:"0"`
	// Shares says that several processes share the users: the profiles held are those
	// of the parts that Hold names, not of all users.
	Shares bool
	// Log receives failures to follow.
	Log *slog.Logger `default:"discard"`
}

// Service reads and writes profiles and keeps the Snapshot current. Methods may
// be called from any goroutine.
type Service struct {
	cfg   Config
	store ProfileStore
	snap  *Snapshot

	woken chan struct{} // Run looks for changes at once

	full rate.Sometimes // tells of dead addresses that are not kept

	writing [64]sync.Mutex // by user: read, change and store are one step here

	follower follower // its lock is taken before applyMu

	applyMu sync.Mutex
	own     map[string]uint64  // version of a write of ours that the cursor has not reached
	pending map[string]*uint64 // users a write of ours is under way for: the latest version followed meanwhile

	holdings holdings
}

// New returns a Service over a store. Call Load, then Run.
func New(store ProfileStore, cfg Config) (*Service, error) {
	cfg = setting.Fill(cfg)
	if err := setting.Err("prefs", &cfg); err != nil {
		return nil, err
	}
	return &Service{
		cfg: cfg, store: store, snap: newSnapshot(cfg.Shares), own: map[string]uint64{}, pending: map[string]*uint64{}, woken: make(chan struct{}, 1), full: rate.Sometimes{Interval: time.Minute},
		holdings: holdings{wanted: map[part]int{}, asked: make(chan struct{}, 1), reading: map[*reading]bool{}},
	}, nil
}

// Snapshot is what workers read. It is always the same one, and current.
func (s *Service) Snapshot() *Snapshot { return s.snap }

// Load reads every profile; with Config.Shares the suppression list alone, and Run reads
// the parts that are held (anew). Until it returns the snapshot is empty and not
// Fresh. Memory: the snapshot and one profile.
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
	users, supp := &loader{t: &s.snap.users}, &loader{t: &s.snap.bySupp}
	suppressed, listed := newSet(), int64(0)
	keep := s.snap.scope // all
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
				a, b = cut(b)
				suppressed.count(a, 1)
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
		s.holdNothing()
	}
	s.snap.suppressed.become(suppressed)
	s.snap.listed.Store(listed)
	supp.done()
	users.done()
	s.follower.cursor = version
	// Versions of before may be of changes that the store has lost.
	clear(s.own)
	for _, v := range s.pending {
		*v = 0
	}
	s.follower.asOf.Store(&at)
	return nil
}

// eachSuppressing calls fn with every profile that suppresses an address, by user, after
// one, until it returns an error.
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

// holdNothing forgets all profiles; the loader reads those of the parts that are held
// anew. The caller has applyMu.
func (s *Service) holdNothing() {
	s.snap.scope = newShare(nil)
	s.snap.held.Store(s.snap.scope)
	s.snap.guestMu.Lock()
	s.snap.guests = guests{}
	s.snap.guestMu.Unlock()
	for r := range s.holdings.reading {
		r.void = true
	}
	s.askLoader()
}

// Wake makes Run look for changes within 10 ms; it does not wait for that.
func (s *Service) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Run loads the snapshot if that was not done, and follows changes until ctx
// ends; nil then. While the store is away the snapshot ages, see Fresh. When the
// store lost changes it is loaded anew. Beside that it loads what Hold asks for.
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

// Follow applies all changes stored before the call; Run calls it.
func (s *Service) Follow(ctx context.Context) error {
	return follow(ctx, &s.follower, s.cfg.Batch, s.store.Changes, s.followed)
}

func (s *Service) followed(changes []engine.Change) {
	s.applyMu.Lock()
	defer s.applyMu.Unlock()
	for i := range changes {
		c := &changes[i]
		if s.own[c.Profile.User] <= c.Version { // else ours is newer
			s.apply(&c.Profile)
		}
		if v := s.pending[c.Profile.User]; v != nil {
			*v = max(*v, c.Version)
		}
		s.follower.cursor = max(s.follower.cursor, c.Version)
	}
	for user, version := range s.own {
		if version <= s.follower.cursor {
			delete(s.own, user)
		}
	}
}

// Age is how long ago the snapshot was known to hold every change; very long
// before the first load.
func (s *Service) Age(now time.Time) time.Duration { return s.follower.age(now) }

// Fresh reports whether bulk may be sent: the snapshot is not older than
// MaxAge.
func (s *Service) Fresh(now time.Time) bool { return s.Age(now) <= s.cfg.MaxAge }

// Loaded reports whether the profiles were read: until then nobody has preferences
// or addresses.
func (s *Service) Loaded() bool { return s.follower.asOf.Load() != nil }

// Get returns the profile of a user from the store; notify.KindNotFound when
// there is none.
func (s *Service) Get(ctx context.Context, user string) (engine.Profile, error) {
	p, ok, err := s.store.Get(ctx, user)
	if err == nil && !ok {
		err = notify.NotFound("user")
	}
	return p, err
}

// Put stores what a user set and returns it as stored. It binds every Decide of
// this process that begins after the return, and those of others within a
// second. Version, when not 0, must be the stored one (notify.KindConflict).
// Suppressed is not the user's to set: the stored one stays.
func (s *Service) Put(ctx context.Context, p engine.Profile) (engine.Profile, error) {
	if err := s.Validate(&p); err != nil {
		return p, err
	}
	return s.change(ctx, p.User, func(stored *engine.Profile) error {
		if p.Version != 0 && p.Version != stored.Version {
			return &notify.Error{Kind: notify.KindConflict, Code: "version_conflict", Field: "version", Msg: "the profile has changed since it was read"}
		}
		suppressed, version := stored.Suppressed, stored.Version
		*stored = p
		stored.Suppressed, stored.Version = suppressed, version
		return nil
	})
}

var errUnchanged = errors.New("unchanged")

// change reads, changes and stores a profile and applies it. Another process
// may store in between, also the user's first profile: then it reads again.
func (s *Service) change(ctx context.Context, user string, fn func(*engine.Profile) error) (engine.Profile, error) {
	mu := &s.writing[hashKey([]byte(user))%uint64(len(s.writing))]
	mu.Lock()
	defer mu.Unlock()
	defer s.begin(user)()
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
			s.applied(&p) // another process may have stored it; it binds here too
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
		s.applied(&p)
		return p, nil
	}
}

// begin tells the follower that a write of the user is under way. The caller
// holds the user's writing lock; the result ends it.
func (s *Service) begin(user string) (end func()) {
	s.applyMu.Lock()
	s.pending[user] = new(uint64)
	s.applyMu.Unlock()
	return func() {
		s.applyMu.Lock()
		delete(s.pending, user)
		s.applyMu.Unlock()
	}
}

// applied puts a profile that was stored into the snapshot: neither a change
// that was read before and is followed later may undo it, nor may it undo a
// later one that was followed already.
func (s *Service) applied(p *engine.Profile) {
	s.applyMu.Lock()
	defer s.applyMu.Unlock()
	if p.Version < s.own[p.User] || p.Version < *s.pending[p.User] {
		return
	}
	s.apply(p)
	s.own[p.User] = p.Version // until the follower has passed it
}
