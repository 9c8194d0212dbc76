package deadletter

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"github.com/notifyd/notifyd/pkg/notify"
)

// batchSize is how many may go next; 0: the canary's outcomes come first.
func (r *runner) batchSize(at int) int {
	spec := &r.spec.Spec
	n := batchAt(r.limit())
	if spec.Kind == KindReplay && spec.Canary > 0 && !r.res.CanaryOK {
		n = min(n, r.res.From+spec.Canary-at)
	}
	return max(n, 0)
}

// batchAt is how many letters go together at a rate: a fifth of a second's.
func batchAt(perSecond float64) int { return min(max(int(perSecond/5), 1), maxBatch) }

// startPace begins the rate anew with nothing saved up. More than a batch is never
// saved, else a job that waited would come back with seconds of its rate at once.
func (r *runner) startPace() {
	burst := batchAt(r.spec.Spec.Rate)
	r.pace = rate.NewLimiter(rate.Limit(r.limit()), burst)
	r.pace.AllowN(time.Now(), burst)
}

// limit is the rate of this moment.
func (r *runner) limit() float64 {
	spec := &r.spec.Spec
	if spec.RampMs <= 0 {
		return spec.Rate
	}
	part := float64(time.Since(r.ramp).Milliseconds()) / float64(spec.RampMs)
	return max(spec.Rate*min(0.1+0.9*part, 1), 0.01)
}

func (r *runner) wait(ctx context.Context, n int) error {
	r.pace.SetLimit(rate.Limit(r.limit()))
	res := r.pace.ReserveN(time.Now(), n)
	for d := res.Delay(); d > 0; d = res.Delay() {
		// At a low rate an operator's change must not wait for the next letter.
		if err := pause(ctx, min(d, 4*r.m.cfg.Poll)); err != nil {
			return err
		}
		if d > 4*r.m.cfg.Poll {
			if err := r.alive(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	notify.Sleep(ctx, d)
	return ctx.Err()
}
