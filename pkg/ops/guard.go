package ops

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

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
}

func (w *watch) add(o observed) {
	if len(w.open) >= maxWatched {
		w.open = w.open[1:]
	}
	w.open = append(w.open, o)
}

// look counts what has settled since the last look.
func (w *watch) look(ctx context.Context) (reached, refailed int, err error) {
	w.looked = time.Now()
	type key struct {
		index uint32
		epoch uint16
	}
	rows := map[notify.Chunk]map[key][]notify.Row{}
	rest := w.open[:0:0]
	for _, o := range w.open {
		of, ok := rows[o.chunk]
		if !ok {
			all, err := w.m.cfg.Status.Chunk(ctx, o.chunk)
			if err != nil {
				return 0, 0, err
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
		case notify.Failed:
			refailed++
		default:
			reached++
		}
	}
	w.open = rest
	return reached, refailed, nil
}

// observe looks, and keeps count.
func (r *runner) observe(ctx context.Context) error {
	reached, refailed, err := r.watch.look(ctx)
	if err != nil {
		return err
	}
	r.res.Outcomes.Reached += reached
	r.res.Outcomes.Refailed += refailed
	r.res.Settled += reached + refailed
	r.res.Refailed += refailed
	return nil
}

// tooMany is the guard's verdict over n outcomes.
func (r *runner) tooMany(of string, n int) error {
	limit := r.spec.Spec.AbortIf
	if limit < 0 || n == 0 || float64(r.res.Refailed) <= limit*float64(n) {
		return nil
	}
	return stop{of + fmt.Sprintf("%d of %d failed again (limit %.0f%%)", r.res.Refailed, n, limit*100)}
}

// guardFrom is how many outcomes the guard wants before it judges.
const guardFrom = 20

// guard looks at outcomes while the job goes on.
func (r *runner) guard(ctx context.Context) error {
	if r.spec.Spec.Kind != KindReplay || time.Since(r.watch.looked) < r.m.cfg.Poll {
		return nil
	}
	if err := r.insist(ctx, func() error { return r.observe(ctx) }); err != nil {
		return err
	}
	if r.res.Settled < guardFrom {
		return nil
	}
	of := ""
	if !r.res.CanaryOK && r.spec.Spec.Canary > 0 {
		of = "canary: "
	}
	return r.tooMany(of, r.res.Settled)
}

// canary waits for the outcomes of the first ones, and judges them.
func (r *runner) canary(ctx context.Context) error {
	spec := &r.spec.Spec
	until := time.Now().Add(r.m.cfg.CanaryWait)
	for {
		if err := r.insist(ctx, func() error { return r.observe(ctx) }); err != nil {
			return err
		}
		if err := r.tooMany("canary: ", max(spec.Canary, 1)); err != nil {
			return err
		}
		if len(r.watch.open) == 0 {
			if err := r.tooMany("canary: ", r.res.Settled); err != nil { // of fewer than asked for
				return err
			}
			break
		}
		if time.Now().After(until) {
			return stop{fmt.Sprintf("canary: %d of %d have no outcome after %s", len(r.watch.open), spec.Canary, r.m.cfg.CanaryWait)}
		}
		if err := pause(ctx, r.m.cfg.Poll); err != nil {
			return err
		}
		if err := r.alive(ctx); err != nil {
			return err
		}
	}
	r.res.CanaryOK = true
	r.ramp, r.began = time.Now(), time.Now() // the wait is no part of the rate
	return r.save(ctx, position(r.j.Cursor), nil)
}

// again watches anew what was published before this process began: the canary,
// whose outcomes must be known before the rest goes.
func (r *runner) again(ctx context.Context) error {
	spec, at := &r.spec.Spec, position(r.j.Cursor)
	if spec.Kind != KindReplay || spec.Canary <= 0 || r.res.CanaryOK || at <= r.res.From {
		return nil
	}
	// Counted again from the start of the canary.
	r.res.Outcomes.Reached -= r.res.Settled - r.res.Refailed
	r.res.Outcomes.Refailed -= r.res.Refailed
	r.res.Settled, r.res.Refailed = 0, 0
	es, err := r.m.entries(ctx, r.j.ID, r.res.From, at-r.res.From)
	if err != nil {
		return err
	}
	letters, err := r.m.letters(ctx, es)
	if err != nil {
		return err
	}
	for _, d := range letters {
		if d != nil && d.State == engine.LetterReplayed && ours(d, r.j.ID) && d.Channel != ChannelTrigger {
			r.watch.add(observed{chunk: d.Chunk, index: d.ID.Index, epoch: markedEpoch(d)})
		}
	}
	return nil
}

// settleFor is how long a job that has published everything looks for the last
// outcomes; they are for its report, not for its guard.
const settleFor = 20 * time.Second

func (r *runner) settle(ctx context.Context) error {
	for until := time.Now().Add(settleFor); ; {
		if err := r.insist(ctx, func() error { return r.observe(ctx) }); err != nil {
			return err
		}
		if len(r.watch.open) == 0 || time.Now().After(until) {
			return nil
		}
		if err := pause(ctx, r.m.cfg.Poll); err != nil {
			return err
		}
		if err := r.alive(ctx); err != nil {
			return err
		}
	}
}
