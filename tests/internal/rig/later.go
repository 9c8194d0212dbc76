package rig

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// laterFates stores the fate of each acknowledged trigger and scheduled push, by its id.
type laterFates struct {
	mu        sync.Mutex
	triggers  map[string]fate
	schedules map[string]fate
}

// fate is the expected end of a trigger or push, after the last change that the server has
// answered.
type fate struct {
	due       int64 // earliest time at which it may fire, in ms since 1970
	cancelled bool  // true: the server has answered that the cancel is final
	refused   bool  // true: a cancel was answered with a conflict, so the end must not be CANCELLED
}

// Each trigger and push is due between laterLeast and laterMost after its registration.
const (
	laterLeast = 2 * time.Second
	laterMost  = 20 * time.Second
)

const (
	// askLimit is the timeout of one request. A request without an answer is sent again.
	askLimit = 10 * time.Second
	// insistLimit is the longest time for which one request is repeated. During that time the proof
	// may kill the process several times. Each time the process dies during a request, the
	// idempotency key stays leased for 30 s. After the end of the load the limit is Patience
	// instead.
	insistLimit = 15 * time.Minute
)

// loadLater registers scheduled pushes, single triggers and batches of triggers. It cancels or
// moves some of them. The parameter rate is the number of pushes and triggers per second, counted
// together. It stays the same while the process is down.
//
// A request is repeated with the same idempotency key until it has an answer, even if the process
// was started again. When the context in the parameter issue ends, loadLater begins no new requests.
// It returns when all requests have an answer, or with an error after Patience.
func (v *Victim) loadLater(issue context.Context, rate float64, seed uint64, into *laterFates) error {
	into.triggers, into.schedules = map[string]fate{}, map[string]fate{}
	callback, err := v.CallbackURL(issue)
	if err != nil {
		return err
	}
	work, cancel := context.WithCancel(context.WithoutCancel(issue))
	defer cancel()
	defer context.AfterFunc(issue, func() { time.AfterFunc(Patience, cancel) })()
	// If the process dies during a request, the idempotency key is leased for 30 s, and the worker
	// repeats the request until that lease has ended. So there must be many workers.
	const workers = 256
	units := make(chan int)
	g, failed := errgroup.WithContext(work)
	for w := range workers {
		g.Go(func() error {
			l := &laterWorker{v: v, callback: callback, rng: rand.New(rand.NewPCG(seed, uint64(100+w))), into: into, batch: batchOf(rate)}
			for n := range units {
				if err := l.do(failed, n, fmt.Sprintf("later-%d-%d", seed, n)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(units)
		began := time.Now()
		t := time.NewTicker(5 * time.Millisecond)
		defer t.Stop()
		for n, items := 0, 0.0; ; {
			for items < rate*time.Since(began).Seconds() {
				select {
				case units <- n:
					items += float64(sizeOf(n, rate))
					n++
				case <-issue.Done():
					return nil
				case <-failed.Done():
					return nil
				}
			}
			select {
			case <-t.C:
			case <-issue.Done():
				return nil
			case <-failed.Done():
				return nil
			}
		}
	})
	return g.Wait()
}

// sizeOf returns the number of pushes or triggers in unit of work number n. Of five units, one is a
// scheduled push, one is a trigger, and three are batches of triggers.
func sizeOf(n int, rate float64) int {
	if n%5 < 2 {
		return 1
	}
	return batchOf(rate)
}

func batchOf(rate float64) int { return min(max(int(rate/20), 2), 100) }

// laterWorker registers triggers and pushes. It does one unit of work after the other.
type laterWorker struct {
	v        *Victim
	callback string
	rng      *rand.Rand
	into     *laterFates
	batch    int
}

func (l *laterWorker) do(ctx context.Context, n int, key string) error {
	switch n % 5 {
	case 0:
		return l.push(ctx, key)
	case 1:
		return l.single(ctx, key)
	}
	return l.many(ctx, key)
}

// insist calls the function send until the server answers. It returns the error in the answer, or
// nil. Other errors of send mean that the server cannot answer now: it does not run, is starting,
// or has no token file after a power cut. If there is no answer within insistLimit, or before ctx
// ends, insist returns an error. That error contains the parameter request, which names the
// request.
func insist(ctx context.Context, request string, send func(context.Context) error) error {
	began := time.Now()
	for {
		one, cancel := context.WithTimeout(ctx, askLimit)
		err := send(one)
		cancel()
		if answered(err) {
			return err
		}
		if ctx.Err() != nil || time.Since(began) > insistLimit {
			return fmt.Errorf("the request %q has no answer after %s: %w", request, time.Since(began).Round(time.Second), err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func answered(err error) bool {
	switch notify.KindOf(err) {
	case notify.KindInvalid, notify.KindNotFound, notify.KindMismatch:
		return true
	case notify.KindConflict:
		return err == nil || notify.RetryAfterOf(err) == 0
	}
	return err == nil
}

func (l *laterWorker) single(ctx context.Context, key string) error {
	body := Due(l.callback+"/t", soon(l.rng))
	var made api.TriggerAccepted
	if err := insist(ctx, "trigger "+key, func(ctx context.Context) (err error) {
		made, err = l.v.client.Trigger(ctx, body, key)
		return err
	}); err != nil {
		return err
	}
	// Take the due time from the answer. If the request was repeated after a kill, the trigger may
	// have been stored much earlier, with an earlier due time.
	f := fate{due: made.FireAt.UnixMilli()}
	l.into.put(l.into.triggers, made.TriggerID, f)
	return l.changeTrigger(ctx, made.TriggerID, f, l.rng.IntN(5))
}

func (l *laterWorker) many(ctx context.Context, key string) error {
	batch := make([]api.Trigger, l.batch)
	for i := range batch {
		batch[i] = Due(l.callback+"/t", soon(l.rng))
	}
	var made api.TriggerBatchResult
	if err := insist(ctx, "batch "+key, func(ctx context.Context) (err error) {
		made, err = l.v.client.TriggerBatch(ctx, batch, key)
		return err
	}); err != nil {
		return err
	}
	if made.Accepted != len(batch) || len(made.Results) != len(batch) {
		return fmt.Errorf("batch %s: only %d of %d triggers were accepted", key, made.Accepted, len(batch))
	}
	for i := range made.Results {
		l.into.put(l.into.triggers, made.Results[i].TriggerID, fate{due: made.Results[i].FireAt.UnixMilli()})
	}
	for what := range 2 {
		i := l.rng.IntN(len(batch))
		f := l.into.of(l.into.triggers, made.Results[i].TriggerID)
		if f.cancelled || f.refused {
			continue
		}
		if err := l.changeTrigger(ctx, made.Results[i].TriggerID, f, what); err != nil {
			return err
		}
	}
	return nil
}

func (l *laterWorker) changeTrigger(ctx context.Context, id string, f fate, action int) error {
	return l.change(ctx, l.into.triggers, id, f, action, func(ctx context.Context) (bool, error) {
		_, err := l.v.client.CancelTrigger(ctx, id)
		return true, err
	}, func(ctx context.Context, to time.Time) error {
		_, err := l.v.client.RescheduleTrigger(ctx, id, to)
		return err
	})
}

// change cancels the trigger or push with this id if action is 0, and moves it if action is 1. Then
// it stores the new fate in m. For any other action it does nothing. The function cancel must
// return true if the cancellation is final.
func (l *laterWorker) change(ctx context.Context, m map[string]fate, id string, f fate, action int,
	cancel func(context.Context) (final bool, err error), move func(context.Context, time.Time) error,
) (err error) {
	switch action {
	case 0:
		final := false
		err = insist(ctx, "cancel of "+id, func(ctx context.Context) (err error) { final, err = cancel(ctx); return err })
		f.cancelled, f.refused = err == nil && final, err != nil && notify.KindOf(err) == notify.KindConflict
	case 1:
		to := soon(l.rng)
		err = insist(ctx, "move of "+id, func(ctx context.Context) error { return move(ctx, to) })
		// After an error, the move may have been stored or not. So the trigger or push may fire
		// from the earlier one of the two due times.
		if was := f.due; err != nil {
			f.due = min(was, to.UnixMilli())
		} else {
			f.due = to.UnixMilli()
		}
	default:
		return nil
	}
	l.into.put(m, id, f)
	if notify.KindOf(err) == notify.KindConflict { // it has fired or is about to fire
		return nil
	}
	return err
}

func (l *laterWorker) push(ctx context.Context, key string) error {
	at := soon(l.rng)
	n := api.Notification{
		Channel: "push", Category: "alert", To: api.Receiver{UserID: key, Address: fmt.Sprintf("apns:%064x", l.rng.Uint64())},
		Content: api.Content{Body: "later"}, ScheduledAt: &at,
	}
	var made api.Accepted
	if err := insist(ctx, "scheduled push "+key, func(ctx context.Context) (err error) {
		made, err = l.v.client.Send(ctx, n, key)
		return err
	}); err != nil {
		return err
	}
	f := fate{due: at.UnixMilli()}
	l.into.put(l.into.schedules, made.NotificationID, f)
	return l.change(ctx, l.into.schedules, made.NotificationID, f, l.rng.IntN(5), func(ctx context.Context) (bool, error) {
		c, err := l.v.client.Cancel(ctx, made.NotificationID)
		return c.Final, err
	}, func(ctx context.Context, to time.Time) error {
		_, err := l.v.client.Reschedule(ctx, made.NotificationID, to)
		return err
	})
}

func soon(rng *rand.Rand) time.Time {
	in := laterLeast + time.Duration(rng.Int64N(int64(laterMost-laterLeast)))
	return time.Now().Add(in).UTC().Truncate(time.Millisecond)
}

func (l *laterFates) put(m map[string]fate, id string, f fate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m[id] = f
}

func (l *laterFates) of(m map[string]fate, id string) fate {
	l.mu.Lock()
	defer l.mu.Unlock()
	return m[id]
}
