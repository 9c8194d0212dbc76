package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// proof is one outage: the process, and the triggers that notifyd acknowledged before and after the
// outage.
type proof struct {
	v   *rig.Victim
	o   options
	url string // base URL of the receiver of the callbacks

	mu  sync.Mutex
	due map[string]promise // trigger id -> promise
}

// promise is an acknowledged trigger.
type promise struct {
	due    int64 // requested due time, in ms since 1970
	ontime bool  // true: registered after the start, so it must fire on time
	acked  time.Time
}

// Paths of the simulated receiver of the callbacks.
const (
	overduePath = "/overdue"
	ontimePath  = "/ontime"
)

// registrationLimit is the longest time that the registration of n triggers may take.
func registrationLimit(n int) time.Duration { return 5*time.Second + time.Duration(n)*time.Second/2500 }

func (r *proof) run(ctx context.Context) (ok bool) {
	r.url = rig.Must(r.v.CallbackURL(ctx))
	// All due times are between the kill and the start, even if the registration takes the whole
	// registrationLimit.
	from := time.Now().Add(registrationLimit(r.o.n))
	r.register(ctx, from, r.o.stop-time.Second)
	if left := time.Until(from); left < 0 {
		panic(fmt.Errorf("the registration ended %s after the first trigger was due", -left))
	}
	rig.Must(r.v.Die(ctx, "", 0))
	stopped := time.Now()
	fmt.Printf("  %d triggers registered; killed %s before the first is due\n", r.o.n, time.Until(from).Round(time.Millisecond))
	if n := rig.Must(r.v.Taken(ctx)); n > 0 {
		panic(fmt.Errorf("%d triggers fired before they were due and before the outage", n))
	}
	rig.Ok(rig.Pause(ctx, time.Until(from.Add(r.o.stop))))
	outage := time.Since(stopped)
	began := time.Now()
	rig.Ok(r.v.Restart(ctx, ""))
	ready := time.Now()
	fmt.Printf("  started again after %s, ready in %s\n", outage.Round(time.Millisecond), ready.Sub(began).Round(time.Millisecond))
	r.drain(ctx, ready)
	return r.check(ctx, outage, ready)
}

// register registers the triggers of the backlog. Their due times are random, in the range that
// begins at firstDue and has the length span.
func (r *proof) register(ctx context.Context, firstDue time.Time, span time.Duration) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	const size = 1000
	for first := 0; first < r.o.n; first += size {
		g.Go(func() error {
			batch := make([]api.Trigger, min(size, r.o.n-first))
			for i := range batch {
				batch[i] = rig.Due(r.url+overduePath, firstDue.Add(rand.N(span)))
			}
			var made api.TriggerBatchResult
			if err := rig.Insist(ctx, func() (err error) {
				made, err = r.v.Client().TriggerBatch(ctx, batch, fmt.Sprintf("outage-%d", first))
				return err
			}); err != nil {
				return err
			}
			if made.Accepted != len(batch) {
				return fmt.Errorf("only %d of %d triggers of a batch were accepted", made.Accepted, len(batch))
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			for i, one := range made.Results {
				r.due[one.TriggerID] = promise{due: batch[i].FireAt.UnixMilli(), acked: time.Now()}
			}
			return nil
		})
	}
	rig.Ok(g.Wait())
}

func (r *proof) drainLimit() time.Duration {
	rate := minCatchUpRate
	if r.o.rate > 0 {
		rate = min(rate, r.o.rate)
	}
	return time.Duration(r.o.n)*time.Second/time.Duration(rate) + takeOver
}

