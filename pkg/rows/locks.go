package rows

import (
	"context"
	"slices"
	"sync"
)

// Locks serialises the read-modify-writes of each key. Writers of different keys run
// concurrently, so one fsync can serve all of them.
type Locks struct {
	failed     <-chan struct{} // closed when the store has failed
	cause      func() error    // why the store has failed; nil while it is well
	contextErr func(context.Context) error

	mu   sync.Mutex          // guards held and every keyLock.refs
	held map[string]*keyLock // locks that a goroutine holds or waits for
}

type keyLock struct {
	sem  chan struct{} // of size 1; holds a value while a goroutine has the lock
	refs int           // the holder and the goroutines that wait
}

// NewLocks returns Locks of which no key is held. Once failed is closed, Lock returns the
// error that cause returns. If a caller's context ends, Lock returns ended of the context.
func NewLocks(failed <-chan struct{}, cause func() error, ended func(context.Context) error) *Locks {
	return &Locks{failed: failed, cause: cause, contextErr: ended, held: map[string]*keyLock{}}
}

// Lock locks the keys and returns a function that unlocks them. It takes them in
// ascending order, so that two callers cannot deadlock. It returns an error, and holds no
// key, if ctx ends or the store fails.
func (k *Locks) Lock(ctx context.Context, keys ...string) (unlock func(), err error) {
	if err := k.cause(); err != nil {
		return nil, err // a failed store begins no write, even if its reads still work
	}
	if len(keys) > 1 {
		keys = slices.Clone(keys)
		slices.Sort(keys)
		keys = slices.Compact(keys)
	}
	for i, key := range keys {
		if err := k.lockKey(ctx, key); err != nil {
			k.unlockKeys(keys[:i])
			return nil, err
		}
	}
	return func() { k.unlockKeys(keys) }, nil
}

// Settled waits until every key is free. Values that the caller read before are durable
// then, because a writer keeps its keys until its write is durable. Keys are nearly always
// free, so Settled first looks at all of them under one lock of mu.
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
		if err := k.lockKey(ctx, key); err != nil {
			return err
		}
		k.unlockKeys([]string{key})
	}
	return nil
}

func (k *Locks) lockKey(ctx context.Context, key string) error {
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
		err = k.contextErr(ctx)
	case <-k.failed:
		err = k.cause()
	}
	k.mu.Lock()
	k.unref(key, l)
	k.mu.Unlock()
	return err
}

func (k *Locks) unlockKeys(keys []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		l := k.held[key]
		<-l.sem
		k.unref(key, l)
	}
}

// unref drops one reference to l and forgets l with its last one. mu must be held.
func (k *Locks) unref(key string, l *keyLock) {
	if l.refs--; l.refs == 0 {
		delete(k.held, key)
	}
}
