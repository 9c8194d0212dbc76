package pebble

import (
	"context"
	"slices"
	"sync"
)

// keyLocks serialises read-modify-writes of the same key. Different keys go on
// concurrently and share an fsync.
type keyLocks struct {
	latch *latch

	mu   sync.Mutex
	held map[string]*keyLock
}

type keyLock struct {
	sem  chan struct{}
	refs int
}

func newKeyLocks(l *latch) *keyLocks {
	return &keyLocks{latch: l, held: map[string]*keyLock{}}
}

// lock takes the keys, in an order that cannot deadlock, and returns what
// releases them. It gives up when the context ends or the store fails.
func (k *keyLocks) lock(ctx context.Context, keys ...string) (unlock func(), err error) {
	if err := k.latch.cause(); err != nil {
		return nil, translate(err) // no write begins, whatever a read would say
	}
	if len(keys) > 1 {
		keys = slices.Clone(keys)
		slices.Sort(keys)
		keys = slices.Compact(keys)
	}
	for i, key := range keys {
		if err := k.take(ctx, key); err != nil {
			k.release(keys[:i])
			return nil, translate(err)
		}
	}
	return func() { k.release(keys) }, nil
}

// settled waits until nobody holds the keys: what was read of them before is
// durable then. Nearly always nobody does, and it takes one lock for all.
func (k *keyLocks) settled(ctx context.Context, keys []string) error {
	var busy []string
	k.mu.Lock()
	for _, key := range keys {
		if k.held[key] != nil {
			busy = append(busy, key)
		}
	}
	k.mu.Unlock()
	for _, key := range busy {
		if err := k.take(ctx, key); err != nil {
			return translate(err)
		}
		k.release([]string{key})
	}
	return nil
}

func (k *keyLocks) take(ctx context.Context, key string) error {
	k.mu.Lock()
	l := k.held[key]
	if l == nil {
		l = &keyLock{sem: make(chan struct{}, 1)}
		k.held[key] = l
	}
	l.refs++
	k.mu.Unlock()
	var err error
	select {
	case l.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-k.latch.failed:
		err = k.latch.cause()
	}
	k.mu.Lock()
	k.unref(key, l)
	k.mu.Unlock()
	return err
}

func (k *keyLocks) release(keys []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		l := k.held[key]
		<-l.sem
		k.unref(key, l)
	}
}

// unref must be called with mu held.
func (k *keyLocks) unref(key string, l *keyLock) {
	if l.refs--; l.refs == 0 {
		delete(k.held, key)
	}
}
