package users

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// callerAge is how long Get uses a cached caller without reading the store. So a change of a caller
// takes effect in other processes within this time.
const callerAge = time.Second

// maxCallers is the largest number of cached callers, in the maps young and old together.
const maxCallers = 20_000

// Callers reads callers through a cache. It reads each caller from the store at most once a second.
// While the store is down, a cached caller stays valid. For a caller that is not in the cache, Get
// then returns notify.KindUnavailable. Put and List use the store directly.
//
// A read of a frozen store fails only after its whole timeout. So after one failed read, Get answers
// from the cache at once. Meanwhile a goroutine reads the store once a second, until the store
// answers.
type Callers struct {
	engine.Callers

	mu sync.Mutex
	// New callers are added to the map young. When young is full, it becomes old, and the callers
	// in the previous old map are forgotten.
	young, old map[string]knownCaller
	// storeDown means that the last read of the store failed. Then Get answers from the cache.
	storeDown bool
	// probing means that a goroutine of probeIfDown is reading the store.
	probing     bool
	lastFailure time.Time // when a read last failed
}

type knownCaller struct {
	engine.Caller
	ok   bool
	read time.Time
}

// NewCallers returns Callers over a store.
func NewCallers(store engine.Callers) *Callers {
	return &Callers{Callers: store, young: map[string]knownCaller{}}
}

// Get returns a caller that was read from the store within the last second. If the cache has no
// such caller, Get reads the store. While the store is down, Get returns the cached caller, however
// old it is. The code that calls Get must not change the result.
func (c *Callers) Get(ctx context.Context, id string) (engine.Caller, bool, error) {
	known, there := c.cached(id)
	if there && time.Since(known.read) < callerAge {
		return known.Caller, known.ok, nil
	}
	if there && c.probeIfDown(ctx, id) {
		return known.Caller, known.ok, nil
	}
	got, ok, err := c.readStore(ctx, id)
	if there && notify.KindOf(err) == notify.KindUnavailable && ctx.Err() == nil {
		return known.Caller, known.ok, nil
	}
	return got, ok, err
}

// readStore reads a caller from the store and records whether the store answered.
func (c *Callers) readStore(ctx context.Context, id string) (engine.Caller, bool, error) {
	at := time.Now() // take the time before the read, because the read may miss a change that is stored meanwhile
	got, ok, err := c.Callers.Get(ctx, id)
	if err == nil {
		c.cache(id, knownCaller{got, ok, at})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case notify.KindOf(err) != notify.KindUnavailable:
		c.storeDown = false
	case ctx.Err() == nil:
		// Take the time after the failed read, not before it. A read may need longer than callerAge
		// to fail, and then the next read would start at once.
		c.storeDown, c.lastFailure = true, time.Now()
	}
	return got, ok, err
}

// probeIfDown reports whether the store is down, so that Get answers from the cache. While the
// store is down, probeIfDown starts a read every callerAge. Each read runs in its own goroutine,
// which ends with the read.
func (c *Callers) probeIfDown(ctx context.Context, id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.storeDown && !c.probing && time.Since(c.lastFailure) >= callerAge {
		c.probing = true
		go func() {
			_, _, _ = c.readStore(context.WithoutCancel(ctx), id) // readStore records the result
			c.mu.Lock()
			defer c.mu.Unlock()
			c.probing = false
		}()
	}
	return c.storeDown
}

// Put stores a caller and makes the cached caller expire. So the next Get in this process reads the
// store.
func (c *Callers) Put(ctx context.Context, caller engine.Caller) error {
	err := c.Callers.Put(ctx, caller)
	if known, there := c.cached(caller.ID); there {
		known.read = time.Time{}
		c.cache(caller.ID, known)
	}
	return err
}

func (c *Callers) cached(id string) (knownCaller, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.young[id]
	if !ok {
		if k, ok = c.old[id]; ok {
			c.cacheLocked(id, k)
		}
	}
	return k, ok
}

func (c *Callers) cache(id string, k knownCaller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if was, ok := c.young[id]; ok && was.Version > k.Version {
		return // a read that began later has already cached a newer version
	}
	c.cacheLocked(id, k)
}

// cacheLocked adds a caller to the map young. c.mu must be held.
func (c *Callers) cacheLocked(id string, k knownCaller) {
	if len(c.young) >= maxCallers/2 {
		c.young, c.old = map[string]knownCaller{}, c.young
	}
	c.young[id] = k
}
