package redis

import (
	"context"
	"sync/atomic"

	client "github.com/redis/go-redis/v9"
)

// Counts contains how many commands and round trips a Store has sent since Open. A script
// counts as one command.
type Counts struct {
	Commands   int64
	RoundTrips int64 // a pipeline is one round trip, however many commands it has
}

// counter is a hook of the client that counts commands and round trips.
type counter struct{ commands, trips atomic.Int64 }

// DialHook implements client.Hook.
func (c *counter) DialHook(next client.DialHook) client.DialHook { return next }

// ProcessHook implements client.Hook.
func (c *counter) ProcessHook(next client.ProcessHook) client.ProcessHook {
	return func(ctx context.Context, cmd client.Cmder) error {
		c.commands.Add(1)
		c.trips.Add(1)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements client.Hook.
func (c *counter) ProcessPipelineHook(next client.ProcessPipelineHook) client.ProcessPipelineHook {
	return func(ctx context.Context, cmds []client.Cmder) error {
		c.commands.Add(int64(len(cmds)))
		c.trips.Add(1)
		return next(ctx, cmds)
	}
}
