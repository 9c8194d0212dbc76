package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	client "github.com/redis/go-redis/v9"
)

// listenQuiet is how long a listener hears nothing before it asks Redis whether it is
// there.
const listenQuiet = 5 * time.Second

// broadcast is pub/sub. A listener has a connection of its own.
type broadcast struct{ s *Store }

func (b broadcast) channel(name string) string { return b.s.key("channel:" + name) }

// Send hands message to all that listen to channel.
func (b broadcast) Send(ctx context.Context, channel string, message []byte) error {
	if ctx.Err() != nil {
		return translate(context.Cause(ctx))
	}
	return translate(b.s.c.Publish(ctx, b.channel(channel), message).Err())
}

// Listen calls fn with each message that is sent to channel from the call of ready on,
// until ctx ends or the connection fails.
func (b broadcast) Listen(ctx context.Context, channel string, ready func(), fn func(message []byte)) error {
	ps := b.s.c.Subscribe(ctx)
	ended := make(chan struct{})
	defer close(ended)
	b.s.followers.Go(func() {
		select {
		case <-ctx.Done():
		case <-b.s.closing:
		case <-ended:
		}
		_ = ps.Close() // ends the read
	})
	err := ps.Subscribe(ctx, b.channel(channel))
	for wait, asked := b.s.cfg.Timeout, true; err == nil; {
		var m any
		m, err = ps.ReceiveTimeout(ctx, wait)
		switch m := m.(type) {
		case *client.Subscription:
			ready()
		case *client.Message:
			fn([]byte(m.Payload))
		}
		var late net.Error
		switch {
		case closed(b.s.closing):
			err = client.ErrClosed
		case err == nil:
			wait, asked = listenQuiet, false
		case errors.As(err, &late) && late.Timeout() && !asked:
			err = ps.Ping(ctx)
			wait, asked = b.s.cfg.Timeout, true
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("listening to %s: %w", channel, translate(err))
}
