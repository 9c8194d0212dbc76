package trigger

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// hookedQueue calls the function received after each batch that is not empty.
type hookedQueue struct {
	engine.Queue
	received func()
}

func (q hookedQueue) Receive(ctx context.Context, n int, visible time.Duration) ([]engine.Delivery, error) {
	ds, err := q.Queue.Receive(ctx, n, visible)
	if len(ds) > 0 {
		q.received()
	}
	return ds, err
}

// hookedCallers calls the function read each time a caller is read.
type hookedCallers struct {
	engine.Callers
	read func()
}

func (c hookedCallers) Get(ctx context.Context, id string) (engine.Caller, bool, error) {
	c.read()
	return c.Callers.Get(ctx, id)
}

// A dispatcher whose clock is off makes no call and ends no trigger, at whichever step its clock
// changes: it cannot tell whether a trigger is due or overdue, nor whose claim is valid. When the
// clock is right again, or in another dispatcher, the trigger is called once.
func TestDispatcherWhoseClockIsOff(t *testing.T) {
	for _, step := range []string{"from the start", "received", "judged", "claimed"} {
		t.Run(step, func(t *testing.T) {
			in(t, func(t *testing.T) {
				var off, went atomic.Bool
				var judged atomic.Int64 // reads of callers while the clock is off; they follow the judgement of a trigger
				goes := func(now string) func() {
					return func() {
						if now == step && went.CompareAndSwap(false, true) {
							off.Store(true)
						}
					}
				}
				goes("from the start")()
				p := newPlant(t, func(c *DispatcherConfig) {
					c.Queue = hookedQueue{c.Queue, goes("received")}
					c.Callers = hookedCallers{c.Callers, func() {
						if off.Load() {
							judged.Add(1)
						}
						goes("judged")()
					}}
					c.hit = func(name string) {
						if name == "trigger-claimed" {
							goes("claimed")()
						}
					}
					c.Clock = func() error {
						if off.Load() {
							return notify.Unavailable("clock", 0, errors.New("it is an hour off"))
						}
						return nil
					}
				})
				p.run()
				id := p.create("shop", `"delay_seconds":1`)
				pass(30 * time.Minute)
				if !went.Load() {
					t.Fatal("the clock was never off")
				}
				if n := p.sink.count(); n != 0 {
					t.Fatalf("%d calls", n)
				}
				if row := p.want(id, engine.TriggerPending); row.Attempts != 0 || row.Epoch != 0 && step != "claimed" {
					t.Errorf("%+v", row)
				}
				if d, err := p.queue.Depth(t.Context()); err != nil || d.Dead != 0 {
					t.Errorf("the message is set apart: %+v, %v", d, err)
				}
				if n := judged.Load(); n != 0 {
					t.Errorf("%d looks at callers: rows were judged", n)
				}
				if n := p.evs.get("deferred clock"); n > 1+receiversAtOnce {
					t.Errorf("%d deferrals: messages are received again and again", n)
				}
				off.Store(false)
				pass(5 * time.Second)
				if row := p.want(id, engine.TriggerFired); p.sink.count() != 1 || row.Attempts != 1 {
					t.Errorf("%d calls, %+v", p.sink.count(), row)
				}
			})
		})
	}
}
