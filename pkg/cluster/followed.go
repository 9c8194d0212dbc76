package cluster

import (
	"context"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
)

// followed is a map that operators change through one process, and that every process with the same
// store applies. The map is stored as one row of engine.Meta.
type followed[V any] struct {
	meta engine.Meta
	name string // name of the row
	// apply applies the stored map to this process. It is called with mu held, and must not change
	// the map.
	apply func(stored map[string]V)

	mu     sync.Mutex   // guards stored, and orders calls of apply
	stored map[string]V // result of the last read; replaced, never changed
}

// Follow reads the stored map and applies it.
func (f *followed[V]) Follow(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	stored, _, err := engine.ReadMetaMap[V](ctx, f.meta, f.name)
	return f.applyLocked(stored, err)
}

// set changes the stored map and applies it. When set returns nil, the change is durable, even if
// other processes change the map at the same time. For the rules of the function change, see
// engine.ChangeMetaMap.
func (f *followed[V]) set(ctx context.Context, change func(all map[string]V) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	stored, err := engine.ChangeMetaMap(ctx, f.meta, f.name, change)
	return f.applyLocked(stored, err)
}

func (f *followed[V]) applyLocked(stored map[string]V, err error) error {
	if err == nil {
		f.stored = stored
		f.apply(stored)
	}
	return err
}

// get returns the value of a key from the last read.
func (f *followed[V]) get(key string) (v V, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, ok = f.stored[key]
	return v, ok
}
