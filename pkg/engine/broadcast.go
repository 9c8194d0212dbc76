package engine

import "context"

// Broadcast hands short messages to the processes that listen at the moment. It keeps
// nothing: a message that is sent while a listener is away does not reach it.
type Broadcast interface {
	// Send hands message to all that listen to channel. It does not know whether any does.
	Send(ctx context.Context, channel string, message []byte) error
	// Listen calls fn with each message that is sent to channel from the call of ready on,
	// one after the other, until ctx ends (nil) or the engine fails (the error). What is sent
	// then may be lost: listen again. fn keeps no message after its return.
	Listen(ctx context.Context, channel string, ready func(), fn func(message []byte)) error
}
