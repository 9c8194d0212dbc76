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
	figureInterval = 2 * time.Second // between two reads of the value
	figureTTL      = time.Minute     // of the value; it is renewed long before
)

// Figure is a value that one process finds out for all, such as the lag of the consumer
// groups. If each process asked the servers itself, the load at rest would grow with
// processes times partitions. The process that holds the lease under the figure's name finds
// the value out and publishes it as a heartbeat. The others read it when it has changed.
type Figure[T any] struct {
	Beats engine.Heartbeats
	Lease engine.Lease
	Owner string // this process
	Name  string
	Log   *slog.Logger
}

func (f *Figure[T]) groupName() string { return "figure:" + f.Name }

// Find returns a part that calls ask in one process at a time, with a pause between two
// calls, and publishes the result to the other processes. After an error of ask they keep
// the last value.
func (f *Figure[T]) Find(pause time.Duration, ask func(context.Context) (T, error)) func(context.Context) error {
	return Alone(f.Lease, f.Owner, f.Name, func(ctx context.Context) error {
		for ctx.Err() == nil {
			v, err := ask(ctx)
			var raw []byte
			if err == nil {
				raw, err = json.Marshal(v)
			}
			if err == nil {
				call, stop := context.WithTimeout(ctx, figureInterval)
				_, err = f.Beats.Beat(call, f.groupName(), f.Owner, string(raw), figureTTL)
				stop()
			}
			if err != nil && ctx.Err() == nil {
				f.Log.Warn("a figure could not be found out or published; the other processes keep its last value", "figure", f.Name, "err", err)
			}
			notify.Sleep(ctx, pause)
		}
		call, stop := context.WithTimeout(context.WithoutCancel(ctx), figureInterval)
		defer stop()
		_ = f.Beats.Leave(call, f.groupName(), f.Owner) // if this fails, the value expires
		return nil
	})
}

// Follow returns a part that calls take with each new value.
func (f *Figure[T]) Follow(take func(T)) func(context.Context) error {
	return func(ctx context.Context) error {
		for known := int64(0); ctx.Err() == nil; notify.Sleep(ctx, figureInterval) {
			call, stop := context.WithTimeout(ctx, figureInterval)
			told, version, err := f.Beats.Alive(call, f.groupName(), known)
			stop()
			if err != nil || version == known {
				continue // while Redis is away, the last value stays
			}
			known = version
			var last *engine.Heartbeat // the youngest: a former finder that was paused may have beaten too
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
