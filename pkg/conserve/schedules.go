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
	// inProgressFor is the longest time between the write of a schedule's row and the write of its
	// last timer. It is also the longest time that a release may take from the timer to the
	// history.
	inProgressFor = time.Minute
	// maxUnanswered is how many requests without an answer a report lists.
	maxUnanswered = 100
)

// countSchedules counts the receivers of schedules that are not in the log yet. countOriginals has
// counted the receivers that are in the log.
func (r *run) countSchedules(ctx context.Context) error {
	var after notify.Base
	var incomplete []notify.Base // schedules with missing receivers, to be checked again
	for {
		vs, err := r.cfg.Schedules.List(ctx, "", after, schedulePage)
		if err != nil {
			return err
		}
		for i := range vs {
			v := &vs[i]
			// A schedule belongs to the audited time if it was made, or became due, in that time.
			due := v.FireAt >= r.since && v.FireAt <= r.now.UnixMilli()
			if v.Created < r.since && !due || v.Created > r.now.Add(-inProgressFor).UnixMilli() && v.FireAt < r.now.UnixMilli() {
				continue
			}
			missing, err := r.countSchedule(ctx, v, true)
			if err != nil {
				return err
			}
			if missing > 0 && len(incomplete) < r.cfg.Batch {
				incomplete = append(incomplete, v.Base)
			}
		}
		if len(vs) < schedulePage {
			break
		}
		after = vs[len(vs)-1].Base
	}
	if len(incomplete) == 0 {
		return nil
	}
	// A chunk may have been moving from its timer to the history.
	if err := r.waitSettle(ctx); err != nil {
		return err
	}
	if _, err := r.followLog(ctx); err != nil {
		return err
	}
	for _, base := range incomplete {
		v, err := r.cfg.Schedules.Get(ctx, base)
		if notify.KindOf(err) == notify.KindNotFound {
			continue // the schedule was purged in the meantime
		}
		if err != nil {
			return err
		}
		missing, err := r.countSchedule(ctx, &v, false)
		if err != nil {
			return err
		}
		r.countMissing(&v, missing)
	}
	return nil
}

