package timer

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestModel parks timers, crashes, loses acknowledgements and takes the store and the log away, in
// random order. Every timer whose Park was acknowledged is released at least once, and none early
// (the rig checks this). In the end no row is left.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, func(c *Config) {
				c.Shards = rapid.IntRange(1, 4).Draw(rt, "shards")
				c.MaxPending = rapid.SampledFrom([]int{8, 1000}).Draw(rt, "max pending")
				c.Batch = rapid.SampledFrom([]int{2, 512}).Draw(rt, "batch")
			})
			r.run()
			acked := map[string]engine.Timer{}
			n := 0
			var undo []func()
			for _, op := range rapid.SliceOfN(rapid.IntRange(0, 9), 1, 40).Draw(rt, "ops") {
				switch {
				case op <= 4:
					var ts []engine.Timer
					for range rapid.IntRange(1, 20).Draw(rt, "timers") {
						n++
						in := rapid.OneOf(rapid.IntRange(-200, 5), rapid.IntRange(0, 300)).Draw(rt, "in")
						ts = append(ts, timerIn(fmt.Sprint(n), time.Duration(in)*time.Second))
					}
					ctx, stop := context.WithTimeout(context.Background(), time.Second)
					if r.e.Park(ctx, ts) == nil {
						for _, t := range ts {
							acked[string(t.ID)] = t
						}
					}
					stop()
				case op == 5:
					r.crash()
					wait(time.Duration(rapid.IntRange(0, 200).Draw(rt, "down")) * time.Second)
					r.run()
				case op == 6:
					undo = append(undo, r.plan.Add(faulty.Rule{
						Method: rapid.SampledFrom([]string{"Timers.*", "Timers.Put", "Timers.Scan", "Timers.Advance", "Timers.Drop"}).Draw(rt, "method"),
						Times:  rapid.IntRange(1, 20).Draw(rt, "times"), Err: faulty.ErrDown,
						Lost: rapid.SampledFrom([]faulty.Loss{faulty.NotApplied, faulty.Applied}).Draw(rt, "lost"),
					}))
				case op == 7:
					times := rapid.IntRange(1, 10).Draw(rt, "refusals")
					r.setFail(func([]engine.Timer) error {
						if times--; times < 0 {
							return nil
						}
						return notify.Unavailable("log", 0, nil)
					})
				default:
					wait(time.Duration(rapid.IntRange(0, 90_000).Draw(rt, "ms")) * time.Millisecond)
				}
			}
			for _, f := range undo {
				f()
			}
			r.setFail(nil)
			wait(10 * time.Minute)
			for id, x := range acked {
				if len(r.times(id)) == 0 {
					rt.Errorf("%s (due %s ago) was never released", id, time.Since(time.UnixMilli(x.FireAt)))
				}
			}
			// The next take-over removes what a Put has left in a closed minute.
			r.crash()
			r.run()
			wait(time.Minute)
			if left := r.left(); left != 0 {
				rt.Errorf("%d rows left", left)
			}
			if p := r.e.Pending(); p != 0 {
				rt.Errorf("%d timers pending", p)
			}
			r.crash()
		})
	})
}
