package users

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// callerAge is how long a cached caller is used without asking the store. It is also how soon a
// change binds in other processes.
const callerAge = time.Second

// maxCallers bounds how many callers are cached, in two generations.
const maxCallers = 20_000

// Callers reads callers through a cache. It asks the store for each caller once a second. While the
// store is down, the cached caller stays valid; a caller that is not in the cache gets
// notify.KindUnavailable. Put and List go to the store.
//
// A frozen store takes its whole time-out to fail. Once a read has failed, Get therefore answers
// from the cache at once, and one read a second, in a goroutine of its own, tries the store until
// it answers.
type Callers struct {
	engine.Callers

	mu          sync.Mutex
	young, old  map[string]knownCaller // young is filled; when it is full it becomes old
	storeDown   bool                   // the last read of the store failed; Get answers from the cache
	probing     bool                   // a goroutine of probeIfDown is reading the store
	lastFailure time.Time              // when a read failed last
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

// Get returns a caller that was read within the last second, from the cache or else from the store.
// While the store is down it returns the cached caller, however old. The caller of Get must not
// change the result.
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

// readStore reads a caller from the store and notes whether the store answered.
func (c *Callers) readStore(ctx context.Context, id string) (engine.Caller, bool, error) {
	at := time.Now() // before the read: what is stored during it is newer
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
		c.storeDown, c.lastFailure = true, time.Now() // after the read, which may take longer than callerAge to fail
	}
	return got, ok, err
}

// probeIfDown reports whether the store is down, so that Get answers from the cache. While it is,
// probeIfDown starts one read every callerAge in a goroutine, which ends with the read.
func (c *Callers) probeIfDown(ctx context.Context, id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.storeDown && !c.probing && time.Since(c.lastFailure) >= callerAge {
		c.probing = true
		go func() {
			_, _, _ = c.readStore(context.WithoutCancel(ctx), id) // readStore notes the result
			c.mu.Lock()
			defer c.mu.Unlock()
			c.probing = false
		}()
	}
	return c.storeDown
}

// Put stores a caller and expires the cached one, so that the next Get in this process reads the
// store.
func (c *Callers) Put(ctx context.Context, in engine.Caller) error {
	err := c.Callers.Put(ctx, in)
	if known, there := c.cached(in.ID); there {
		known.read = time.Time{}
		c.cache(in.ID, known)
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
		return // a read that began later was faster
	}
	c.cacheLocked(id, k)
}

// cacheLocked adds k to the young generation. The caller holds mu.
func (c *Callers) cacheLocked(id string, k knownCaller) {
	if len(c.young) >= maxCallers/2 {
		c.young, c.old = map[string]knownCaller{}, c.young
	}
	c.young[id] = k
}
