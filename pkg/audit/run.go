package audit

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/stream"
)

// group is what a ledger is of.
type group struct {
	caller, channel string
	hour            int64 // ms since 1970
}

const others = "(others)"

const hour = int64(time.Hour / time.Millisecond)

// run is one audit.
type run struct {
	a     *Auditor
	cfg   *Config
	now   time.Time
	since int64
	rep   api.Conservation
	most  int // findings of a class that are listed

	bounds   map[stream.TopicPartition]Bounds
	groups   map[group]*api.Ledger
	listed   map[string]int // findings by class
	suspects map[place]*suspect
	waiting  int // receivers among the suspects
}

func (r *run) ledger(caller, channel string, accepted int64) *api.Ledger {
	g := group{caller, channel, accepted - accepted%hour}
	l := r.groups[g]
	if l == nil && len(r.groups) >= r.cfg.MaxGroups {
		g.caller = others
		l = r.groups[g]
	}
	if l == nil {
		l = &api.Ledger{}
		r.groups[g] = l
	}
	return l
}

// drift counts n of a class and lists the first.
func (r *run) drift(n int64, d api.Drift) {
	r.rep.Classes[d.Class] += n
	if r.listed[d.Class] >= r.most {
		r.rep.Truncated = true
		return
	}
	r.listed[d.Class]++
	r.rep.Findings = append(r.rep.Findings, d)
}

func (r *run) finish() {
	for g, l := range r.groups {
		r.rep.Groups = append(r.rep.Groups, api.ConservationGroup{Caller: g.caller, Channel: g.channel, Hour: time.UnixMilli(g.hour).UTC(), Ledger: *l})
		r.rep.Accepted += l.Accepted
		r.rep.Terminal += l.Terminal
		r.rep.Pending += l.Pending
		r.rep.Lost += l.Lost
	}
	if r.rep.Groups == nil {
		r.rep.Groups = []api.ConservationGroup{}
	}
	slices.SortFunc(r.rep.Groups, func(a, b api.ConservationGroup) int {
		return cmp.Or(a.Hour.Compare(b.Hour), cmp.Compare(a.Caller, b.Caller), cmp.Compare(a.Channel, b.Channel))
	})
	for _, n := range r.rep.Classes {
		r.rep.Drift += n
	}
}

// begin reads where the log stands, and waits until the history has followed.
func (r *run) begin(ctx context.Context) (err error) {
	if r.bounds, err = r.cfg.Log.Bounds(ctx); err != nil {
		return err
	}
	return r.cfg.History.Sync(ctx, r.ends())
}

// ends is where the topics of first attempts ended when the audit began.
func (r *run) ends() map[history.Part]int64 {
	out := map[history.Part]int64{}
	for tp, b := range r.bounds {
		if slices.Contains(r.cfg.First, tp.Topic) {
			out[history.Part(tp)] = b.End
		}
	}
	return out
}

// originals streams every original chunk there was when the audit began: the
// sealed ones, then those of the log behind. Where the log is trimmed meanwhile,
// what it held is sealed.
func (r *run) originals(ctx context.Context) error {
	ends := r.ends()
	at := map[history.Part]int64{} // what was read
	for {
		sealed, err := r.cfg.History.Chunks(ctx, at, r.since, func(f *engine.Found) error {
			if end, ok := ends[history.Part{Topic: f.Topic, Partition: f.LogPart}]; ok && f.Offset >= end {
				return nil // of after the beginning
			}
			return r.original(ctx, f)
		})
		if err != nil {
			return err
		}
		from, to := map[stream.TopicPartition]int64{}, map[stream.TopicPartition]int64{}
		for p, end := range ends {
			at[p] = max(at[p], sealed[p])
			if at[p] < end {
				from[stream.TopicPartition(p)], to[stream.TopicPartition(p)] = at[p], end
			}
		}
		err = r.cfg.Log.Read(ctx, from, to, func(tp stream.TopicPartition, rec *stream.Record) error {
			at[history.Part(tp)] = rec.Offset + 1
			var f engine.Found
			if rec.Lost() {
				return nil
			}
			if err := notify.DecodeEnvelope(rec.Value, &f.Envelope); errors.Is(err, notify.ErrNewer) {
				return err
			} else if err != nil || f.Envelope.Derived() {
				return nil
			}
			// What was scheduled comes to the log long after its request.
			if max(f.Envelope.Chunk.Base.Time().UnixMilli(), rec.Time.UnixMilli()) < r.since {
				return nil
			}
			f.Topic, f.LogPart, f.Offset = tp.Topic, tp.Partition, rec.Offset
			return r.original(ctx, &f)
		})
		if err == nil || notify.KindOf(err) != notify.KindGone {
			return err
		}
		if err := r.gone(ctx, at, ends, sealed); err != nil {
			return err
		}
	}
}

