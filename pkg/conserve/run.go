package conserve

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
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
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

	bounds   map[log.TopicPartition]Bounds
	groups   map[group]*api.Ledger
	listed   map[string]int // findings by class
	suspects map[place]*suspect
	waiting  int                   // receivers among the suspects
	late     map[notify.Chunk]bool // counted, and the history holds a copy of after the beginning
}

func newRun(a *Auditor, since time.Time, findings int) *run {
	r := &run{a: a, cfg: &a.cfg, most: findings, groups: map[group]*api.Ledger{}, listed: map[string]int{}, suspects: map[place]*suspect{}, late: map[notify.Chunk]bool{}}
	if !since.IsZero() {
		r.since = since.UnixMilli()
		r.rep.Since = &since
	}
	r.rep.States, r.rep.Waiting, r.rep.Classes = map[string]int64{}, map[string]int64{}, map[string]int64{}
	r.rep.Findings = []api.Drift{}
	return r
}

// through takes the steps, one run at a time.
func (r *run) through(ctx context.Context, steps ...func(context.Context) error) (api.Conservation, error) {
	if err := r.cfg.Away(); err != nil {
		return api.Conservation{}, err
	}
	select {
	case r.a.one <- struct{}{}:
		defer func() { <-r.a.one }()
	case <-ctx.Done(): // who went away does not keep its place in the line
		return api.Conservation{}, ctx.Err()
	}
	r.now = time.Now()
	r.rep.At = r.now.UTC()
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return api.Conservation{}, err
		}
	}
	r.finish()
	r.rep.TookMS = time.Since(r.now).Milliseconds()
	return r.rep, nil
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

// ended counts n that are terminal in a state.
func (r *run) ended(l *api.Ledger, state string, n int64) {
	l.Terminal += n
	r.rep.States[state] += n
}

// waits counts n that are pending, with evidence somewhere.
func (r *run) waits(l *api.Ledger, where string, n int64) {
	l.Pending += n
	r.rep.Waiting[where] += n
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
	r.bounds, err = r.follow(ctx)
	return err
}

// follow waits until the history has read what the log has now, and returns where
// the log stands.
func (r *run) follow(ctx context.Context) (map[log.TopicPartition]Bounds, error) {
	bounds, err := r.cfg.Log.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	return bounds, r.cfg.History.Sync(ctx, r.ends(bounds))
}

// ends is where the topics of first attempts end.
func (r *run) ends(bounds map[log.TopicPartition]Bounds) map[history.Part]int64 {
	out := map[history.Part]int64{}
	for tp, b := range bounds {
		if slices.Contains(r.cfg.First, tp.Topic) {
			out[history.Part(tp)] = b.End
		}
	}
	return out
}

// settle waits until what was on its way between two places has arrived.
func (r *run) settle(ctx context.Context) error {
	if !notify.Sleep(ctx, r.cfg.Settle) {
		return ctx.Err()
	}
	return nil
}

// timers calls fn with every timer, in the direction in which they go: those of the
// cold tier first.
func (r *run) timers(ctx context.Context, fn func(*engine.Timer) error) error {
	if err := r.cfg.Cold.Pending(ctx, fn); err != nil {
		return err
	}
	return r.cfg.Timers.Pending(ctx, fn)
}

// decode reads an envelope. ok is false for a value that is no envelope. It returns
// notify.ErrNewer for an envelope of a newer release: without the error its receivers
// would count as gone.
func decode(value []byte, e *notify.Envelope) (ok bool, err error) {
	if err = notify.DecodeEnvelope(value, e); errors.Is(err, notify.ErrNewer) {
		return false, err
	}
	return err == nil, nil
}

// originals streams every original chunk there was when the audit began: the
// sealed ones, then those of the log behind. Where the log is trimmed meanwhile,
// what it held is sealed.
func (r *run) originals(ctx context.Context) error {
	ends := r.ends(r.bounds)
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
		from, to := map[log.TopicPartition]int64{}, map[log.TopicPartition]int64{}
		for p, end := range ends {
			at[p] = max(at[p], sealed[p])
			if at[p] < end {
				from[log.TopicPartition(p)], to[log.TopicPartition(p)] = at[p], end
			}
		}
		err = r.cfg.Log.Read(ctx, from, to, func(tp log.TopicPartition, rec *log.Record) error {
			at[history.Part(tp)] = rec.Offset + 1
			var f engine.Found
			if rec.Lost() {
				return nil
			}
			if ok, err := decode(rec.Value, &f.Envelope); !ok || f.Envelope.Derived() {
				return err
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
		start := min(now[log.TopicPartition(p)].Start, end)
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
		ok, err := decode(recs[i].Value, &e)
		if err != nil {
			return err
		}
		if !ok || e.Derived() {
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
		r.waits(l, inSpill, int64(e.Count))
	}
	return nil
}

// maxSpilled is more records than the bounded spill buffer holds.
const maxSpilled = 1 << 24

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
	if _, err := r.follow(ctx); err != nil {
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
