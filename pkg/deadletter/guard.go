package deadletter

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
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

// maxWatched bounds the letters whose outcomes are followed.
const maxWatched = 2000

// watch follows what becomes of replayed letters.
type watch struct {
	m      *Manager
	open   []observed
	looked time.Time
}

type observed struct {
	chunk notify.Chunk
	index uint32
	epoch uint16
	old   bool // from before an operator's last start: no matter of the guard's
}

func (w *watch) add(o observed) {
	if len(w.open) >= maxWatched {
		w.open = w.open[1:]
	}
	w.open = append(w.open, o)
}

// look calls settled with the final state of each letter that has settled since
// the last look.
func (w *watch) look(ctx context.Context, settled func(o observed, state notify.State)) error {
	w.looked = time.Now()
	type key struct {
		index uint32
		epoch uint16
	}
	rows := map[notify.Chunk]map[key][]notify.Row{}
	rest := w.open[:0:0]
	var ended []observed
	var states []notify.State
	for _, o := range w.open {
		of, ok := rows[o.chunk]
		if !ok {
			all, err := w.m.cfg.Status.Chunk(ctx, o.chunk)
			if err != nil {
				return err
			}
			of = map[key][]notify.Row{}
			for i := range all {
				if k := &all[i].Key; k.Epoch > 0 { // of replays, which have one receiver each
					of[key{k.First, k.Epoch}] = append(of[key{k.First, k.Epoch}], all[i])
				}
			}
			rows[o.chunk] = of
		}
		switch out := notify.Fold(of[key{o.index, o.epoch}], o.index, 0); out.State {
		case notify.Accepted, notify.Deferred, notify.Scheduled, notify.None:
			rest = append(rest, o)
		default:
			ended, states = append(ended, o), append(states, out.State)
		}
	}
	w.open = rest
	for i, o := range ended {
		settled(o, states[i])
	}
	return nil
}

// observe looks, however long what it needs is away, and keeps count.
func (r *runner) observe(ctx context.Context) error {
	return r.insist(ctx, func() error {
		return r.watch.look(ctx, func(o observed, state notify.State) {
			countState(&r.res.Outcomes, state)
			if !o.old {
				countState(&r.res.Guarded, state)
			}
		})
	})
}

// countState adds one final state.
func countState(o *api.Outcomes, state notify.State) {
	switch state {
	case notify.Sent, notify.Delivered:
		o.Reached++
	case notify.Failed:
		o.Refailed++
	case notify.Suppressed:
		o.Suppressed++
	case notify.Expired:
		o.Expired++
	case notify.Cancelled:
		o.Cancelled++
	default:
		o.Unknown++
	}
}

// missed is how many letters reached no receiver, and what became of them in words. A
// letter that was sent only to become EXPIRED is not missed.
func missed(o api.Outcomes, expired string) (n int, words string) {
	if expired == ExpiredFail {
		o.Expired = 0
	}
	o.Reached, o.Open = 0, 0
	var said []string
	for _, k := range o.Kinds() {
		if k.N > 0 {
			said = append(said, fmt.Sprintf("%d %s", k.N, k.Name))
		}
	}
	return o.Missed(), strings.Join(said, ", ")
}

func settled(o *api.Outcomes) int { return o.Reached + o.Missed() }

// tooMany is the guard's verdict over n outcomes.
func (r *runner) tooMany(of string, n int) error {
	limit, g := r.spec.Spec.AbortIf, &r.res.Guarded
	missed, words := missed(*g, r.spec.Spec.Expired)
	if limit < 0 || n == 0 || float64(missed) <= limit*float64(n) {
		return nil
	}
	what := "failed again"
	if missed > g.Refailed {
		what = "reached nobody: " + words
	}
	return stop{of + fmt.Sprintf("%d of %d %s (limit %.0f%%)", missed, n, what, limit*100)}
}

// guardFrom is how many outcomes the guard wants before it judges.
const guardFrom = 20

// guard looks at outcomes while the job goes on.
func (r *runner) guard(ctx context.Context) error {
	if r.spec.Spec.Kind != KindReplay || time.Since(r.watch.looked) < r.m.cfg.Poll {
		return nil
	}
	if err := r.observe(ctx); err != nil {
		return err
	}
	if settled(&r.res.Guarded) < guardFrom {
		return nil
	}
	of := ""
	if !r.res.CanaryOK && r.spec.Spec.Canary > 0 {
		of = "canary: "
	}
	return r.tooMany(of, settled(&r.res.Guarded))
}

// canary waits for the outcomes of the first ones, and judges them.
func (r *runner) canary(ctx context.Context) error {
	spec := &r.spec.Spec
	until := time.Now().Add(r.m.cfg.CanaryWait)
	for {
		if err := r.observe(ctx); err != nil {
			return err
		}
		if err := r.tooMany("canary: ", max(spec.Canary, 1)); err != nil {
			return err
		}
		if len(r.watch.open) == 0 {
			if err := r.tooMany("canary: ", settled(&r.res.Guarded)); err != nil { // of fewer than asked for
				return err
			}
			break
		}
		if time.Now().After(until) {
			return stop{fmt.Sprintf("canary: %d of %d have no outcome after %s", len(r.watch.open), spec.Canary, r.m.cfg.CanaryWait)}
		}
		if err := r.idle(ctx, r.m.cfg.Poll); err != nil {
			return err
		}
	}
	r.res.CanaryOK = true
	r.ramp, r.began = time.Now(), time.Now() // the wait is no part of the rate
	r.startPace()
	return r.save(ctx, position(r.j.Cursor), nil)
}

// again watches anew what was published before this process, or an operator,
// began, and had no outcome yet: else nobody would count it. What is known for
// sure is counted up to Known.To; all behind that is counted again.
func (r *runner) again(ctx context.Context) error {
	at, known := position(r.j.Cursor), &r.res.Known
	if r.spec.Spec.Kind != KindReplay {
		return nil
	}
	r.res.Outcomes, r.res.Guarded = known.Outcomes, known.Guarded
	for from := known.To; from < at; {
		es, err := entries(ctx, r.m, r.j.ID, from, min(at-from, maxBatch))
		if err != nil {
			return err
		}
		if len(es) == 0 {
			return fmt.Errorf("the job's set ends at %d of %d", from, r.spec.Planned)
		}
		letters, err := letters(ctx, r.m, es)
		if err != nil {
			return err
		}
		for i, d := range letters {
			if d != nil && d.State == engine.LetterReplayed && ours(d, r.j.ID) && d.Channel != ChannelTrigger {
				r.watch.add(observed{chunk: d.Chunk, index: d.ID.Index, epoch: markedEpoch(d), old: from+i < r.res.From})
			}
		}
		from += len(es)
		if len(r.watch.open) > maxWatched/2 { // most of an old job has settled
			if err := r.observe(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// settleFor is how long a job that has published everything looks for the last
// outcomes; they are for its report, not for its guard.
const settleFor = 20 * time.Second

func (r *runner) settle(ctx context.Context) error {
	for until := time.Now().Add(settleFor); ; {
		if err := r.observe(ctx); err != nil {
			return err
		}
		if len(r.watch.open) == 0 || time.Now().After(until) {
			return nil
		}
		if err := r.idle(ctx, r.m.cfg.Poll); err != nil {
			return err
		}
	}
}
