package rows

import (
	"context"
	"slices"
	"sync"
)

// Locks has one lock for each key. A writer locks a key, reads its row, changes the row and
// writes it. So only one writer at a time changes a row. Writers of different keys run
// concurrently, so one fsync can make all their writes durable.
type Locks struct {
	failed     <-chan struct{} // closed when the store has failed
	cause      func() error    // returns why the store has failed; nil while the store works
	contextErr func(context.Context) error

	mu   sync.Mutex          // guards the map held and the field refs of every keyLock
	held map[string]*keyLock // locks that a goroutine holds or waits for
}

type keyLock struct {
	sem  chan struct{} // of size 1; contains a value while a goroutine has the lock
	refs int           // number of goroutines that have the lock or wait for it
}

// NewLocks returns Locks in which no key is locked. The parameter failed is a channel: after it is
// closed, Lock returns the result of cause(). If the context of a call ends, Lock returns the
// result of contextErr(ctx).
func NewLocks(failed <-chan struct{}, cause func() error, contextErr func(context.Context) error) *Locks {
	return &Locks{failed: failed, cause: cause, contextErr: contextErr, held: map[string]*keyLock{}}
}

// Lock locks the keys and returns a function that unlocks them. It locks the keys in
// ascending order, so that two callers cannot deadlock. If ctx ends or the store fails,
// Lock returns an error and unlocks the keys that it has locked.
func (k *Locks) Lock(ctx context.Context, keys ...string) (unlock func(), err error) {
	if err := k.cause(); err != nil {
		return nil, err // after a failure no write may begin, even if reads still work
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

// Settled waits until the current writers of the keys have unlocked them. A writer unlocks
// its keys only when its write is durable. So when Settled returns nil, the values that the
// caller read before the call are durable. Nearly always no key is locked. So Settled first
// checks all keys together, which locks mu only once.
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

// unref removes one reference to l. With the last reference it also removes l from the map of the
// keys in use (held). The caller must hold mu.
func (k *Locks) unref(key string, l *keyLock) {
	if l.refs--; l.refs == 0 {
		delete(k.held, key)
	}
}