// drain registers on-time triggers, due in 2 to 5 s, until all overdue triggers have fired, and for
// at least ten seconds. It gives up after twice the drain limit plus 20 s; then the method check
// reports the missing triggers as lost. At the end it waits up to 15 s for the last on-time
// triggers.
func (r *proof) drain(ctx context.Context, ready time.Time) {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(64)
	tick := time.NewTicker(time.Duration(float64(time.Second) / r.o.ontime))
	defer tick.Stop()
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	limit := ready.Add(2*r.drainLimit() + 20*time.Second)
	for n, over := 0, false; !over; {
		select {
		case <-tick.C:
			n++
			key := fmt.Sprintf("ontime-%d", n)
			g.Go(func() error {
				t := rig.Due(r.url+ontimePath, time.Now().Add(2*time.Second+rand.N(3*time.Second)))
				var made api.TriggerAccepted
				if err := rig.Insist(gctx, func() (err error) { made, err = r.v.Client().Trigger(gctx, t, key); return err }); err != nil {
					return err
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				r.due[made.TriggerID] = promise{due: t.FireAt.UnixMilli(), ontime: true, acked: time.Now()}
				return nil
			})
			continue
		case <-look.C:
		case <-gctx.Done():
			panic(errors.Join(g.Wait(), gctx.Err()))
		}
		taken := rig.Must(r.v.Taken(ctx))
		over = time.Now().After(limit) || time.Since(ready) > 10*time.Second && taken >= r.countDueBy(time.Now())
	}
	rig.Ok(g.Wait())
	rig.Within(ctx, 15*time.Second, 200*time.Millisecond, func() bool { return rig.Must(r.v.Taken(ctx)) >= r.countDueBy(time.Now().Add(time.Hour)) })
	rig.Ok(ctx.Err())
}

// countDueBy returns the number of promises whose due time is at the given limit or earlier.
func (r *proof) countDueBy(limit time.Time) (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.due {
		if p.due <= limit.UnixMilli() {
			n++
		}
	}
	return n
}

// check compares the promises with the receiver's ledger and with the stored states of the
// triggers. It prints the last line of the output. It returns true if every promise was kept.
func (r *proof) check(ctx context.Context, outage time.Duration, ready time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	due := rig.Dues{}
	for id, p := range r.due {
		due[id] = time.UnixMilli(p.due)
	}
	f := rig.Must(r.v.Fired(ctx, due))
	for _, x := range f.Early {
		fmt.Printf("  early: trigger %s was called %s before it was due\n", x.ID, x.By)
	}
	for _, id := range f.Lost[:min(len(f.Lost), 5)] {
		fmt.Printf("  lost: trigger %s, due %s, was never called\n", id, due[id].Format("15:04:05.000"))
	}
	fired, last := 0, ready
	var late []time.Duration
	for id, at := range f.First {
		if p := r.due[id]; p.ontime {
			// The lateness of a trigger counts from its due time. If notifyd acknowledged the
			// trigger after that, it counts from the acknowledgement.
			late = append(late, at.Sub(laterOf(due[id], p.acked)))
		} else {
			fired++
			last = laterOf(last, at)
		}
	}
	lost, early := len(f.Lost), len(f.Early)
	open := r.countOpen(ctx)
	slices.Sort(late)
	var p50, p99, worst time.Duration
	if n := len(late); n > 0 {
		p50, p99, worst = late[n/2], late[min(n*99/100, n-1)], late[n-1]
	}
	drain, bound := last.Sub(ready), r.drainLimit()
	ok := lost == 0 && early == 0 && f.Unknown == 0 && open == 0 && fired == r.o.n && len(late) > 0 && drain <= bound && p99 <= onTimeLimit
	fmt.Printf("outage minutes=%.2f due=%d fired=%d lost=%d early=%d drain_s=%.1f bound_s=%.1f ontime=%d ontime_p50_ms=%.1f ontime_p99_ms=%.1f ontime_max_ms=%.1f ontime_bound_ms=%d duplicates=%d open=%d load=%s ok=%v\n",
		outage.Minutes(), r.o.n, fired, lost, early, drain.Seconds(), bound.Seconds(), len(late), ms(p50), ms(p99), ms(worst), onTimeLimit.Milliseconds(), f.Twice, open, rig.LoadAverage(), ok)
	return ok
}

// countOpen returns the number of triggers in the states PENDING, IN_FLIGHT, FAILED and EXPIRED. It
// counts at most 100 triggers of each state. It waits up to 10 s for the count to become 0, because
// the dispatcher writes an outcome after the receiver has answered.
func (r *proof) countOpen(ctx context.Context) (n int) {
	rig.Within(ctx, 10*time.Second, 100*time.Millisecond, func() bool {
		n = 0
		for _, state := range []string{"PENDING", "IN_FLIGHT", "FAILED", "EXPIRED"} {
			n += len(rig.Must(r.v.Client().Triggers(ctx, api.TriggerQuery{Status: state, Limit: 100})).Items)
		}
		return n == 0
	})
	rig.Ok(ctx.Err())
	return n
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }
