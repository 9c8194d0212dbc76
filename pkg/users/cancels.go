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

// Cancels is this process's set of cancelled requests, receivers and campaigns. It reads the
// changes of a CancelStore, as the Service reads the changes of profiles.
//
// The store keeps a cancellation as long as a timer of the cancelled request may wait and as long
// as the request's outcome is kept. The memory of Cancels is bounded, however many cancellations
// the store has. Cancels keeps in maps at most the latest MaxCancels scopes, at most 57 bytes each.
// It also keeps a filter over all scopes that ever existed, 32 bytes for each of MaxCancels. With
// the default, 1,048,576, the maps use 60 MiB and the filter uses 32 MiB.
//
// Cancels reads a scope from the store if the filter may contain the scope but the maps do not. A
// read takes some microseconds. While there are fewer than 8 times MaxCancels scopes, only about 1
// of 100 scopes that are not cancelled needs such a read. With more scopes Cancels is slower, but
// never wrong.
//
// While there are no cancellations, MayBeCancelled costs one atomic load. Otherwise, for a request
// without any cancellation, it costs one filter look-up, 3 ns.
type Cancels struct {
	cfg   Config
	store CancelStore

	scopeCount    atomic.Int64 // number of scopes
	campaignCount atomic.Int64 // number of these scopes that are campaigns
	filter        atomic.Pointer[filter]

	follower follower

	mu sync.RWMutex
	// The maps young and old contain at most half of MaxCancels scopes each. When young is full, it
	// becomes old, and the scopes in the previous old map are dropped from memory.
	young, old map[cancelScope]struct{}
	dropped    bool // the store has scopes that are in neither map
}

// cancelScope identifies what was cancelled: a request, one receiver or a campaign.
type cancelScope struct {
	base  notify.Base
	index uint32
	kind  uint8
}

const (
	scopeReceiver uint8 = iota
	scopeRequest        // a request, or a single notification
	scopeCampaign
)

// fullFilterFactor sets the size of the filter after the first scopes were dropped from memory: the
// filter then has room for fullFilterFactor times MaxCancels scopes. From then on the filter cannot
// grow, because a larger filter would have to be built from all scopes in the store.
const fullFilterFactor = 8

// NewCancels returns an empty Cancels over a store. The caller must call Run. NewCancels returns an
// error if cfg is not valid.
func NewCancels(store CancelStore, cfg Config) (*Cancels, error) {
	cfg = setting.Fill(cfg)
	if err := setting.Err("prefs", &cfg); err != nil {
		return nil, err
	}
	c := &Cancels{cfg: cfg, store: store, young: map[cancelScope]struct{}{}}
	c.filter.Store(newFilter(0))
	return c, nil
}

// Cancelled reports whether the receiver with this index must not be called, because the receiver,
// its request or its campaign was cancelled.
func (c *Cancels) Cancelled(e *notify.Envelope, index uint32) bool {
	if e.Cause == notify.CauseCancelled {
		return true
	}
	f, request, campaign := c.filterHits(e)
	return (request || campaign) && c.lookUp(f, e, index, request, campaign)
}

// MayBeCancelled reports whether Cancelled may return true for any receiver of the envelope. If it
// returns false, the caller need not call Cancelled for each receiver.
func (c *Cancels) MayBeCancelled(e *notify.Envelope) bool {
	_, request, campaign := c.filterHits(e)
	return request || campaign || e.Cause == notify.CauseCancelled
}

// filterHits reports whether the filter may contain the request of the envelope, and whether it may
// contain its campaign.
func (c *Cancels) filterHits(e *notify.Envelope) (f *filter, request, campaign bool) {
	if c.scopeCount.Load() == 0 {
		return nil, false, false
	}
	f = c.filter.Load()
	request = f.mayContain(hashOfBase(e.Chunk.Base))
	campaign = e.Campaign != "" && c.campaignCount.Load() != 0 && f.mayContain(hashOfCampaign(e.Campaign))
	return f, request, campaign
}

