package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	client "github.com/redis/go-redis/v9"
)

// listenQuiet is how long a listener waits for a message before it pings Redis.
const listenQuiet = 5 * time.Second

// broadcast implements engine.Broadcast with pub/sub. Each listener has its own connection.
type broadcast struct{ s *Store }

func (b broadcast) channel(name string) string { return b.s.key("channel:" + name) }

// Send sends a message to every listener of a channel.
func (b broadcast) Send(ctx context.Context, channel string, message []byte) error {
	if ctx.Err() != nil {
		return translate(context.Cause(ctx))
	}
	return translate(b.s.c.Publish(ctx, b.channel(channel), message).Err())
}

// Listen calls onReady when Redis has confirmed the subscription. After that it calls fn with each
// message that is sent to the channel. It returns nil when ctx ends, or an error when the
// connection fails or the Store closes.
func (b broadcast) Listen(ctx context.Context, channel string, onReady func(), fn func(message []byte)) error {
	ps := b.s.c.Subscribe(ctx)
	returned := make(chan struct{}) // closed when Listen returns
	defer close(returned)
	b.s.followers.Go(func() {
		select {
		case <-ctx.Done():
		case <-b.s.closing:
		case <-returned:
		}
		_ = ps.Close() // also ends a ReceiveTimeout that is running
	})
	err := ps.Subscribe(ctx, b.channel(channel))
	// pinged is true while the answer to a Subscribe or Ping is missing. Redis must send this
	// answer within the timeout.
	for wait, pinged := b.s.cfg.Timeout, true; err == nil; {
		var m any
		m, err = ps.ReceiveTimeout(ctx, wait)
		switch m := m.(type) {
		case *client.Subscription:
			onReady()
		case *client.Message:
			fn([]byte(m.Payload))
		}
		var late net.Error
		switch {
		case closed(b.s.closing):
			err = client.ErrClosed
		case err == nil:
			wait, pinged = listenQuiet, false
		case errors.As(err, &late) && late.Timeout() && !pinged:
			err = ps.Ping(ctx)
			wait, pinged = b.s.cfg.Timeout, true
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("cannot listen to the channel %q: %w", channel, translate(err))
}
