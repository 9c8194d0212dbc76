package conserve

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/schedule"
)

const (
	schedulePage = 500
	// underWay is how long a request may take from its schedule's row to its last
	// timer, and a release from a timer to the history.
	underWay = time.Minute
	// maxUnanswered is how many requests without an answer a report names.
	maxUnanswered = 100
)

// schedules counts what was scheduled and has not reached the log: what the log
// has was counted there.
func (r *run) schedules(ctx context.Context) error {
	var after notify.Base
	var again []notify.Base
	for {
		vs, err := r.cfg.Schedules.List(ctx, "", after, schedulePage)
		if err != nil {
			return err
		}
		for i := range vs {
			v := &vs[i]
			// What is due later is looked at when it was made, and when it has come due.
			due := v.FireAt >= r.since && v.FireAt <= r.now.UnixMilli()
			if v.Created < r.since && !due || v.Created > r.now.Add(-underWay).UnixMilli() && v.FireAt < r.now.UnixMilli() {
				continue
			}
			missing, err := r.scheduled(ctx, v, true)
			if err != nil {
				return err
			}
			if missing > 0 && len(again) < r.cfg.Batch {
				again = append(again, v.Base)
			}
		}
		if len(vs) < schedulePage {
			break
		}
		after = vs[len(vs)-1].Base
	}
	if len(again) == 0 {
		return nil
	}
	// Between its timers and the history something may have been on its way.
	if err := r.settle(ctx); err != nil {
		return err
	}
	if _, err := r.follow(ctx); err != nil {
		return err
	}
	for _, base := range again {
		v, err := r.cfg.Schedules.Get(ctx, base)
		if notify.KindOf(err) == notify.KindNotFound {
			continue // forgotten meanwhile
		}
		if err != nil {
			return err
		}
		missing, err := r.scheduled(ctx, &v, false)
		if err != nil {
			return err
		}
		r.unscheduled(&v, missing)
	}
	return nil
}

// scheduled counts the receivers of a schedule that its timers hold and the log
// does not, and returns how many neither does. What is missing at the first look
// is counted at the last.
func (r *run) scheduled(ctx context.Context, v *schedule.View, first bool) (missing int64, err error) {
	now, ts, err := r.cfg.Schedules.Timers(ctx, *v)
	*v = now
	if err != nil {
		return 0, err
	}
	waits := v.State == engine.SchedulePending && v.FireAt > r.now.Add(underWay).UnixMilli()
	inLog := map[notify.Chunk]bool{}
	sum := int64(0)
	if total := weight(ts); !waits || total < int64(v.Accepted) {
		held, err := r.cfg.History.Of(v.Base)
		if err != nil {
			return 0, err
		}
		for _, h := range held {
			inLog[h.Chunk] = true
			sum += int64(h.Count)
		}
	}
	parked := int64(0)
	for i := range ts {
		var e notify.Envelope
		if err := notify.DecodeEnvelope(ts[i].Payload, &e); err != nil {
			return 0, err
		}
		if !inLog[e.Chunk] {
			parked += int64(e.Count)
		}
	}
	missing = max(int64(v.Accepted)-sum-parked, 0)
	if first && missing > 0 {
		return missing, nil
	}
	l := r.ledger(v.Caller, v.Channel.String(), v.Created)
	l.Accepted += parked
	if v.State == engine.ScheduleCancelled {
		l.Terminal += parked
		r.rep.States[notify.Cancelled.String()] += parked
		return missing, nil
	}
	l.Pending += parked
	r.rep.Waiting[inSchedule] += parked
	return missing, nil
}

func weight(ts []engine.Timer) (n int64) {
	for i := range ts {
		n += int64(ts[i].Weight)
	}
	return n
}

// unscheduled says of receivers of a schedule that neither its timers nor the log
// hold them. Where a schedule is stored before its timers, one of an earlier start
// that nobody moved may have been cut between, and was not answered.
func (r *run) unscheduled(v *schedule.View, missing int64) {
	id := notify.ID{Base: v.Base}.String()
	if missing == 0 {
		r.rep.Confirmed++
		return
	}
	if r.cfg.Apart && v.Gen == 0 && v.Created < r.cfg.Born.UnixMilli() {
		if len(r.rep.Unanswered) < maxUnanswered {
			r.rep.Unanswered = append(r.rep.Unanswered, id)
		}
		return
	}
	l := r.ledger(v.Caller, v.Channel.String(), v.Created)
	l.Accepted += missing
	l.Lost += missing
	r.drift(missing, api.Drift{
		Class: api.DriftScheduleGone, ID: id, Caller: v.Caller, State: notify.Scheduled.String(),
		Detail: fmt.Sprintf("%d of %d receivers due at %s are in no timer and not in the log", missing, v.Accepted, stamp(v.FireAt)),
	})
}
