package outcomehook

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Asked knows which callers want every outcome of their notifications. It keeps a list of these
// callers in memory. Watch returns a wrapper of the store of callers. If a caller is changed
// through this wrapper, the change takes effect in this process at once. In other processes a
// change takes effect within AskedEvery.
type Asked struct {
	callers engine.Callers
	every   time.Duration
	log     *slog.Logger
	all     atomic.Pointer[map[string]struct{}]
	loading sync.Mutex // held during Load, so that an older list never replaces a newer list
}

// AskedEvery is the interval at which the callers are read again.
const AskedEvery = 5 * time.Second

// NewAsked returns an Asked with an empty list. Load fills the list.
func NewAsked(callers engine.Callers, log *slog.Logger) *Asked {
	a := &Asked{callers: callers, every: AskedEvery, log: log}
	a.all.Store(&map[string]struct{}{})
	return a
}

// Tells returns true if the caller wants every outcome. It may be called from any goroutine and is
// fast.
func (a *Asked) Tells(caller string) bool {
	_, ok := (*a.all.Load())[caller]
	return ok
}

// Any reports whether at least one caller wants every outcome.
func (a *Asked) Any() bool { return len(*a.all.Load()) > 0 }

// Load reads the callers and replaces the list. If it returns an error, the earlier list remains in
// use.
func (a *Asked) Load(ctx context.Context) error {
	a.loading.Lock()
	defer a.loading.Unlock()
	cs, err := a.callers.List(ctx)
	if err != nil {
		return err
	}
	all := map[string]struct{}{}
	for i := range cs {
		if wantsAllOutcomes(&cs[i]) {
			all[cs[i].ID] = struct{}{}
		}
	}
	a.all.Store(&all)
	return nil
}

// wantsAllOutcomes reports whether notifyd sends every outcome to the caller.
func wantsAllOutcomes(c *engine.Caller) bool {
	return c.OutcomesURL != "" && c.OutcomesOf == engine.OutcomesAll && !c.Disabled
}

// Run reads the callers again after each interval (AskedEvery) until ctx ends, and then returns
// nil.
func (a *Asked) Run(ctx context.Context) error {
	failing := false
	for notify.Sleep(ctx, a.every) {
		err := a.Load(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			a.log.Warn("cannot read the callers; until the read works, this process does not notice which callers turned all outcomes on or off", "err", err)
		}
		failing = err != nil
	}
	return nil
}

// Watch returns a wrapper of the store of callers. After each Put, the wrapper reads the list
// again, so that the change has taken effect in this process when Put returns. If the list cannot
// be read, the change takes effect at the next successful read.
func (a *Asked) Watch(callers engine.Callers) engine.Callers { return watchedCallers{callers, a} }

type watchedCallers struct {
	engine.Callers
	a *Asked
}

func (w watchedCallers) Put(ctx context.Context, c engine.Caller) error {
	if err := w.Callers.Put(ctx, c); err != nil {
		return err
	}
	// The change is stored even if Load fails. Then Run reads the list later.
	if err := w.a.Load(ctx); err != nil {
		w.a.log.Warn("a caller was changed, but the list of callers cannot be read now; the change of the caller's outcomes takes effect when the list is next read", "caller", c.ID, "err", err)
	}
	return nil
}
