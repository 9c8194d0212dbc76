package engine

import "context"

// Broadcast sends short messages to the processes that are listening at that moment. It
// stores nothing: a listener that is disconnected misses what is sent meanwhile.
type Broadcast interface {
	// Send sends message to every listener of channel. It does not report whether there
	// was one.
	Send(ctx context.Context, channel string, message []byte) error
	// Listen calls ready once it is listening. From then on it calls fn with each message
	// sent to channel, one at a time. It returns nil when ctx ends, or an error when the
	// engine fails. After an error messages may be lost until the caller listens again.
	// fn must not keep message after it returns.
	Listen(ctx context.Context, channel string, ready func(), fn func(message []byte)) error
}
