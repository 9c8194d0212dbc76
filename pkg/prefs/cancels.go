package prefs

import (
	"context"
	"encoding/binary"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Cancels is the set of cancelled requests, receivers and campaigns as one
// process sees it now. It follows engine.Cancels as the Service follows
// profiles. Cancellations are kept for good: one is some 100 bytes, and a
// timer may wait for months behind it.
//
// Cancelled costs one load while there are none, and one filter look-up, 3 ns,
// for what is not cancelled.
type Cancels struct {
	cfg   Config
	store engine.Cancels

	count  atomic.Int64 // of scopes
	camps  atomic.Int64 // of them campaigns
	filter atomic.Pointer[filter]

	asOf     atomic.Pointer[time.Time]
	followMu sync.Mutex
	cursor   uint64

	mu        sync.RWMutex
	bases     map[notify.Base]struct{}
	ids       map[notify.ID]struct{}
	campaigns map[string]struct{}
}

// NewCancels returns a follower of a store. Call Run.
func NewCancels(store engine.Cancels, cfg Config) (*Cancels, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Cancels{
		cfg: cfg, store: store,
		bases: map[notify.Base]struct{}{}, ids: map[notify.ID]struct{}{}, campaigns: map[string]struct{}{},
	}
	c.filter.Store(newFilter(0))
	return c, nil
}

// Cancelled reports whether the receiver with this index is not to be called
// any more: it, its request or its campaign was cancelled.
func (c *Cancels) Cancelled(e *notify.Envelope, index uint32) bool {
	if e.Cause == notify.CauseCancelled {
		return true
	}
	if c.count.Load() == 0 {
		return false
	}
	f := c.filter.Load()
	if !f.may(hashOfBase(e.Chunk.Base)) && (e.Campaign == "" || c.camps.Load() == 0 || !f.may(hashOfCampaign(e.Campaign))) {
		return false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if _, ok := c.bases[e.Chunk.Base]; ok {
		return true
	}
	if _, ok := c.ids[e.ID(index)]; ok {
		return true
	}
	_, ok := c.campaigns[e.Campaign]
	return ok && e.Campaign != ""
}

// Put stores a cancellation; it binds every Cancelled of this process that
// begins after the return, and those of others within a second. The scope is
// ntf_<ULID>, ntf_<ULID>-<index> or cmp_<ULID>, else notify.KindInvalid.
func (c *Cancels) Put(ctx context.Context, scope, caller string, at time.Time) error {
	if !c.known(scope) {
		return notify.Invalid("bad_id", "id", "what can be cancelled is ntf_<ULID>, ntf_<ULID>-<index> or cmp_<ULID>")
	}
	if _, err := c.store.Put(ctx, engine.Cancel{Scope: scope, Caller: caller, At: at.UnixMilli()}); err != nil {
		return err
	}
	c.add(scope)
	return nil
}

// Run follows cancellations until ctx ends; nil then.
func (c *Cancels) Run(ctx context.Context) error {
	failing := false
	tick := time.NewTicker(c.cfg.Poll)
	defer tick.Stop()
	for {
		err := c.Follow(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			c.cfg.Log.Error("cancellations cannot be followed", "err", err, "age", c.Age(time.Now()))
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Follow applies all cancellations stored before the call; Run calls it.
func (c *Cancels) Follow(ctx context.Context) error {
	c.followMu.Lock()
	defer c.followMu.Unlock()
	for {
		at := time.Now()
		changes, err := c.store.Changes(ctx, c.cursor, c.cfg.Batch)
		if err != nil {
			return err
		}
		for _, ch := range changes {
			if !c.add(ch.Scope) {
				c.cfg.Log.Warn("a cancellation of an unknown kind is ignored", "scope", ch.Scope)
			}
			c.cursor = max(c.cursor, ch.Version)
		}
		if len(changes) < c.cfg.Batch {
			c.asOf.Store(&at)
			return nil
		}
	}
}

// Age is how long ago the set was known to hold every cancellation; very long
// before the first time.
func (c *Cancels) Age(now time.Time) time.Duration { return age(c.asOf.Load(), now) }

// Fresh reports whether the set is not older than MaxAge.
func (c *Cancels) Fresh(now time.Time) bool { return c.Age(now) <= c.cfg.MaxAge }

func (c *Cancels) known(scope string) bool {
	if rest, ok := strings.CutPrefix(scope, "cmp_"); ok {
		_, err := notify.ParseBase(rest)
		return err == nil
	}
	_, err := notify.ParseID(scope)
	return err == nil
}

// add enters a scope; false when it is of no known form.
//
// The filter comes last: a reader that meets it waits for the lock and finds
// the entry.
func (c *Cancels) add(scope string) bool {
	if !c.known(scope) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := hashOfCampaign(scope)
	before := c.size()
	if strings.HasPrefix(scope, "cmp_") {
		c.campaigns[scope] = struct{}{}
	} else {
		id, _ := notify.ParseID(scope)
		h = hashOfBase(id.Base)
		if id.Fan {
			c.ids[id] = struct{}{}
		} else {
			c.bases[id.Base] = struct{}{}
		}
	}
	if c.size() == before {
		return true
	}
	f := c.filter.Load()
	if f.room--; f.room < 0 {
		f = newFilter(2 * c.size())
		f.room -= int64(c.size())
		for b := range c.bases {
			f.add(hashOfBase(b))
		}
		for id := range c.ids {
			f.add(hashOfBase(id.Base))
		}
		for s := range c.campaigns {
			f.add(hashOfCampaign(s))
		}
		c.filter.Store(f)
	}
	f.add(h)
	c.camps.Store(int64(len(c.campaigns)))
	c.count.Store(int64(c.size()))
	return true
}

func (c *Cancels) size() int { return len(c.bases) + len(c.ids) + len(c.campaigns) }

// The low half of a base is random.
func hashOfBase(b notify.Base) uint64 { return binary.LittleEndian.Uint64(b[8:]) }

func hashOfCampaign(s string) uint64 { return notify.HashUser([]byte(s)) }

func age(at *time.Time, now time.Time) time.Duration {
	if at == nil {
		return 1<<63 - 1
	}
	return max(now.Sub(*at), 0)
}
