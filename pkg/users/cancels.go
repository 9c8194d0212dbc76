package users

import (
	"context"
	"encoding/binary"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Cancels is the set of cancelled requests, receivers and campaigns as one
// process sees it now. It follows a CancelStore as the Service follows
// profiles.
//
// Cancellations are kept in the store for as long as a timer may wait behind one and
// its outcome is kept. Memory is bounded, however many there are: the latest MaxCancels
// scopes at most, 57 bytes each (24 in a slot, of which a map fills half in the
// worst case), and 32 bytes more of each for a filter over all there ever were.
// With the default, 1,048,576, that is 60 + 32 MiB. A scope that is not among
// them any more and that the filter may hold is looked for in the store, some
// microseconds; the filter is right about 99 of 100 others as long as there are
// fewer than 8 times MaxCancels, and slower, not wrong, beyond.
//
// Maybe costs one load while there are none, and one filter look-up, 3 ns, for what
// nobody cancelled a part of.
type Cancels struct {
	cfg   Config
	store CancelStore

	count  atomic.Int64 // of scopes
	camps  atomic.Int64 // of them campaigns
	filter atomic.Pointer[filter]

	follower follower

	mu         sync.RWMutex
	young, old map[scope]struct{} // at most half of MaxCancels each; the younger is filled
	dropped    bool               // scopes are in the store that are in neither
}

// scope is what was cancelled.
type scope struct {
	base  notify.Base
	index uint32
	of    uint8
}

const (
	ofReceiver uint8 = iota
	ofRequest        // or a single notification
	ofCampaign
)

// dropFilter is how many scopes the filter has room for once some were dropped,
// by MaxCancels. It cannot grow then: it would have to be made of all in the
// store.
const dropFilter = 8

// NewCancels returns a follower of a store. Call Run.
func NewCancels(store CancelStore, cfg Config) (*Cancels, error) {
	cfg = setting.Fill(cfg)
	if err := setting.Err("prefs", &cfg); err != nil {
		return nil, err
	}
	c := &Cancels{cfg: cfg, store: store, young: map[scope]struct{}{}}
	c.filter.Store(newFilter(0))
	return c, nil
}

// Cancelled reports whether the receiver with this index is not to be called
// any more: it, its request or its campaign was cancelled.
func (c *Cancels) Cancelled(e *notify.Envelope, index uint32) bool {
	if e.Cause == notify.CauseCancelled {
		return true
	}
	f, request, campaign := c.filtered(e)
	return (request || campaign) && c.look(f, e, index, request, campaign)
}

// Maybe reports whether Cancelled may be true of a receiver of the envelope: asked once
// for many, it saves asking for each.
func (c *Cancels) Maybe(e *notify.Envelope) bool {
	_, request, campaign := c.filtered(e)
	return request || campaign || e.Cause == notify.CauseCancelled
}

// filtered says what the filter may hold something of: the request, the campaign.
func (c *Cancels) filtered(e *notify.Envelope) (f *filter, request, campaign bool) {
	if c.count.Load() == 0 {
		return nil, false, false
	}
	f = c.filter.Load()
	request = f.may(hashOfBase(e.Chunk.Base))
	campaign = e.Campaign != "" && c.camps.Load() != 0 && f.may(hashOfCampaign(e.Campaign))
	return f, request, campaign
}

// look is Cancelled where the filter may hold something of the request or the
// campaign.
func (c *Cancels) look(f *filter, e *notify.Envelope, index uint32, request, campaign bool) bool {
	scopes := make([]scope, 0, 3)
	if request {
		scopes = append(scopes, scope{e.Chunk.Base, 0, ofRequest})
		if e.Fan {
			scopes = append(scopes, scope{e.Chunk.Base, index, ofReceiver})
		}
	}
	if campaign {
		if s, ok := parseScope(e.Campaign); ok {
			scopes = append(scopes, s)
		}
	}
	c.mu.RLock()
	dropped := c.dropped
	for _, s := range scopes {
		if c.has(s) {
			c.mu.RUnlock()
			return true
		}
	}
	c.mu.RUnlock()
	return dropped && c.stored(f, scopes)
}

// has needs the lock.
func (c *Cancels) has(s scope) bool {
	if _, ok := c.young[s]; ok {
		return true
	}
	_, ok := c.old[s]
	return ok
}

// stored looks for scopes that may have been dropped in the store. While that
// cannot be read, what the filter holds counts as cancelled, for nearly all of
// it is.
func (c *Cancels) stored(f *filter, scopes []scope) bool {
	for _, s := range scopes {
		if !f.may(s.hash()) {
			continue
		}
		_, ok, err := c.store.Get(context.Background(), s.String())
		if err != nil {
			c.cfg.Log.Error("a cancellation cannot be looked up", "scope", s.String(), "err", err)
			return true
		}
		if ok {
			c.add(s)
			return true
		}
	}
	return false
}

// Put stores a cancellation; it binds every Cancelled of this process that
// begins after the return, and those of others within a second. The scope is
// ntf_<ULID>, ntf_<ULID>-<index> or cmp_<ULID>, else notify.KindInvalid.
func (c *Cancels) Put(ctx context.Context, scope, caller string, at time.Time) error {
	s, ok := parseScope(scope)
	if !ok {
		return notify.Invalid("bad_id", "id", "what can be cancelled is ntf_<ULID>, ntf_<ULID>-<index> or cmp_<ULID>")
	}
	if _, err := c.store.Put(ctx, engine.Cancel{Scope: scope, Caller: caller, At: at.UnixMilli()}); err != nil {
		return err
	}
	c.add(s)
	return nil
}

// Run follows cancellations until ctx ends; nil then.
func (c *Cancels) Run(ctx context.Context) error {
	return c.follower.run(ctx, &c.cfg, "cancellations cannot be followed", nil, c.Follow)
}

// Follow applies all cancellations stored before the call; Run calls it.
func (c *Cancels) Follow(ctx context.Context) error {
	return follow(ctx, &c.follower, c.cfg.Batch, c.store.Changes, func(changes []engine.Cancel) {
		for _, ch := range changes {
			if s, ok := parseScope(ch.Scope); ok {
				c.add(s)
			} else {
				c.cfg.Log.Warn("a cancellation of an unknown kind is ignored", "scope", ch.Scope)
			}
			c.follower.cursor = max(c.follower.cursor, ch.Version)
		}
	})
}

// Age is how long ago the set was known to hold every cancellation; very long
// before the first time.
func (c *Cancels) Age(now time.Time) time.Duration { return c.follower.age(now) }

// Fresh reports whether the set is not older than MaxAge.
func (c *Cancels) Fresh(now time.Time) bool { return c.Age(now) <= c.cfg.MaxAge }

// add enters a scope.
//
// The filter comes last: a reader that meets it waits for the lock and finds
// the entry.
func (c *Cancels) add(s scope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.has(s) {
		return
	}
	if most := max(1, c.cfg.MaxCancels/2); len(c.young) >= most {
		if len(c.old) > 0 && !c.dropped { // all that there is, for the last time
			c.refill(dropFilter*c.cfg.MaxCancels - 1)
			c.dropped = true
		}
		c.old, c.young = c.young, make(map[scope]struct{}, len(c.young)/2)
	}
	c.young[s] = struct{}{}
	f := c.filter.Load()
	if f.room -= 2; f.room < 0 && !c.dropped {
		f = c.refill(2 * (len(c.young) + len(c.old)))
	}
	enter(f, s)
	if s.of == ofCampaign {
		c.camps.Add(1)
	}
	c.count.Add(1)
}

// refill makes the filter anew, with room for n scopes. It needs the lock.
func (c *Cancels) refill(n int) *filter {
	f := newFilter(2 * n)
	for _, scopes := range [...]map[scope]struct{}{c.young, c.old} {
		f.room -= 2 * int64(len(scopes))
		for s := range scopes {
			enter(f, s)
		}
	}
	c.filter.Store(f)
	return f
}

// enter adds a scope, and that there is one of its request.
func enter(f *filter, s scope) {
	f.add(s.hash())
	if s.of != ofCampaign {
		f.add(hashOfBase(s.base))
	}
}

// parseScope reads the text of a scope; false when it is of no known form.
func parseScope(text string) (scope, bool) {
	if rest, ok := strings.CutPrefix(text, "cmp_"); ok {
		base, err := notify.ParseBase(rest)
		return scope{base, 0, ofCampaign}, err == nil
	}
	id, err := notify.ParseID(text)
	if err != nil || !id.Fan {
		return scope{id.Base, 0, ofRequest}, err == nil
	}
	return scope{id.Base, id.Index, ofReceiver}, true
}

// String is the text that parseScope reads.
func (s scope) String() string {
	if s.of == ofCampaign {
		return "cmp_" + s.base.String()
	}
	return notify.ID{Base: s.base, Index: s.index, Fan: s.of == ofReceiver}.String()
}

// hash is that of the scope alone, in the filter: other than hashOfBase, which
// is of all scopes of a request.
func (s scope) hash() uint64 {
	if s.of == ofCampaign {
		return hashOfCampaign(s.String())
	}
	h := hashOfBase(s.base) + (uint64(s.index)<<2|uint64(s.of)+1)*0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	return h ^ h>>31
}

// The low half of a base is random.
func hashOfBase(b notify.Base) uint64 { return binary.LittleEndian.Uint64(b[8:]) }

func hashOfCampaign(s string) uint64 { return notify.HashUser([]byte(s)) }