// gone reads, of what the log does not hold any more although it is not sealed,
// the part that the history has in its tails. Nobody trims that far: it was lost.
func (r *run) gone(ctx context.Context, at, ends, sealed map[history.Part]int64) error {
	now, err := r.cfg.Log.Bounds(ctx)
	if err != nil {
		return err
	}
	for p, end := range ends {
		start := min(now[stream.TopicPartition(p)].Start, end)
		if start <= at[p] {
			continue
		}
		kept, err := r.cfg.History.Chunks(ctx, map[history.Part]int64{p: math.MaxInt64}, math.MaxInt64, nil)
		if err != nil {
			return err
		}
		if kept[p] >= start {
			continue // sealed meanwhile, and trimmed then: the next turn reads it there
		}
		from := max(at[p], sealed[p])
		if err := r.cfg.History.Unsealed(p, from, start, func(f *engine.Found) error {
			if f.Envelope.Chunk.Base.Time().UnixMilli() < r.since {
				return nil
			}
			return r.original(ctx, f)
		}); err != nil {
			return err
		}
		at[p] = start
	}
	return nil
}

// spilled counts what waits for the log.
func (r *run) spilled(ctx context.Context) error {
	recs, err := r.cfg.Spill.Peek(ctx, maxSpilled)
	if err != nil {
		return err
	}
	for i := range recs {
		var e notify.Envelope
		if err := notify.DecodeEnvelope(recs[i].Value, &e); errors.Is(err, notify.ErrNewer) {
			return err
		} else if err != nil || e.Derived() {
			continue
		}
		held, err := r.cfg.History.Of(e.Chunk.Base)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(held, func(h history.Held) bool { return h.Chunk == e.Chunk }) {
			continue // drained, and not dropped from here yet
		}
		l := r.ledger(e.Caller, e.Channel.String(), e.Accepted)
		l.Accepted += int64(e.Count)
		l.Pending += int64(e.Count)
		r.rep.Waiting[inSpill] += int64(e.Count)
	}
	return nil
}

// maxSpilled is more records than the bounded spill buffer holds.
const maxSpilled = 1 << 24

// triggers counts triggers.
func (r *run) triggers(ctx context.Context) error {
	if r.cfg.Triggers == nil {
		return nil
	}
	return r.cfg.Triggers.Audit(ctx, r.since, func(t *engine.Trigger, evidence string) {
		r.rep.Triggers++
		l := r.ledger(t.Caller, "trigger", t.Created)
		l.Accepted++
		state := triggerStates[t.State]
		switch {
		case t.Ended != 0 || t.State >= engine.TriggerFired:
			l.Terminal++
			r.rep.States[state]++
		case evidence != "":
			l.Pending++
			r.rep.Waiting["trigger_"+evidence]++
		default:
			l.Lost++
			r.drift(1, api.Drift{Class: api.DriftTriggerGone, ID: t.ID, Caller: t.Caller, State: state, Detail: "neither a timer nor the queue leads to it; notifyctl reconcile repairs what is due"})
		}
	})
}

var triggerStates = map[engine.TriggerState]string{
	engine.TriggerPending: "PENDING", engine.TriggerInFlight: "IN_FLIGHT", engine.TriggerFired: "FIRED",
	engine.TriggerFailed: "FAILED", engine.TriggerCancelled: "CANCELLED", engine.TriggerExpired: "EXPIRED",
}

// rowsAlone finds outcomes of what nobody accepted: the history, which has every
// original, does not know their request. What it has not read yet is looked at
// again once it has.
func (r *run) rowsAlone(ctx context.Context) error {
	from := max(r.since, r.cfg.History.Kept(r.now).Add(time.Hour).UnixMilli())
	alone := map[notify.Base]string{} // their callers
	var last notify.Base
	err := r.cfg.Status.Scan(ctx, from, r.now.UnixMilli()+1, func(row *notify.Row) error {
		r.rep.Rows++
		if row.Key.Chunk.Base == last {
			return nil
		}
		last = row.Key.Chunk.Base
		has, err := r.cfg.History.Has(last)
		switch {
		case err != nil || has:
			return err
		case len(alone) < r.cfg.Batch:
			alone[last] = strings.Clone(row.Caller)
		default:
			r.rep.Truncated = true
		}
		return nil
	})
	if err != nil || len(alone) == 0 {
		return err
	}
	if r.bounds, err = r.cfg.Log.Bounds(ctx); err != nil {
		return err
	}
	if err := r.cfg.History.Sync(ctx, r.ends()); err != nil {
		return err
	}
	for _, base := range slices.SortedFunc(maps.Keys(alone), func(a, b notify.Base) int { return slices.Compare(a[:], b[:]) }) {
		has, err := r.cfg.History.Has(base)
		if err != nil {
			return err
		}
		if has {
			r.rep.Confirmed++
			continue
		}
		r.drift(1, api.Drift{
			Class: api.DriftRowAlone, ID: notify.ID{Base: base}.String(), Caller: alone[base],
			Detail: "its rows are there, and neither the history nor the log knows the request",
		})
	}
	return nil
}
