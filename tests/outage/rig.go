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
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/victim"
)

// rig is one outage and what was promised around it.
type rig struct {
	v   *victim.Victim
	o   options
	url string // of the receiver

	mu  sync.Mutex
	due map[string]promise // by trigger id
}

// promise is a trigger that was acknowledged.
type promise struct {
	due    int64 // ms since 1970, as it was asked for
	ontime bool
	acked  time.Time
}

// Paths of the receiver.
const (
	overduePath = "/overdue"
	ontimePath  = "/ontime"
)

// registering is how long the registration of n triggers may take.
func registering(n int) time.Duration { return 5*time.Second + time.Duration(n)*time.Second/2500 }

func (r *rig) run(ctx context.Context) (ok bool, err error) {
	if r.url, err = r.v.CallbackURL(ctx); err != nil {
		return false, err
	}
	// Due times begin behind the kill, however long registering takes, and end
	// before the start.
	from := time.Now().Add(registering(r.o.n))
	if err := r.register(ctx, from, r.o.stop-time.Second); err != nil {
		return false, err
	}
	if left := time.Until(from); left < 0 {
		return false, fmt.Errorf("registering took %s longer than there was time", -left)
	}
	if _, err := r.v.Die(ctx, "", 0); err != nil {
		return false, err
	}
	stopped := time.Now()
	fmt.Printf("  %d triggers registered; killed %s before the first is due\n", r.o.n, time.Until(from).Round(time.Millisecond))
	switch n, err := r.v.Taken(ctx); {
	case err != nil:
		return false, err
	case n > 0:
		return false, fmt.Errorf("%d triggers fired before they were due and before the outage", n)
	}
	select {
	case <-time.After(time.Until(from.Add(r.o.stop))):
	case <-ctx.Done():
		return false, ctx.Err()
	}
	outage := time.Since(stopped)
	began := time.Now()
	if err := r.v.Restart(ctx, ""); err != nil {
		return false, err
	}
	ready := time.Now()
	fmt.Printf("  started again after %s, ready in %s\n", outage.Round(time.Millisecond), ready.Sub(began).Round(time.Millisecond))
	if err := r.drain(ctx, ready); err != nil {
		return false, err
	}
	return r.check(ctx, outage, ready)
}

// register registers the triggers, due at random moments of a span.
func (r *rig) register(ctx context.Context, from time.Time, span time.Duration) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	const size = 1000
	for first := 0; first < r.o.n; first += size {
		g.Go(func() error {
			batch := make([]api.Trigger, min(size, r.o.n-first))
			for i := range batch {
				batch[i] = r.trigger(overduePath, from.Add(rand.N(span)))
			}
			var made api.TriggerBatchResult
			if err := insist(ctx, func() (err error) {
				made, err = r.v.Client().TriggerBatch(ctx, batch, fmt.Sprintf("outage-%d", first))
				return err
			}); err != nil {
				return err
			}
			if made.Accepted != len(batch) {
				return fmt.Errorf("%d of %d triggers were accepted", made.Accepted, len(batch))
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			for i, one := range made.Results {
				r.due[one.TriggerID] = promise{due: batch[i].FireAt.UnixMilli(), acked: time.Now()}
			}
			return nil
		})
	}
	return g.Wait()
}

func (r *rig) trigger(path string, at time.Time) api.Trigger {
	at = at.UTC().Truncate(time.Millisecond)
	return api.Trigger{CallbackURL: fmt.Sprintf("%s%s?due=%d", r.url, path, at.UnixMilli()), FireAt: &at, Exact: true, Payload: []byte(`{"n":1}`)}
}

