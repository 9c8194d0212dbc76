package cluster

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	figureLook = 2 * time.Second // between two looks at what the finder told
	figureTTL  = time.Minute     // of what was told; it is told anew long before
)

// Figure is a value that one process finds out for all: how far the consumer groups are
// behind, for one. If each process asked the servers by itself, what they are asked at rest
// would grow with processes times partitions. The process that holds the lease of the
// figure's name finds it out and beats with it; the others read it when it has changed.
type Figure[T any] struct {
	Beats engine.Heartbeats
	Lease engine.Lease
	Owner string // this process
	Name  string
	Log   *slog.Logger
}

func (f *Figure[T]) group() string { return "figure:" + f.Name }

// Find returns a part that calls ask in one process at a time, with a pause between two
// calls, and tells the other processes what it returned. After an error of ask they keep
// what they know.
func (f *Figure[T]) Find(pause time.Duration, ask func(context.Context) (T, error)) func(context.Context) error {
	return Alone(f.Lease, f.Owner, f.Name, func(ctx context.Context) error {
		for ctx.Err() == nil {
			v, err := ask(ctx)
			var raw []byte
			if err == nil {
				raw, err = json.Marshal(v)
			}
			if err == nil {
				call, stop := context.WithTimeout(ctx, figureLook)
				_, err = f.Beats.Beat(call, f.group(), f.Owner, string(raw), figureTTL)
				stop()
			}
			if err != nil && ctx.Err() == nil {
				f.Log.Warn("what one process finds out for all cannot be told", "figure", f.Name, "err", err)
			}
			notify.Sleep(ctx, pause)
		}
		call, stop := context.WithTimeout(context.WithoutCancel(ctx), figureLook)
		defer stop()
		_ = f.Beats.Leave(call, f.group(), f.Owner) // else its time runs out
		return nil
	})
}

// Follow returns a part that calls take with each value that the finder tells.
func (f *Figure[T]) Follow(take func(T)) func(context.Context) error {
	return func(ctx context.Context) error {
		for known := int64(0); ctx.Err() == nil; notify.Sleep(ctx, figureLook) {
			call, stop := context.WithTimeout(ctx, figureLook)
			told, version, err := f.Beats.Alive(call, f.group(), known)
			stop()
			if err != nil || version == known {
				continue // while Redis is away, what was known stays
			}
			known = version
			var last *engine.Heartbeat // a finder that was paused may have told something too
			for i := range told {
				if last == nil || told[i].Age < last.Age {
					last = &told[i]
				}
			}
			var v T
			if last != nil && json.Unmarshal([]byte(last.Value), &v) == nil {
				take(v)
			}
		}
		return nil
	}
}