// lookUp does the rest of the work of Cancelled. It is called if the filter may contain the request
// or the campaign, and looks in the maps and then in the store.
func (c *Cancels) lookUp(f *filter, e *notify.Envelope, index uint32, request, campaign bool) bool {
	scopes := make([]cancelScope, 0, 3)
	if request {
		scopes = append(scopes, cancelScope{e.Chunk.Base, 0, scopeRequest})
		if e.FanOut {
			scopes = append(scopes, cancelScope{e.Chunk.Base, index, scopeReceiver})
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
		if c.inMemory(s) {
			c.mu.RUnlock()
			return true
		}
	}
	c.mu.RUnlock()
	return dropped && c.inStore(f, scopes)
}

// inMemory reports whether a scope is in one of the maps. c.mu must be held.
func (c *Cancels) inMemory(s cancelScope) bool {
	if _, ok := c.young[s]; ok {
		return true
	}
	_, ok := c.old[s]
	return ok
}

// inStore reports whether the store has one of the scopes. It reads only scopes that the filter may
// contain. If the store cannot be read, such a scope counts as cancelled, because nearly all scopes
// that the filter may contain are cancelled.
func (c *Cancels) inStore(f *filter, scopes []cancelScope) bool {
	for _, s := range scopes {
		if !f.mayContain(s.hash()) {
			continue
		}
		_, ok, err := c.store.Get(context.Background(), s.String())
		if err != nil {
			c.cfg.Log.Error("a cancellation cannot be looked up in the store; the notification is treated as cancelled", "scope", s.String(), "err", err)
			return true
		}
		if ok {
			c.addScope(s)
			return true
		}
	}
	return false
}

// Put stores a cancellation. Every call of Cancelled in this process that begins after Put returns
// takes the cancellation into account. Other processes do so within a second. Put returns
// notify.KindInvalid if the scope is not ntf_<ULID>, ntf_<ULID>-<index> or cmp_<ULID>.
func (c *Cancels) Put(ctx context.Context, scope, caller string, at time.Time) error {
	s, ok := parseScope(scope)
	if !ok {
		return notify.Invalid("bad_id", "id", "an id to cancel must be ntf_<ULID>, ntf_<ULID>-<index> or cmp_<ULID>")
	}
	if _, err := c.store.Put(ctx, engine.Cancel{Scope: scope, Caller: caller, At: at.UnixMilli()}); err != nil {
		return err
	}
	c.addScope(s)
	return nil
}

// Run applies new cancellations of the store until ctx ends, and then returns nil.
func (c *Cancels) Run(ctx context.Context) error {
	return c.follower.run(ctx, &c.cfg, "new cancellations cannot be read from the store", nil, c.Follow)
}

// Follow applies all cancellations that were stored before the call. Run calls Follow.
func (c *Cancels) Follow(ctx context.Context) error {
	return follow(ctx, &c.follower, c.cfg.Batch, c.store.Changes, func(changes []engine.Cancel) {
		for _, ch := range changes {
			if s, ok := parseScope(ch.Scope); ok {
				c.addScope(s)
			} else {
				c.cfg.Log.Warn("a cancellation with an unknown scope is ignored", "scope", ch.Scope)
			}
			c.follower.cursor = max(c.follower.cursor, ch.Version)
		}
	})
}

// Age returns the time since the set last certainly contained every cancellation of the store.
// Before the first Follow it returns the longest duration.
func (c *Cancels) Age(now time.Time) time.Duration { return c.follower.age(now) }

// Fresh reports whether the set is at most MaxAge old.
func (c *Cancels) Fresh(now time.Time) bool { return c.Age(now) <= c.cfg.MaxAge }

// addScope adds a scope. It changes the filter last, while it holds the lock. So a reader that
// finds the scope in the filter waits for the lock, and then finds it in the map.
func (c *Cancels) addScope(s cancelScope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inMemory(s) {
		return
	}
	if most := max(1, c.cfg.MaxCancels/2); len(c.young) >= most {
		if len(c.old) > 0 && !c.dropped { // from here on, memory no longer has all scopes
			c.rebuildFilter(fullFilterFactor*c.cfg.MaxCancels - 1)
			c.dropped = true
		}
		c.old, c.young = c.young, make(map[cancelScope]struct{}, len(c.young)/2)
	}
	c.young[s] = struct{}{}
	f := c.filter.Load()
	if f.roomLeft -= 2; f.roomLeft < 0 && !c.dropped {
		f = c.rebuildFilter(2 * (len(c.young) + len(c.old)))
	}
	addToFilter(f, s)
	if s.kind == scopeCampaign {
		c.campaignCount.Add(1)
	}
	c.scopeCount.Add(1)
}

// rebuildFilter builds a new filter from both maps, with room for n scopes. c.mu must be held.
func (c *Cancels) rebuildFilter(n int) *filter {
	f := newFilter(2 * n)
	for _, scopes := range [...]map[cancelScope]struct{}{c.young, c.old} {
		f.roomLeft -= 2 * int64(len(scopes))
		for s := range scopes {
			addToFilter(f, s)
		}
	}
	c.filter.Store(f)
	return f
}

// addToFilter adds a scope to the filter. For a request or a receiver it also adds the base of the
// request.
func addToFilter(f *filter, s cancelScope) {
	f.add(s.hash())
	if s.kind != scopeCampaign {
		f.add(hashOfBase(s.base))
	}
}

// parseScope parses the text of a scope. It returns false if the form of the text is unknown.
func parseScope(text string) (cancelScope, bool) {
	if rest, ok := strings.CutPrefix(text, "cmp_"); ok {
		base, err := notify.ParseBase(rest)
		return cancelScope{base, 0, scopeCampaign}, err == nil
	}
	id, err := notify.ParseID(text)
	if err != nil || !id.FanOut {
		return cancelScope{id.Base, 0, scopeRequest}, err == nil
	}
	return cancelScope{id.Base, id.Index, scopeReceiver}, true
}

// String returns the text form of the scope, which parseScope reads.
func (s cancelScope) String() string {
	if s.kind == scopeCampaign {
		return "cmp_" + s.base.String()
	}
	return notify.ID{Base: s.base, Index: s.index, FanOut: s.kind == scopeReceiver}.String()
}

// hash returns the filter hash of this scope only. hashOfBase is a different hash, for all scopes
// of a request together.
func (s cancelScope) hash() uint64 {
	if s.kind == scopeCampaign {
		return hashOfCampaign(s.String())
	}
	h := hashOfBase(s.base) + (uint64(s.index)<<2|uint64(s.kind)+1)*0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	return h ^ h>>31
}

// hashOfBase returns the lower half of a base, because that half is random.
func hashOfBase(b notify.Base) uint64 { return binary.LittleEndian.Uint64(b[8:]) }

func hashOfCampaign(s string) uint64 { return notify.HashUser([]byte(s)) }
