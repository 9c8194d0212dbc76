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
	figureInterval = 2 * time.Second // time between two reads of the value
	figureTTL      = time.Minute     // TTL of the published value, which is published again long before
)

// Figure is a value that one process reads for all processes, such as the lag of the consumer
// groups. The process that holds the lease with the figure's name reads the value and publishes it
// as a heartbeat. The other processes read the heartbeat when it has changed. So the load on the
// servers does not grow with the number of processes.
type Figure[T any] struct {
	Beats engine.Heartbeats
	Lease engine.Lease
	Owner string // unique name of this process
	Name  string
	Log   *slog.Logger
}

func (f *Figure[T]) groupName() string { return "figure:" + f.Name }

// Find returns a function that every process runs. In the process that holds the lease, this
// function calls readValue again and again, and publishes each value to the other processes. The
// parameter pause is the time between two calls. If readValue returns an error, the other processes
// keep the last value.
func (f *Figure[T]) Find(pause time.Duration, readValue func(context.Context) (T, error)) func(context.Context) error {
	return Exclusive(f.Lease, f.Owner, f.Name, func(ctx context.Context) error {
		for ctx.Err() == nil {
			v, err := readValue(ctx)
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
				f.Log.Warn("a value for all processes could not be read or published; the other processes keep the last value", "figure", f.Name, "err", err)
			}
			notify.Sleep(ctx, pause)
		}
		call, stop := context.WithTimeout(context.WithoutCancel(ctx), figureInterval)
		defer stop()
		_ = f.Beats.Leave(call, f.groupName(), f.Owner) // if this fails, the value expires
		return nil
	})
}

// Follow returns a function that calls onValue with each new value until its context ends.
func (f *Figure[T]) Follow(onValue func(T)) func(context.Context) error {
	return func(ctx context.Context) error {
		for known := int64(0); ctx.Err() == nil; notify.Sleep(ctx, figureInterval) {
			call, stop := context.WithTimeout(ctx, figureInterval)
			told, version, err := f.Beats.Alive(call, f.groupName(), known)
			stop()
			if err != nil || version == known {
				continue // while Redis is unreachable, the last value is kept
			}
			known = version
			// last is the most recent heartbeat. There may also be a heartbeat of a process that
			// held the lease earlier.
			var last *engine.Heartbeat
			for i := range told {
				if last == nil || told[i].Age < last.Age {
					last = &told[i]
				}
			}
			var v T
			if last != nil && json.Unmarshal([]byte(last.Value), &v) == nil {
				onValue(v)
			}
		}
		return nil
	}
}