// insist repeats what the server asks to have repeated.
func insist(ctx context.Context, f func() error) error {
	for {
		err := f()
		if k := notify.KindOf(err); err == nil || k != notify.KindUnavailable && k != notify.KindThrottled {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (r *rig) bound() time.Duration {
	rate := slowest
	if r.o.rate > 0 {
		rate = min(rate, r.o.rate)
	}
	return time.Duration(r.o.n)*time.Second/time.Duration(rate) + takeOver
}

// drain registers triggers that are due soon until everything that was overdue
// has fired, for ten seconds at least, and then waits for the last of them. What
// has not fired long after it had to is left for check to find.
func (r *rig) drain(ctx context.Context, ready time.Time) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(64)
	tick := time.NewTicker(time.Duration(float64(time.Second) / r.o.ontime))
	defer tick.Stop()
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	limit := ready.Add(2*r.bound() + 20*time.Second)
	for n, over := 0, false; !over; {
		select {
		case <-tick.C:
			n++
			key := fmt.Sprintf("ontime-%d", n)
			g.Go(func() error {
				t := r.trigger(ontimePath, time.Now().Add(2*time.Second+rand.N(3*time.Second)))
				var made api.TriggerAccepted
				if err := insist(gctx, func() (err error) { made, err = r.v.Client().Trigger(gctx, t, key); return err }); err != nil {
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
			return errors.Join(g.Wait(), ctx.Err())
		}
		taken, err := r.v.Taken(ctx)
		if err != nil {
			return err
		}
		over = time.Now().After(limit) || time.Since(ready) > 10*time.Second && taken >= r.dueBy(time.Now())
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for limit := time.Now().Add(15 * time.Second); time.Now().Before(limit); {
		taken, err := r.v.Taken(ctx)
		if err != nil || taken >= r.dueBy(time.Now().Add(time.Hour)) {
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// dueBy counts the promises due at a moment.
func (r *rig) dueBy(at time.Time) (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.due {
		if p.due <= at.UnixMilli() {
			n++
		}
	}
	return n
}

// check holds the promises against the receiver's ledger and the state rows.
func (r *rig) check(ctx context.Context, outage time.Duration, ready time.Time) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := map[string]victim.Call{} // the first that was taken
	early, fired, duplicates, unknown := 0, 0, 0, 0
	last := ready
	var late []time.Duration
	if err := r.v.Calls(ctx, func(c victim.Call) {
		p, known := r.due[c.ID]
		if !known {
			unknown++
			return
		}
		if at := time.UnixMilli(p.due); c.At.Before(at) {
			early++
			fmt.Printf("  early: trigger %s was called %s before it was due\n", c.ID, at.Sub(c.At))
		}
		if _, again := first[c.ID]; again {
			duplicates++
			return
		}
		if !c.Taken {
			return
		}
		first[c.ID] = c
		if p.ontime {
			// Nobody can be on time for what was not acknowledged yet.
			late = append(late, c.At.Sub(later(time.UnixMilli(p.due), p.acked)))
			return
		}
		fired++
		last = later(last, c.At)
	}); err != nil {
		return false, err
	}
	lost := len(r.due) - len(first)
	shown := 0
	for id, p := range r.due {
		if _, there := first[id]; !there && shown < 5 {
			shown++
			fmt.Printf("  lost: trigger %s, due %s, never came\n", id, time.UnixMilli(p.due).Format("15:04:05.000"))
		}
	}
	open, err := r.open(ctx)
	if err != nil {
		return false, err
	}
	slices.Sort(late)
	var p50, p99, worst time.Duration
	if n := len(late); n > 0 {
		p50, p99, worst = late[n/2], late[min(n*99/100, n-1)], late[n-1]
	}
	drain, bound := last.Sub(ready), r.bound()
	ok := lost == 0 && early == 0 && unknown == 0 && open == 0 && fired == r.o.n && len(late) > 0 && drain <= bound && p99 <= onTimeLimit
	fmt.Printf("outage minutes=%.2f due=%d fired=%d lost=%d early=%d drain_s=%.1f bound_s=%.1f ontime=%d ontime_p50_ms=%.1f ontime_p99_ms=%.1f ontime_max_ms=%.1f ontime_bound_ms=%d duplicates=%d open=%d load=%s ok=%v\n",
		outage.Minutes(), r.o.n, fired, lost, early, drain.Seconds(), bound.Seconds(), len(late), ms(p50), ms(p99), ms(worst), onTimeLimit.Milliseconds(), duplicates, open, loadAverage(), ok)
	return ok, nil
}

// open counts triggers whose state row has not ended, up to a page of each; the
// last outcomes are written after the receiver has answered.
func (r *rig) open(ctx context.Context) (n int, err error) {
	for limit := time.Now().Add(10 * time.Second); ; {
		n = 0
		for _, state := range []string{"PENDING", "IN_FLIGHT", "FAILED", "EXPIRED"} {
			page, err := r.v.Client().Triggers(ctx, api.TriggerQuery{Status: state, Limit: 100})
			if err != nil {
				return n, err
			}
			n += len(page.Items)
		}
		if n == 0 || time.Now().After(limit) {
			return n, nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }
