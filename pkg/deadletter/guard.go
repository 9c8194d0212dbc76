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

// batchSize returns how many letters the next batch may have. It returns 0 if the runner must first
// wait for the outcomes of the canary.
func (r *runner) batchSize(at int) int {
	spec := &r.spec.Spec
	n := batchSizeAt(r.currentRate())
	if spec.Kind == KindReplay && spec.Canary > 0 && !r.res.CanaryOK {
		n = min(n, r.res.From+spec.Canary-at)
	}
	return max(n, 0)
}

// batchSizeAt returns the size of a batch at a rate: as many letters as the rate allows in a fifth
// of a second.
func batchSizeAt(perSecond float64) int { return min(max(int(perSecond/5), 1), maxBatch) }

// resetPace starts the rate limit again. After that, the limit allows no letter immediately, and
// never more than one batch at once. Otherwise a job that has waited would send the letters of
// several seconds together.
func (r *runner) resetPace() {
	burst := batchSizeAt(r.spec.Spec.Rate)
	r.pace = rate.NewLimiter(rate.Limit(r.currentRate()), burst)
	r.pace.AllowN(time.Now(), burst)
}

// currentRate returns the current rate in letters a second. If the job has a ramp (RampMs), the rate
// rises during the ramp from a tenth of the full rate to the full rate.
func (r *runner) currentRate() float64 {
	spec := &r.spec.Spec
	if spec.RampMs <= 0 {
		return spec.Rate
	}
	part := float64(time.Since(r.ramp).Milliseconds()) / float64(spec.RampMs)
	return max(spec.Rate*min(0.1+0.9*part, 1), 0.01)
}

// waitPace waits until the rate allows n letters. During the wait it checks that the job is still
// running.
func (r *runner) waitPace(ctx context.Context, n int) error {
	r.pace.SetLimit(rate.Limit(r.currentRate()))
	res := r.pace.ReserveN(time.Now(), n)
	for d := res.Delay(); d > 0; d = res.Delay() {
		// At a low rate the wait is long. So check from time to time whether an operator has
		// changed the job.
		if err := pause(ctx, min(d, 4*r.m.cfg.Poll)); err != nil {
			return err
		}
		if d > 4*r.m.cfg.Poll {
			if err := r.checkStillRunning(ctx); err != nil {
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

// maxWatched is how many replayed letters an outcomeWatch follows at a time. If there are more, it
// no longer follows the oldest letters.
const maxWatched = 2000

// outcomeWatch follows the outcomes of replayed letters. The job's runner owns it.
type outcomeWatch struct {
	m      *Manager
	open   []replayedLetter // letters without a final state
	looked time.Time        // when readOutcomes was called last
}

type replayedLetter struct {
	chunk notify.Chunk
	index uint32
	epoch uint16
	// unguarded means that the letter was sent before an operator last started or resumed the job.
	// The guard ignores it.
	unguarded bool
}

// follow adds a letter to the followed letters.
func (w *outcomeWatch) follow(o replayedLetter) {
	if len(w.open) >= maxWatched {
		w.open = w.open[1:]
	}
	w.open = append(w.open, o)
}

// readOutcomes calls the function report for each followed letter that has reached its final state
// since the last call.
func (w *outcomeWatch) readOutcomes(ctx context.Context, report func(o replayedLetter, state notify.State)) error {
	w.looked = time.Now()
	type key struct {
		index uint32
		epoch uint16
	}
	rows := map[notify.Chunk]map[key][]notify.Row{}
	rest := w.open[:0:0]
	var ended []replayedLetter
	var states []notify.State
	for _, o := range w.open {
		byReplay, ok := rows[o.chunk]
		if !ok {
			all, err := w.m.cfg.Status.Chunk(ctx, o.chunk)
			if err != nil {
				return err
			}
			byReplay = map[key][]notify.Row{}
			for i := range all {
				if k := &all[i].Key; k.Epoch > 0 { // a replay; it has one receiver
					byReplay[key{k.First, k.Epoch}] = append(byReplay[key{k.First, k.Epoch}], all[i])
				}
			}
			rows[o.chunk] = byReplay
		}
		switch out := notify.Fold(byReplay[key{o.index, o.epoch}], o.index, 0); out.State {
		case notify.Accepted, notify.Deferred, notify.Scheduled, notify.None:
			rest = append(rest, o)
		default:
			ended, states = append(ended, o), append(states, out.State)
		}
	}
	w.open = rest
	for i, o := range ended {
		report(o, states[i])
	}
	return nil
}

// updateOutcomes reads new outcomes and counts them. While the store is unreachable, it waits.
func (r *runner) updateOutcomes(ctx context.Context) error {
	return r.retryWhileAway(ctx, func() error {
		return r.watch.readOutcomes(ctx, func(o replayedLetter, state notify.State) {
			countState(&r.res.Outcomes, state)
			if !o.unguarded {
				countState(&r.res.Guarded, state)
			}
		})
	})
}

// countState counts one final state in o.
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

// missedOutcomes returns how many letters reached no receiver, and the numbers by state as a text.
// With the policy ExpiredFail, a letter is expected to become EXPIRED, so EXPIRED is not counted.
func missedOutcomes(o api.Outcomes, expired string) (n int, words string) {
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

// settledCount returns how many letters have a final state.
func settledCount(o *api.Outcomes) int { return o.Reached + o.Missed() }

// checkMissed returns a guardStop if, of n letters, more than the allowed share (AbortIf) reached
// no receiver. The text of the guardStop begins with prefix.
func (r *runner) checkMissed(prefix string, n int) error {
	limit, g := r.spec.Spec.AbortIf, &r.res.Guarded
	missed, words := missedOutcomes(*g, r.spec.Spec.Expired)
	if limit < 0 || n == 0 || float64(missed) <= limit*float64(n) {
		return nil
	}
	what := "failed again"
	if missed > g.Refailed {
		what = "reached nobody: " + words
	}
	return guardStop{prefix + fmt.Sprintf("%d of %d letters %s (limit %.0f%%)", missed, n, what, limit*100)}
}

// guardFrom is how many outcomes checkGuard needs before it may stop the job. awaitCanary may stop
// the job after fewer outcomes.
const guardFrom = 20

// checkGuard reads new outcomes, at most once per Poll. It returns a guardStop if too many letters
// reached no receiver.
func (r *runner) checkGuard(ctx context.Context) error {
	if r.spec.Spec.Kind != KindReplay || time.Since(r.watch.looked) < r.m.cfg.Poll {
		return nil
	}
	if err := r.updateOutcomes(ctx); err != nil {
		return err
	}
	if settledCount(&r.res.Guarded) < guardFrom {
		return nil
	}
	prefix := ""
	if !r.res.CanaryOK && r.spec.Spec.Canary > 0 {
		prefix = "canary: "
	}
	return r.checkMissed(prefix, settledCount(&r.res.Guarded))
}

// awaitCanary waits until every letter of the canary has an outcome. It returns a guardStop if too
// many letters reached no receiver, or if a letter has no outcome after CanaryWait.
func (r *runner) awaitCanary(ctx context.Context) error {
	spec := &r.spec.Spec
	until := time.Now().Add(r.m.cfg.CanaryWait)
	for {
		if err := r.updateOutcomes(ctx); err != nil {
			return err
		}
		if err := r.checkMissed("canary: ", max(spec.Canary, 1)); err != nil {
			return err
		}
		if len(r.watch.open) == 0 {
			if err := r.checkMissed("canary: ", settledCount(&r.res.Guarded)); err != nil { // the set may have fewer letters than the canary
				return err
			}
			break
		}
		if time.Now().After(until) {
			return guardStop{fmt.Sprintf("canary: %d of %d letters have no outcome after %s", len(r.watch.open), spec.Canary, r.m.cfg.CanaryWait)}
		}
		if err := r.waitAndCheck(ctx, r.m.cfg.Poll); err != nil {
			return err
		}
	}
	r.res.CanaryOK = true
	r.ramp, r.began = time.Now(), time.Now() // the wait counts neither for the ramp nor for ActiveMs
	r.resetPace()
	return r.saveCursor(ctx, cursorPosition(r.j.Cursor), nil)
}

// rewatch counts the outcomes of letters that earlier runners of this job have published. It starts
// with the saved counts of Known, which include all letters before the position Known.To, and
// follows the later letters again.
func (r *runner) rewatch(ctx context.Context) error {
	at, known := cursorPosition(r.j.Cursor), &r.res.Known
	if r.spec.Spec.Kind != KindReplay {
		return nil
	}
	r.res.Outcomes, r.res.Guarded = known.Outcomes, known.Guarded
	for from := known.To; from < at; {
		es, err := readEntries(ctx, r.m, r.j.ID, from, min(at-from, maxBatch))
		if err != nil {
			return err
		}
		if len(es) == 0 {
			return fmt.Errorf("the stored set of the job has only %d of its %d entries", from, r.spec.Planned)
		}
		letters, err := readLetters(ctx, r.m, es)
		if err != nil {
			return err
		}
		for i, d := range letters {
			if d != nil && d.State == engine.LetterReplayed && markedByJob(d, r.j.ID) && d.Channel != ChannelTrigger {
				r.watch.follow(replayedLetter{chunk: d.Chunk, index: d.ID.Index, epoch: markedEpoch(d), unguarded: from+i < r.res.From})
			}
		}
		from += len(es)
		if len(r.watch.open) > maxWatched/2 { // make room: most letters of an old job have an outcome already
			if err := r.updateOutcomes(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// settleFor is how long a job waits for the last outcomes after it has published everything. These
// outcomes are only for its report; the guard ignores them.
const settleFor = 20 * time.Second

// awaitLastOutcomes waits until every followed letter has an outcome, at most for settleFor.
func (r *runner) awaitLastOutcomes(ctx context.Context) error {
	for until := time.Now().Add(settleFor); ; {
		if err := r.updateOutcomes(ctx); err != nil {
			return err
		}
		if len(r.watch.open) == 0 || time.Now().After(until) {
			return nil
		}
		if err := r.waitAndCheck(ctx, r.m.cfg.Poll); err != nil {
			return err
		}
	}
}
