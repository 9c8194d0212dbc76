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

// Asked knows which callers are told of every end of their notifications. What it
// knows is a copy: a caller's change binds at once where it is made through Watch,
// elsewhere within Every.
type Asked struct {
	callers engine.Callers
	every   time.Duration
	log     *slog.Logger
	all     atomic.Pointer[map[string]struct{}]
	loading sync.Mutex // a load that began earlier must not end later
}

// AskedEvery is how often the callers are read.
const AskedEvery = 5 * time.Second

// NewAsked returns an Asked that knows of nobody before Load.
func NewAsked(callers engine.Callers, log *slog.Logger) *Asked {
	a := &Asked{callers: callers, every: AskedEvery, log: log}
	a.all.Store(&map[string]struct{}{})
	return a
}

// Tells reports whether a caller is told of every end. It may be called from any
// goroutine, as often as one likes.
func (a *Asked) Tells(caller string) bool {
	_, ok := (*a.all.Load())[caller]
	return ok
}

// Any reports whether anybody is.
func (a *Asked) Any() bool { return len(*a.all.Load()) > 0 }

// Load reads the callers.
func (a *Asked) Load(ctx context.Context) error {
	a.loading.Lock()
	defer a.loading.Unlock()
	cs, err := a.callers.List(ctx)
	if err != nil {
		return err
	}
	all := map[string]struct{}{}
	for i := range cs {
		if wants(&cs[i]) {
			all[cs[i].ID] = struct{}{}
		}
	}
	a.all.Store(&all)
	return nil
}

// wants reports whether a caller is told of every end.
func wants(c *engine.Caller) bool {
	return c.OutcomesURL != "" && c.OutcomesOf == engine.OutcomesAll && !c.Disabled
}

// Run reads the callers until ctx ends, and returns nil then.
func (a *Asked) Run(ctx context.Context) error {
	failing := false
	for notify.Sleep(ctx, a.every) {
		err := a.Load(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			a.log.Warn("callers cannot be read; who is told of outcomes stays as it was", "err", err)
		}
		failing = err != nil
	}
	return nil
}

// Watch returns callers whose Put binds before it returns.
func (a *Asked) Watch(callers engine.Callers) engine.Callers { return watchedCallers{callers, a} }

type watchedCallers struct {
	engine.Callers
	a *Asked
}

func (w watchedCallers) Put(ctx context.Context, c engine.Caller) error {
	if err := w.Callers.Put(ctx, c); err != nil {
		return err
	}
	// It is stored whatever Load says; Run reads it again.
	if err := w.a.Load(ctx); err != nil {
		w.a.log.Warn("a caller's change of outcomes binds later", "caller", c.ID, "err", err)
	}
	return nil
}