// countSchedule counts the receivers of a schedule that are in its timers and not in the log. It
// returns how many receivers are missing: neither in the timers nor in the log. If receivers are
// missing in the first check, it counts nothing, and the second check counts the schedule.
func (r *run) countSchedule(ctx context.Context, v *schedule.View, firstCheck bool) (missing int64, err error) {
	now, ts, err := r.cfg.Schedules.Timers(ctx, *v)
	*v = now
	if err != nil {
		return 0, err
	}
	waits := v.State == engine.SchedulePending && v.FireAt > r.now.Add(inProgressFor).UnixMilli()
	inLog := map[notify.Chunk]bool{}
	inLogSum := int64(0) // receivers in the log
	// If the schedule waits and its timers contain all receivers, the history need not be read.
	if total := totalWeight(ts); !waits || total < int64(v.Accepted) {
		held, err := r.cfg.History.ChunksOf(v.Base)
		if err != nil {
			return 0, err
		}
		for _, h := range held {
			inLog[h.Chunk] = true
			inLogSum += int64(h.Count)
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
	missing = max(int64(v.Accepted)-inLogSum-parked, 0)
	if firstCheck && missing > 0 {
		return missing, nil
	}
	l := r.ledger(v.Caller, v.Channel.String(), v.Created)
	l.Accepted += parked
	if v.State == engine.ScheduleCancelled {
		r.addTerminal(l, notify.Cancelled.String(), parked)
		return missing, nil
	}
	r.addPending(l, inSchedule, parked)
	return missing, nil
}

// totalWeight returns how many receivers are in the timers.
func totalWeight(ts []engine.Timer) (n int64) {
	for i := range ts {
		n += int64(ts[i].Weight)
	}
	return n
}

// countMissing counts receivers of a schedule that are neither in its timers nor in the log.
// Normally it counts them as lost. If Config.Apart is set and the schedule was made before this
// process started and was never moved, it lists the schedule as unanswered instead: a crash between
// the write of the schedule and the write of its timers lost the timers, and the caller got no
// answer.
func (r *run) countMissing(v *schedule.View, missing int64) {
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
	r.addDrift(missing, api.Drift{
		Class: api.DriftScheduleGone, ID: id, Caller: v.Caller, State: notify.Scheduled.String(),
		Detail: fmt.Sprintf("%d of the %d receivers of the schedule, which is due at %s, are neither in a timer nor in the log", missing, v.Accepted, formatMs(v.FireAt)),
	})
}

// originalRecord identifies an original chunk and its record of the log.
type originalRecord struct {
	chunk    notify.Chunk
	position logPosition
}

// suspect is an original chunk with the receivers that have neither an outcome nor evidence.
type suspect struct {
	digest    uint64          // digest of the chunk's receivers column
	env       notify.Envelope // without content and receivers
	receivers []*suspectReceiver
}

type suspectReceiver struct {
	index, pos  uint32
	stand       whereabouts // where the receiver had to be in the last round
	stillRounds int         // rounds in a row in which its rows did not change
}

func originalRecordOf(f *engine.Found) originalRecord {
	return originalRecord{f.Envelope.Chunk, logPosition{log.TopicPartition{Topic: f.Topic, Partition: f.LogPart}, f.Offset}}
}

// addSuspect adds a receiver to the suspects. st says where the receiver must be, according to its
// rows.
func (r *run) addSuspect(f *engine.Found, st whereabouts, index, pos uint32) {
	p := originalRecordOf(f)
	s := r.suspects[p]
	if s == nil {
		e := &f.Envelope
		s = &suspect{digest: notify.ColumnDigest(e.Receivers), env: notify.Envelope{
			Chunk: e.Chunk, FanOut: e.FanOut, Channel: e.Channel, Category: e.Category, Accepted: e.Accepted, Caller: strings.Clone(e.Caller), Count: e.Count,
		}}
		r.suspects[p] = s
	}
	st.answeredAt = nil // saves memory: each round computes it again
	s.receivers = append(s.receivers, &suspectReceiver{index: index, pos: pos, stand: st})
	r.suspectCount++
}

// pendingEnvelope is evidence for suspects: an envelope in a timer, in the spill buffer or in the
// log that contains some of them.
type pendingEnvelope struct {
	key      envelopeKey
	where    string          // inTimer, inSpill or inLog
	position logPosition     // if it is in the log
	indexes  map[uint32]bool // request indexes of the suspects in it
}

// answeredBy reports whether the envelope is no evidence, because the receiver's rows already contain
// its outcome. It returns false for a copy in the log after the record that gave the outcome: the
// worker that reads this copy writes the retries and deferrals of the row again.
func (l *pendingEnvelope) answeredBy(st *whereabouts) bool {
	by, ok := st.answeredAt[l.key]
	return ok && (l.where != inLog || l.position.tp != by.tp || l.position.offset <= by.offset)
}

// maxRounds is the largest number of rounds for a suspect whose rows change again and again. After
// these rounds the suspect counts as pending, because a worker is working on it.
const maxRounds = 12

// confirmSuspects checks the suspects again, round by round, until each suspect is terminal, has
// evidence, or is drift. A suspect is drift if it stayed unchanged for Config.Rounds rounds.
func (r *run) confirmSuspects(ctx context.Context) error {
	for round := 1; len(r.suspects) > 0; round++ {
		if err := r.waitSettle(ctx); err != nil {
			return err
		}
		leads, err := r.readPendingEnvelopes(ctx)
		if err != nil {
			return err
		}
		for p, s := range r.suspects {
			rows, err := r.cfg.Status.Chunk(ctx, p.chunk)
			if err != nil {
				return err
			}
			c := ownRows(rows, s.digest)
			left := s.receivers[:0]
			for _, x := range s.receivers {
				if !r.decideSuspect(p, s, c, x, leads[p.chunk], round) {
					left = append(left, x)
				}
			}
			if s.receivers = left; len(left) == 0 {
				delete(r.suspects, p)
			}
		}
	}
	r.suspectCount = 0
	return nil
}

// decideSuspect counts a suspect as terminal, pending or lost. If the next round must check the
// suspect again, it counts nothing and returns false.
func (r *run) decideSuspect(p originalRecord, s *suspect, c *chunk, x *suspectReceiver, leads []pendingEnvelope, round int) bool {
	l := r.ledger(s.env.Caller, s.env.Channel.String(), s.env.Accepted)
	out := notify.Fold(c.rows, x.index, x.pos)
	if out.State.Terminal() {
		r.addTerminal(l, out.State.String(), 1)
		r.rep.Confirmed++
		return true
	}
	st := c.locate(x.index, x.pos, p.position)
	for i := range leads {
		ev := &leads[i]
		if !ev.indexes[x.index] || ev.answeredBy(&st) {
			continue
		}
		where := ev.where
		if where == inLog && st.claimed {
			where = inClaim
		}
		r.addPending(l, where, 1)
		r.rep.Confirmed++
		return true
	}
	if st.lastUpdated != x.stand.lastUpdated || st.key != x.stand.key || st.handedOn != x.stand.handedOn {
		x.stillRounds = 0
	} else {
		x.stillRounds++
	}
	x.stand, x.stand.answeredAt = st, nil
	switch {
	case x.stillRounds >= r.cfg.Rounds:
		l.Lost++
		class, detail := st.driftClass()
		r.addDrift(1, api.Drift{Class: class, ID: s.env.ID(x.index).String(), Caller: s.env.Caller, State: out.State.String(), Detail: detail, Updated: st.lastUpdated})
		return true
	case round >= maxRounds:
		r.addPending(l, inClaim, 1)
		return true
	}
	return false
}

// readPendingEnvelopes reads all evidence for suspects: timers, the spill buffer, and the part of
// the log that is not committed.
func (r *run) readPendingEnvelopes(ctx context.Context) (map[notify.Chunk][]pendingEnvelope, error) {
	wanted := map[notify.Chunk]map[uint32]bool{}
	for p, s := range r.suspects {
		w := wanted[p.chunk]
		if w == nil {
			w = map[uint32]bool{}
			wanted[p.chunk] = w
		}
		for _, x := range s.receivers {
			w[x.index] = true
		}
	}
	out := map[notify.Chunk][]pendingEnvelope{}
	add := func(value []byte, where string, at logPosition) error {
		var one *pendingEnvelope
		return eachReceiver(value, func(e *notify.Envelope, index uint32) {
			if !wanted[e.Chunk][index] {
				return
			}
			if one == nil {
				key := e.Key()
				out[e.Chunk] = append(out[e.Chunk], pendingEnvelope{keyOf(&key), where, at, map[uint32]bool{}})
				one = &out[e.Chunk][len(out[e.Chunk])-1]
			}
			one.indexes[index] = true
		})
	}
	// A release moves work from the timers to the log, so read the log after the timers. Parking
	// moves work in the other direction; the next round finds that work.
	if err := r.eachTimer(ctx, func(t *engine.Timer) error {
		return cmp.Or(add(t.Payload, inTimer, logPosition{}), ctx.Err())
	}); err != nil {
		return nil, err
	}
	spilled, err := r.cfg.Spill.Peek(ctx, maxSpilled)
	if err != nil {
		return nil, err
	}
	for i := range spilled {
		if err := add(spilled[i].Value, inSpill, logPosition{}); err != nil {
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
			return add(rec.Value, inLog, logPosition{tp, rec.Offset})
		})
		if e, ok := errors.AsType[*notify.Error](err); !ok || e.Kind != notify.KindGone {
			return out, err
		}
	}
}

func (h logPosition) String() string {
	return fmt.Sprintf("%s/%d@%d", h.tp.Topic, h.tp.Partition, h.offset)
}

func formatMs(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }
