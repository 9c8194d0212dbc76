package conserve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
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
		r.ended(l, notify.Cancelled.String(), parked)
		return missing, nil
	}
	r.waits(l, inSchedule, parked)
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

// place is a record of an original chunk.
type place struct {
	chunk notify.Chunk
	at    home
}

// suspect is a chunk with receivers that have neither outcome nor evidence.
type suspect struct {
	digest uint64          // of its receivers
	env    notify.Envelope // without content and column
	left   []*receiver
}

type receiver struct {
	index, pos uint32
	stand      stand
	still      int // rounds in which it stood still
}

func placeOf(f *engine.Found) place {
	return place{f.Envelope.Chunk, home{log.TopicPartition{Topic: f.Topic, Partition: f.LogPart}, f.Offset}}
}

func (r *run) suspect(f *engine.Found, st stand, index, pos uint32) {
	p := placeOf(f)
	s := r.suspects[p]
	if s == nil {
		e := &f.Envelope
		s = &suspect{digest: notify.ColumnDigest(e.Receivers), env: notify.Envelope{
			Chunk: e.Chunk, Fan: e.Fan, Channel: e.Channel, Category: e.Category, Accepted: e.Accepted, Caller: strings.Clone(e.Caller), Count: e.Count,
		}}
		r.suspects[p] = s
	}
	st.answered = nil // made anew at the next look
	s.left = append(s.left, &receiver{index: index, pos: pos, stand: st})
	r.waiting++
}

// lead is an envelope that leads on: what of a chunk's suspects it holds.
type lead struct {
	key     envelopeKey
	where   string
	at      home // in the log
	indexes map[uint32]bool
}

// met reports whether an outcome has answered it. One more record of an answered
// envelope, behind the one that was, leads on: the worker hands on again what the
// outcome says.
func (l *lead) met(st *stand) bool {
	by, ok := st.answered[l.key]
	return ok && (l.where != inLog || l.at.tp != by.tp || l.at.offset <= by.offset)
}

// maxRounds bounds the looks at what does not stand still. What has moved that
// often is at work.
const maxRounds = 12

// confirm looks at the suspects again until each is terminal, leads on, or has
// stood still for as many rounds as it takes to call it drift.
func (r *run) confirm(ctx context.Context) error {
	for round := 1; len(r.suspects) > 0; round++ {
		if err := r.settle(ctx); err != nil {
			return err
		}
		leads, err := r.leads(ctx)
		if err != nil {
			return err
		}
		for p, s := range r.suspects {
			rows, err := r.cfg.Status.Chunk(ctx, p.chunk)
			if err != nil {
				return err
			}
			c := ownRows(rows, s.digest)
			left := s.left[:0]
			for _, x := range s.left {
				if !r.decide(p, s, c, x, leads[p.chunk], round) {
					left = append(left, x)
				}
			}
			if s.left = left; len(left) == 0 {
				delete(r.suspects, p)
			}
		}
	}
	r.waiting = 0
	return nil
}

// decide counts a receiver where it belongs; false: it is to be looked at again.
func (r *run) decide(p place, s *suspect, c *chunk, x *receiver, leads []lead, round int) bool {
	l := r.ledger(s.env.Caller, s.env.Channel.String(), s.env.Accepted)
	out := notify.Fold(c.rows, x.index, x.pos)
	if out.State.Terminal() {
		r.ended(l, out.State.String(), 1)
		r.rep.Confirmed++
		return true
	}
	st := c.stands(x.index, x.pos, p.at)
	for i := range leads {
		ev := &leads[i]
		if !ev.indexes[x.index] || ev.met(&st) {
			continue
		}
		where := ev.where
		if where == inLog && st.claimed {
			where = inClaim
		}
		r.waits(l, where, 1)
		r.rep.Confirmed++
		return true
	}
	if st.updated != x.stand.updated || st.key != x.stand.key || st.handed != x.stand.handed {
		x.still = 0
	} else {
		x.still++
	}
	x.stand, x.stand.answered = st, nil
	switch {
	case x.still >= r.cfg.Rounds:
		l.Lost++
		class, detail := st.class()
		r.drift(1, api.Drift{Class: class, ID: s.env.ID(x.index).String(), Caller: s.env.Caller, State: out.State.String(), Detail: detail, Updated: st.updated})
		return true
	case round >= maxRounds:
		r.waits(l, inClaim, 1)
		return true
	}
	return false
}

// leads reads everything that could lead on to a suspect: timers, the spill
// buffer, and what of the log is not committed.
func (r *run) leads(ctx context.Context) (map[notify.Chunk][]lead, error) {
	wanted := map[notify.Chunk]map[uint32]bool{}
	for p, s := range r.suspects {
		w := wanted[p.chunk]
		if w == nil {
			w = map[uint32]bool{}
			wanted[p.chunk] = w
		}
		for _, x := range s.left {
			w[x.index] = true
		}
	}
	out := map[notify.Chunk][]lead{}
	add := func(value []byte, where string, at home) error {
		var one *lead
		return indexes(value, func(e *notify.Envelope, index uint32) {
			if !wanted[e.Chunk][index] {
				return
			}
			if one == nil {
				key := e.Key()
				out[e.Chunk] = append(out[e.Chunk], lead{keyOf(&key), where, at, map[uint32]bool{}})
				one = &out[e.Chunk][len(out[e.Chunk])-1]
			}
			one.indexes[index] = true
		})
	}
	// What is released goes from the timers to the log: the log is read behind
	// them. What is parked goes the other way; the next round meets it.
	if err := r.timers(ctx, func(t *engine.Timer) error {
		return cmp.Or(add(t.Payload, inTimer, home{}), ctx.Err())
	}); err != nil {
		return nil, err
	}
	spilled, err := r.cfg.Spill.Peek(ctx, maxSpilled)
	if err != nil {
		return nil, err
	}
	for i := range spilled {
		if err := add(spilled[i].Value, inSpill, home{}); err != nil {
			return nil, err
		}
	}
	for {
		bounds, err := r.cfg.Log.Bounds(ctx)
		if err != nil {
			return nil, err
		}
		from, to := map[log.TopicPartition]int64{}, map[log.TopicPartition]int64{}
		for tp, b := range bounds {
			if at := max(b.Committed, b.Start); at < b.End {
				from[tp], to[tp] = at, b.End
			}
		}
		err = r.cfg.Log.Read(ctx, from, to, func(tp log.TopicPartition, rec *log.Record) error {
			if rec.Lost() {
				return nil
			}
			return add(rec.Value, inLog, home{tp, rec.Offset})
		})
		if e, ok := errors.AsType[*notify.Error](err); !ok || e.Kind != notify.KindGone {
			return out, err
		}
	}
}

func (h home) String() string {
	return fmt.Sprintf("%s/%d@%d", h.tp.Topic, h.tp.Partition, h.offset)
}

func stamp(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }
