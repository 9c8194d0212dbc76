package memory

import (
	"bytes"
	"context"
	"sync"
)

// Broadcast hands messages to the listeners of one process.
type Broadcast struct {
	mu        sync.Mutex
	listeners map[string][]*listener // by channel
}

// listener has the messages that its Listen has not taken yet.
type listener struct {
	more    chan struct{}
	waiting [][]byte // guarded by Broadcast.mu
}

// NewBroadcast returns channels without listeners.
func NewBroadcast() *Broadcast { return &Broadcast{listeners: map[string][]*listener{}} }

func (b *Broadcast) Send(ctx context.Context, channel string, message []byte) error {
	if err := check(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.listeners[channel] {
		l.waiting = append(l.waiting, bytes.Clone(message))
		select {
		case l.more <- struct{}{}:
		default:
		}
	}
	return nil
}

func (b *Broadcast) Listen(ctx context.Context, channel string, ready func(), fn func(message []byte)) error {
	l := &listener{more: make(chan struct{}, 1)}
	b.mu.Lock()
	b.listeners[channel] = append(b.listeners[channel], l)
	b.mu.Unlock()
	defer b.leave(channel, l)
	ready()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.more:
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

func (b *Broadcast) leave(channel string, l *listener) {
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
