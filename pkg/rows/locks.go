package rows

import (
	"context"
	"slices"
	"sync"
)

// Locks serialises read-modify-writes of the same key. Different keys go on
// concurrently and share an fsync.
type Locks struct {
	failed <-chan struct{}
	cause  func() error
	ended  func(context.Context) error

	mu   sync.Mutex
	held map[string]*keyLock
}

type keyLock struct {
	sem  chan struct{}
	refs int
}

// NewLocks returns locks. Once failed is closed, Lock returns the error that cause
// returns. ended returns the error of a caller whose context has ended.
func NewLocks(failed <-chan struct{}, cause func() error, ended func(context.Context) error) *Locks {
	return &Locks{failed: failed, cause: cause, ended: ended, held: map[string]*keyLock{}}
}

// Lock takes the keys, in an order that cannot deadlock, and returns what
// releases them. It gives up when the context ends or the store fails.
func (k *Locks) Lock(ctx context.Context, keys ...string) (unlock func(), err error) {
	if err := k.cause(); err != nil {
		return nil, err // no write begins, whatever a read would say
	}
	if len(keys) > 1 {
		keys = slices.Clone(keys)
		slices.Sort(keys)
		keys = slices.Compact(keys)
	}
	for i, key := range keys {
		if err := k.take(ctx, key); err != nil {
			k.release(keys[:i])
			return nil, err
		}
	}
	return func() { k.release(keys) }, nil
}

// Settled waits until the keys are free: what was read of them before is durable then.
// They nearly always are, so it takes one mutex for all keys.
func (k *Locks) Settled(ctx context.Context, keys []string) error {
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
			return err
		}
		k.release([]string{key})
	}
	return nil
}

func (k *Locks) take(ctx context.Context, key string) error {
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
		err = k.ended(ctx)
	case <-k.failed:
		err = k.cause()
	}
	k.mu.Lock()
	k.unref(key, l)
	k.mu.Unlock()
	return err
}

func (k *Locks) release(keys []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		l := k.held[key]
		<-l.sem
		k.unref(key, l)
	}
}

// unref must be called with mu held.
func (k *Locks) unref(key string, l *keyLock) {
	if l.refs--; l.refs == 0 {
		delete(k.held, key)
	}
}
