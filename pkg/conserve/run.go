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

// ledgerKey identifies a group: everything of one caller and one channel that was accepted in the
// same hour. A ledger contains the sums of one group.
type ledgerKey struct {
	caller, channel string
	hour            int64 // beginning of the hour, ms since 1970
}

// otherCallers stands for the caller in the groups that an audit opens after the first
// Config.MaxGroups groups. Each of them adds up all further callers of one channel and hour.
const otherCallers = "(others)"

const hour = int64(time.Hour / time.Millisecond)

// run is one audit. One goroutine owns all fields.
type run struct {
	a           *Auditor
	cfg         *Config
	now         time.Time
	since       int64
	rep         api.Conservation
	maxFindings int // how many findings of a class are listed

	bounds       map[log.TopicPartition]Bounds
	groups       map[ledgerKey]*api.Ledger
	listed       map[string]int // how many findings are listed, by class
	suspects     map[originalRecord]*suspect
	suspectCount int // number of receivers of all suspects
	// countedLate contains chunks that have a second copy, appended after the audit began. The
	// history counts the second copy, so the audit counts the first copy that it reads.
	countedLate map[notify.Chunk]bool
}

func newRun(a *Auditor, since time.Time, findings int) *run {
	r := &run{a: a, cfg: &a.cfg, maxFindings: findings, groups: map[ledgerKey]*api.Ledger{}, listed: map[string]int{}, suspects: map[originalRecord]*suspect{}, countedLate: map[notify.Chunk]bool{}}
	if !since.IsZero() {
		r.since = since.UnixMilli()
		r.rep.Since = &since
	}
	r.rep.States, r.rep.Waiting, r.rep.Classes = map[string]int64{}, map[string]int64{}, map[string]int64{}
	r.rep.Findings = []api.Drift{}
	return r
}

// runSteps waits until no other audit runs, runs the steps and returns the result.
func (r *run) runSteps(ctx context.Context, steps ...func(context.Context) error) (api.Conservation, error) {
	if err := r.cfg.Away(); err != nil {
		return api.Conservation{}, err
	}
	select {
	case r.a.turn <- struct{}{}:
		defer func() { <-r.a.turn }()
	case <-ctx.Done():
		return api.Conservation{}, ctx.Err()
	}
	r.now = time.Now()
	r.rep.At = r.now.UTC()
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return api.Conservation{}, err
		}
	}
	r.sumUp()
	r.rep.TookMS = time.Since(r.now).Milliseconds()
	return r.rep, nil
}

// ledger returns the ledger for a caller, a channel and the hour that contains the time accepted
// (ms since 1970).
func (r *run) ledger(caller, channel string, accepted int64) *api.Ledger {
	g := ledgerKey{caller, channel, accepted - accepted%hour}
	l := r.groups[g]
	if l == nil && len(r.groups) >= r.cfg.MaxGroups {
		g.caller = otherCallers
		l = r.groups[g]
	}
	if l == nil {
		l = &api.Ledger{}
		r.groups[g] = l
	}
	return l
}

// addTerminal counts n receivers or triggers in a terminal state.
func (r *run) addTerminal(l *api.Ledger, state string, n int64) {
	l.Terminal += n
	r.rep.States[state] += n
}

// addPending counts n pending receivers or triggers. The parameter place is where their evidence
// was found.
func (r *run) addPending(l *api.Ledger, place string, n int64) {
	l.Pending += n
	r.rep.Waiting[place] += n
}

// addDrift counts n receivers or triggers of d's class. It lists d unless maxFindings of this class
// are already listed.
func (r *run) addDrift(n int64, d api.Drift) {
	r.rep.Classes[d.Class] += n
	if r.listed[d.Class] >= r.maxFindings {
		r.rep.Truncated = true
		return
	}
	r.listed[d.Class]++
	r.rep.Findings = append(r.rep.Findings, d)
}

// sumUp adds the groups to the report, and computes the totals of all groups and of all classes.
func (r *run) sumUp() {
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

// readBounds reads the offsets of the log into r.bounds, and waits until the history contains all
// records of first attempts before the end offsets.
func (r *run) readBounds(ctx context.Context) (err error) {
	r.bounds, err = r.followLog(ctx)
	return err
}

// followLog reads the offsets of the log, waits until the history contains all records of first
// attempts before the end offsets, and returns the offsets.
func (r *run) followLog(ctx context.Context) (map[log.TopicPartition]Bounds, error) {
	bounds, err := r.cfg.Log.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	return bounds, r.cfg.History.Sync(ctx, r.firstTopicEnds(bounds))
}

// firstTopicEnds returns the end offsets of the topics of first attempts.
func (r *run) firstTopicEnds(bounds map[log.TopicPartition]Bounds) map[history.Part]int64 {
	out := map[history.Part]int64{}
	for tp, b := range bounds {
		if slices.Contains(r.cfg.First, tp.Topic) {
			out[history.Part(tp)] = b.End
		}
	}
	return out
}

// waitSettle waits for the duration Config.Settle. Work that is moving, for example from a timer to
// the log, arrives during this wait.
func (r *run) waitSettle(ctx context.Context) error {
	if !notify.Sleep(ctx, r.cfg.Settle) {
		return ctx.Err()
	}
	return nil
}

// eachTimer calls fn with every timer. It reads the cold tier first. Timers move from the cold tier
// to the near tier, so it misses no timer.
func (r *run) eachTimer(ctx context.Context, fn func(*engine.Timer) error) error {
	if err := r.cfg.Cold.Pending(ctx, fn); err != nil {
		return err
	}
	return r.cfg.Timers.Pending(ctx, fn)
}

// decode decodes an envelope. ok is false for a value that is not an envelope. It returns
// notify.ErrNewer for an envelope of a newer release, because otherwise the envelope's receivers
// would count as lost.
func decode(value []byte, e *notify.Envelope) (ok bool, err error) {
	if err = notify.DecodeEnvelope(value, e); errors.Is(err, notify.ErrNewer) {
		return false, err
	}
	return err == nil, nil
}

// countOriginals counts every original chunk that existed when the audit began. It reads the sealed
// history, and then the newer part of the log. If the log is trimmed in the meantime, the trimmed
// part has been sealed, so countOriginals continues in the sealed history, after the last offset
// that it has read.
func (r *run) countOriginals(ctx context.Context) error {
	ends := r.firstTopicEnds(r.bounds)
	at := map[history.Part]int64{} // the next offset to read
	for {
		sealed, err := r.cfg.History.Chunks(ctx, at, r.since, func(f *engine.Found) error {
			if end, ok := ends[history.Part{Topic: f.Topic, Partition: f.LogPart}]; ok && f.Offset >= end {
				return nil // appended after the audit began
			}
			return r.countOriginal(ctx, f)
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
			// The id of a scheduled notification has the time of the request, and its record has
			// the time of the release. The notification is too old only if both times are before
			// r.since.
			if max(f.Envelope.Chunk.Base.Time().UnixMilli(), rec.Time.UnixMilli()) < r.since {
				return nil
			}
			f.Topic, f.LogPart, f.Offset = tp.Topic, tp.Partition, rec.Offset
			return r.countOriginal(ctx, &f)
		})
		if err == nil || notify.KindOf(err) != notify.KindGone {
			return err
		}
		if err := r.readLostPart(ctx, at, ends, sealed); err != nil {
			return err
		}
	}
}

// readLostPart reads records that the log lost before the history sealed them. The history may
// still have them in its unsealed tails. It is called after a read of the log has found that
// records are missing.
func (r *run) readLostPart(ctx context.Context, at, ends, sealed map[history.Part]int64) error {
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
			continue // sealed and then trimmed in the meantime: the next round reads the sealed history
		}
		from := max(at[p], sealed[p])
		if err := r.cfg.History.Unsealed(p, from, start, func(f *engine.Found) error {
			if f.Envelope.Chunk.Base.Time().UnixMilli() < r.since {
				return nil
			}
			return r.countOriginal(ctx, f)
		}); err != nil {
			return err
		}
		at[p] = start
	}
	return nil
}

// countSpilled counts the receivers in the spill buffer. These receivers wait until the log is
// reachable.
func (r *run) countSpilled(ctx context.Context) error {
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
		held, err := r.cfg.History.ChunksOf(e.Chunk.Base)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(held, func(h history.Held) bool { return h.Chunk == e.Chunk }) {
			continue // the chunk is in the log, and will soon be removed from the buffer
		}
		l := r.ledger(e.Caller, e.Channel.String(), e.Accepted)
		l.Accepted += int64(e.Count)
		r.addPending(l, inSpill, int64(e.Count))
	}
	return nil
}

// maxSpilled is the limit that is given to Spill.Peek. It is larger than the number of records that
// fit into the spill buffer, so that Peek returns all of them.
const maxSpilled = 1 << 24

// findRowsAlone finds outcome rows whose request is not in the history, although the history should
// contain every request. findRowsAlone checks each such request again after the history has read the
// whole log.
func (r *run) findRowsAlone(ctx context.Context) error {
	from := max(r.since, r.cfg.History.Kept(r.now).Add(time.Hour).UnixMilli())
	alone := map[notify.Base]string{} // the request's caller, by base
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
	if _, err := r.followLog(ctx); err != nil {
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
		r.addDrift(1, api.Drift{
			Class: api.DriftRowAlone, ID: notify.ID{Base: base}.String(), Caller: alone[base],
			Detail: "the request has outcome rows, but it is neither in the history nor in the log",
		})
	}
	return nil
}
