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

// Cancels is this process's set of cancelled requests, receivers and campaigns. It follows a
// CancelStore as the Service follows profiles.
//
// The store keeps a cancellation for as long as a timer behind it may wait and its outcome is kept.
// The memory here is bounded, however many there are: at most the latest MaxCancels scopes, 57
// bytes each (24 in a slot, of which a map fills half in the worst case), and 32 bytes a scope for
// a filter over all scopes that ever were. With the default, 1,048,576, that is 60 + 32 MiB. A
// scope that was dropped from memory but may be in the filter is read from the store, which takes
// some microseconds. The filter is right for about 99 of 100 other scopes while there are fewer
// than 8 times MaxCancels. With more it is slower, not wrong.
//
// Maybe costs one load while there are no cancellations, and otherwise one filter look-up, 3 ns,
// for a request without a cancelled part.
type Cancels struct {
	cfg   Config
	store CancelStore

	scopeCount    atomic.Int64 // number of scopes
	campaignCount atomic.Int64 // number of campaigns among them
	filter        atomic.Pointer[filter]

	follower follower

	mu         sync.RWMutex
	young, old map[cancelScope]struct{} // at most half of MaxCancels each; when young is full it becomes old
	dropped    bool                     // the store has scopes that are in neither map
}

// cancelScope names what was cancelled.
type cancelScope struct {
	base  notify.Base
	index uint32
	kind  uint8
}

const (
	scopeReceiver uint8 = iota
	scopeRequest        // or a single notification
	scopeCampaign
)

// fullFilterFactor times MaxCancels is how many scopes the filter has room for once scopes were
// dropped from memory. It cannot grow after that: a larger filter would have to be built from all
// scopes in the store.
const fullFilterFactor = 8

// NewCancels returns a follower of a store. The caller must run Run.
func NewCancels(store CancelStore, cfg Config) (*Cancels, error) {
	cfg = setting.Fill(cfg)
	if err := setting.Err("prefs", &cfg); err != nil {
		return nil, err
	}
	c := &Cancels{cfg: cfg, store: store, young: map[cancelScope]struct{}{}}
	c.filter.Store(newFilter(0))
	return c, nil
}

// Cancelled reports whether the receiver with this index must not be called any more, because the
// receiver, its request or its campaign was cancelled.
func (c *Cancels) Cancelled(e *notify.Envelope, index uint32) bool {
	if e.Cause == notify.CauseCancelled {
		return true
	}
	f, request, campaign := c.filterHits(e)
	return (request || campaign) && c.lookUp(f, e, index, request, campaign)
}

// Maybe reports whether Cancelled may be true for a receiver of the envelope. One call of Maybe for
// an envelope saves a call of Cancelled for each receiver.
func (c *Cancels) Maybe(e *notify.Envelope) bool {
	_, request, campaign := c.filterHits(e)
	return request || campaign || e.Cause == notify.CauseCancelled
}

// filterHits reports for which of the envelope's scopes, the request and the campaign, the filter
// may have an entry.
func (c *Cancels) filterHits(e *notify.Envelope) (f *filter, request, campaign bool) {
	if c.scopeCount.Load() == 0 {
		return nil, false, false
	}
	f = c.filter.Load()
	request = f.mayContain(hashOfBase(e.Chunk.Base))
	campaign = e.Campaign != "" && c.campaignCount.Load() != 0 && f.mayContain(hashOfCampaign(e.Campaign))
	return f, request, campaign
}

// lookUp is Cancelled after the filter reported a possible entry for the request or the campaign.
func (c *Cancels) lookUp(f *filter, e *notify.Envelope, index uint32, request, campaign bool) bool {
	scopes := make([]cancelScope, 0, 3)
	if request {
		scopes = append(scopes, cancelScope{e.Chunk.Base, 0, scopeRequest})
		if e.Fan {
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

// inMemory reports whether a scope is in one of the maps. The caller holds mu.
func (c *Cancels) inMemory(s cancelScope) bool {
	if _, ok := c.young[s]; ok {
		return true
	}
	_, ok := c.old[s]
	return ok
}

// inStore looks up in the store the scopes that may have been dropped from memory. While the store
// cannot be read, a scope in the filter counts as cancelled, because nearly all of them are.
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

// Put stores a cancellation. It binds every Cancelled call of this process that begins after Put
// returns, and other processes within a second. A scope that is not ntf_<ULID>, ntf_<ULID>-<index>
// or cmp_<ULID> is notify.KindInvalid.
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

// Run follows cancellations until ctx ends. It then returns nil.
func (c *Cancels) Run(ctx context.Context) error {
	return c.follower.run(ctx, &c.cfg, "cancellations cannot be followed", nil, c.Follow)
}

// Follow applies all cancellations stored before the call. Run calls it.
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

// Age returns how long ago the set was known to hold every cancellation. Before the first time it
// returns the longest duration.
func (c *Cancels) Age(now time.Time) time.Duration { return c.follower.age(now) }

// Fresh reports whether the set is at most MaxAge old.
func (c *Cancels) Fresh(now time.Time) bool { return c.Age(now) <= c.cfg.MaxAge }

// addScope adds a scope.
//
// It writes the filter last: a reader that finds the filter entry then waits for the lock and finds
// the scope.
func (c *Cancels) addScope(s cancelScope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inMemory(s) {
		return
	}
	if most := max(1, c.cfg.MaxCancels/2); len(c.young) >= most {
		if len(c.old) > 0 && !c.dropped { // the last moment at which all scopes are in memory
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

// rebuildFilter builds the filter from both maps, with room for n scopes. The caller holds mu.
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

// addToFilter adds a scope, and the fact that its request has one.
func addToFilter(f *filter, s cancelScope) {
	f.add(s.hash())
	if s.kind != scopeCampaign {
		f.add(hashOfBase(s.base))
	}
}

// parseScope parses the text of a scope; false if its form is unknown.
func parseScope(text string) (cancelScope, bool) {
	if rest, ok := strings.CutPrefix(text, "cmp_"); ok {
		base, err := notify.ParseBase(rest)
		return cancelScope{base, 0, scopeCampaign}, err == nil
	}
	id, err := notify.ParseID(text)
	if err != nil || !id.Fan {
		return cancelScope{id.Base, 0, scopeRequest}, err == nil
	}
	return cancelScope{id.Base, id.Index, scopeReceiver}, true
}

// String returns the text that parseScope parses.
func (s cancelScope) String() string {
	if s.kind == scopeCampaign {
		return "cmp_" + s.base.String()
	}
	return notify.ID{Base: s.base, Index: s.index, Fan: s.kind == scopeReceiver}.String()
}

// hash returns the filter hash of this scope alone. It differs from hashOfBase, which stands for
// all scopes of a request.
func (s cancelScope) hash() uint64 {
	if s.kind == scopeCampaign {
		return hashOfCampaign(s.String())
	}
	h := hashOfBase(s.base) + (uint64(s.index)<<2|uint64(s.kind)+1)*0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	return h ^ h>>31
}

// hashOfBase uses the lower half of a base, which is random.
func hashOfBase(b notify.Base) uint64 { return binary.LittleEndian.Uint64(b[8:]) }

func hashOfCampaign(s string) uint64 { return notify.HashUser([]byte(s)) }
