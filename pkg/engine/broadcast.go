package engine

import "context"

// Broadcast sends short messages to all processes that listen at the moment of the send. It
// stores no message. A listener misses every message that is sent while the listener is
// disconnected.
type Broadcast interface {
	// Send sends message to every listener of channel. It does not report whether a
	// listener exists.
	Send(ctx context.Context, channel string, message []byte) error
	// Listen calls onReady when it has begun to listen. After that it calls fn with each
	// message that is sent to channel, one message at a time. It returns nil when ctx ends,
	// or an error when the engine fails. After an error, messages may be lost until the
	// caller calls Listen again. fn must not keep its argument message after fn returns.
	Listen(ctx context.Context, channel string, onReady func(), fn func(message []byte)) error
}
