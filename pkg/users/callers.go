package users

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
//
// A store that is frozen takes as long as its time-out to fail. Once a question has
// failed, known callers are therefore answered at once, and one question a second
// tries the store beside them until it answers.
type Callers struct {
	engine.Callers

	mu         sync.Mutex
	young, old map[string]knownCaller // the older goes when the younger is full
	away       bool                   // the last question failed: the store is tried beside the answers
	trying     bool                   // a goroutine of Get asks the store
	tried      time.Time              // when a question failed last
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
	if there && c.tryBeside(ctx, id) {
		return known.Caller, known.ok, nil
	}
	got, ok, err := c.ask(ctx, id)
	if there && notify.KindOf(err) == notify.KindUnavailable && ctx.Err() == nil {
		return known.Caller, known.ok, nil
	}
	return got, ok, err
}

// ask reads a caller from the store and notes whether the store answered.
func (c *Callers) ask(ctx context.Context, id string) (engine.Caller, bool, error) {
	at := time.Now() // before: what is stored while it is asked is newer
	got, ok, err := c.Callers.Get(ctx, id)
	if err == nil {
		c.keep(id, knownCaller{got, ok, at})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case notify.KindOf(err) != notify.KindUnavailable:
		c.away = false
	case ctx.Err() == nil:
		c.away, c.tried = true, time.Now() // after: a question may take longer than callerAge to fail
	}
	return got, ok, err
}

// tryBeside reports whether the store is away, so that Get answers with what is
// known. Once in callerAge it asks the store in a goroutine, which ends with the
// question.
func (c *Callers) tryBeside(ctx context.Context, id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away && !c.trying && time.Since(c.tried) >= callerAge {
		c.trying = true
		go func() {
			_, _, _ = c.ask(context.WithoutCancel(ctx), id) // ask notes what came of it
			c.mu.Lock()
			defer c.mu.Unlock()
			c.trying = false
		}()
	}
	return c.away
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
