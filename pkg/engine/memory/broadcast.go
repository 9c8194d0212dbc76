package memory

import (
	"bytes"
	"context"
	"sync"
)

// Broadcast sends messages to the listeners of this process.
type Broadcast struct {
	mu        sync.Mutex             // guards listeners and every listener.waiting
	listeners map[string][]*listener // by channel
}

// listener has the messages for one call of Listen.
type listener struct {
	wake    chan struct{} // of size 1; contains a value if waiting may not be empty
	waiting [][]byte      // messages that Listen has not removed yet; guarded by Broadcast.mu
}

// NewBroadcast returns a Broadcast without listeners.
func NewBroadcast() *Broadcast { return &Broadcast{listeners: map[string][]*listener{}} }

func (b *Broadcast) Send(ctx context.Context, channel string, message []byte) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.listeners[channel] {
		l.waiting = append(l.waiting, bytes.Clone(message))
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

func (b *Broadcast) Listen(ctx context.Context, channel string, onReady func(), fn func(message []byte)) error {
	l := &listener{wake: make(chan struct{}, 1)}
	b.mu.Lock()
	b.listeners[channel] = append(b.listeners[channel], l)
	b.mu.Unlock()
	defer b.removeListener(channel, l)
	onReady()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		}
		b.mu.Lock()
		messages := l.waiting
		l.waiting = nil
		b.mu.Unlock()
		for _, m := range messages {
			if ctx.Err() == nil {
				fn(m)
			}
		}
	}
}

func (b *Broadcast) removeListener(channel string, l *listener) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var others []*listener
	for _, o := range b.listeners[channel] {
		if o != l {
			others = append(others, o)
		}
	}
	if b.listeners[channel] = others; others == nil {
		delete(b.listeners, channel)
	}
}
