package cluster

import (
	"context"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
)

// followed is a map that operators change through one process, and that every process
// over the same store follows. It is one row of engine.Meta.
type followed[V any] struct {
	meta engine.Meta
	name string // of the row
	// apply makes what is stored so in this process. It is called with mu held.
	apply func(stored map[string]V)

	mu     sync.Mutex
	stored map[string]V // as read last; nobody changes the map
}

// Follow reads what any process has changed, and applies it.
func (f *followed[V]) Follow(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	stored, _, err := engine.ReadMetaMap[V](ctx, f.meta, f.name)
	return f.takeLocked(stored, err)
}

// set changes the stored map and applies it. The change is durable when set returns nil,
// whatever other processes change at the same moment. For change see engine.ChangeMetaMap.
func (f *followed[V]) set(ctx context.Context, change func(all map[string]V) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	stored, err := engine.ChangeMetaMap(ctx, f.meta, f.name, change)
	return f.takeLocked(stored, err)
}

func (f *followed[V]) takeLocked(stored map[string]V, err error) error {
	if err == nil {
		f.stored = stored
		f.apply(stored)
	}
	return err
}

// get returns a value as it was read last.
func (f *followed[V]) get(key string) (v V, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, ok = f.stored[key]
	return v, ok
}
