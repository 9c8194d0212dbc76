package prefs

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// callerAge is how long a caller's record is believed without asking, and so how
// soon a change binds in other processes.
const callerAge = time.Second

// maxCallers bounds how many records are held, in two generations.
const maxCallers = 20_000

// Callers reads callers through a cache: each is asked for once a second, and while
// the store is away what was known of it holds. Of who was never asked for nothing is
// known: notify.KindUnavailable. Put and List are the store's.
type Callers struct {
	engine.Callers

	mu         sync.Mutex
	young, old map[string]knownCaller // the older goes when the younger is full
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

// Get returns what was known of a caller within the last second; while the store is
// away, what was known last. What it returns is not to be changed.
func (c *Callers) Get(ctx context.Context, id string) (engine.Caller, bool, error) {
	known, there := c.known(id)
	if there && time.Since(known.read) < callerAge {
		return known.Caller, known.ok, nil
	}
	at := time.Now() // before: what is stored while it is asked is newer
	got, ok, err := c.Callers.Get(ctx, id)
	switch {
	case err == nil:
		c.keep(id, knownCaller{got, ok, at})
	case there && notify.KindOf(err) == notify.KindUnavailable && ctx.Err() == nil:
		known.read = at // nobody waits for it again within a second
		c.keep(id, known)
		return known.Caller, known.ok, nil
	}
	return got, ok, err
}

// Put stores, and forgets what was known: the next Get here asks.
func (c *Callers) Put(ctx context.Context, in engine.Caller) error {
	err := c.Callers.Put(ctx, in)
	if known, there := c.known(in.ID); there {
		known.read = time.Time{}
		c.keep(in.ID, known)
	}
	return err
}

func (c *Callers) known(id string) (knownCaller, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.young[id]
	if !ok {
		if k, ok = c.old[id]; ok {
			c.store(id, k)
		}
	}
	return k, ok
}

func (c *Callers) keep(id string, k knownCaller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if was, ok := c.young[id]; ok && was.Version > k.Version {
		return // somebody who asked later was faster
	}
	c.store(id, k)
}

// store needs the lock.
func (c *Callers) store(id string, k knownCaller) {
	if len(c.young) >= maxCallers/2 {
		c.young, c.old = map[string]knownCaller{}, c.young
	}
	c.young[id] = k
}
