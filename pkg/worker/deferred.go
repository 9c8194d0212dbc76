package worker

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/timer"
)

const (
	// deferredEvery is the pause between two counts of deferred receivers.
	deferredEvery = 5 * time.Second
	// deferredIdle bounds the cost of a count in a store with many timers. After each page the count
	// sleeps deferredIdle times as long as the page took. So it uses at most a tenth of one
	// processor.
	deferredIdle = 9
	// deferredAhead is how far into the future a count reads timers. Workers defer by at most a day
	// (quiet hours), and by at most an hour for a Retry-After.
	deferredAhead = 48 * time.Hour
	deferredPage  = 256 // rows
	// deferredReasons is the largest number of reasons per topic. A reason may be any code of a
	// provider, and each reason becomes a label of a metric. So the number of reasons must have a
	// limit. All further reasons are added up as otherReasons.
	deferredReasons = 20
	otherReasons    = "other"
	unknownReason   = "unknown"
)

// Deferred describes the receivers of a topic that wait in the timer store for one reason: a
// retry, quiet hours, an open circuit or a blocked account.
type Deferred struct {
	Reason    string // code of the failure or of the wait
	Receivers int64
	Oldest    time.Time // when the oldest request of these receivers was accepted
	Next      time.Time // when the first of the receivers is due
}

// DeferredCount is the result of one count. It is immutable.
type DeferredCount struct {
	At time.Time // when the count began
	// Topics contains the reasons of each topic. Reasons with more receivers are first. At the end
	// are reasons with no receivers, which an earlier count found and this count did not find. These
	// reasons stay in the list, so that their metrics go to 0 instead of disappearing.
	Topics map[string][]Deferred
}

// DeferredCounter counts deferred receivers from the rows of the timer store. A count of these rows
// gives the same result in every process and after a restart. Counters in memory would not.
type DeferredCounter struct {
	Timers engine.Timers
	Shards engine.Shards
	Pause  time.Duration // between two counts; 0: 5 s
	Logger *slog.Logger

	last atomic.Pointer[DeferredCount] // nil: nothing was counted yet
}

// Run counts again and again until ctx ends. If a count fails, Run keeps the last count.
func (d *DeferredCounter) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if _, err := d.Count(ctx, time.Now()); err != nil && ctx.Err() == nil {
			d.Logger.Warn("cannot count the deferred notifications; will try again", "err", err)
		}
		notify.Sleep(ctx, cmp.Or(d.Pause, deferredEvery))
	}
	return nil
}

// Set replaces the last count by a count that another process made.
func (d *DeferredCounter) Set(c DeferredCount) { d.last.Store(&c) }

// Count counts the receivers of timers that are due within deferredAhead after the time now.
func (d *DeferredCounter) Count(ctx context.Context, now time.Time) (none DeferredCount, err error) {
	sums := map[string]map[string]*Deferred{}
	from := now.UnixMilli()
	shards, err := d.Shards()
	if err != nil {
		return DeferredCount{}, err
	}
	for shard := range shards.Most() {
		minutes, err := d.Timers.Buckets(ctx, uint16(shard), from/60_000, now.Add(deferredAhead).UnixMilli()/60_000)
		if err != nil {
			return none, err
		}
		for _, m := range minutes {
			if err := countMinute(ctx, d.Timers, engine.TimerPartition{Bucket: m, Shard: uint16(shard)}, from, sums); err != nil {
				return none, err
			}
		}
	}
	c := &DeferredCount{At: now, Topics: map[string][]Deferred{}}
	for topic, reasons := range sums {
		c.Topics[topic] = largestReasons(reasons)
	}
	if was := d.last.Load(); was != nil {
		c.keepZero(was)
	}
	d.last.Store(c)
	return *c, nil
}

// countMinute adds the deferred envelopes of one timer partition to the map sums, by topic and
// reason. It counts an envelope until the envelope is due. It also counts receivers that a receipt
// or a cancellation has settled in the meantime, because the timer's row does not show that.
func countMinute(ctx context.Context, timers engine.Timers, p engine.TimerPartition, from int64, sums map[string]map[string]*Deferred) error {
	until := p.Bucket*60_000 + 59_999
	after := engine.TimerCursor{FireAt: from}
	for {
		began := time.Now()
		rows, err := timers.ScanWithoutPayload(ctx, p, after, until, deferredPage)
		if err != nil || len(rows) == 0 {
			return err
		}
		last := rows[len(rows)-1]
		if slices.ContainsFunc(rows, func(t engine.Timer) bool { return isDeferred(&t) && len(t.Payload) == 0 }) {
			// This store keeps payloads in another place. Read the payloads only for pages that contain
			// deferred envelopes.
			if rows, err = timers.Scan(ctx, p, after, last.FireAt, len(rows)); err != nil {
				return err
			}
		}
		for i := range rows {
			addDeferred(sums, &rows[i])
		}
		after = engine.TimerCursor{FireAt: last.FireAt, ID: last.ID}
		notify.Sleep(ctx, deferredIdle*time.Since(began))
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// isDeferred reports whether a timer is an envelope that a worker has deferred. Other timers differ:
// the timer of a scheduled envelope has a Head, and the timer of a trigger has another Kind.
func isDeferred(t *engine.Timer) bool { return t.Kind == timer.KindEnvelope && t.Head.IsZero() }

func addDeferred(sums map[string]map[string]*Deferred, t *engine.Timer) {
	var e notify.Envelope
	if !isDeferred(t) || notify.DecodeHead(t.Payload, &e) != nil {
		return
	}
	reasons := sums[t.Target]
	if reasons == nil {
		reasons = map[string]*Deferred{}
		sums[t.Target] = reasons
	}
	addReason(reasons, Deferred{
		Reason:    strings.Clone(cmp.Or(DeferralCode(e.Cause), unknownReason)), // cloned, so that the large payload can be freed
		Receivers: int64(e.Count), Oldest: time.UnixMilli(e.Accepted).UTC(), Next: time.UnixMilli(t.FireAt).UTC(),
	})
}

func addReason(reasons map[string]*Deferred, d Deferred) {
	sum := reasons[d.Reason]
	if sum == nil {
		reasons[d.Reason] = &d
		return
	}
	sum.Receivers += d.Receivers
	if d.Oldest.Before(sum.Oldest) {
		sum.Oldest = d.Oldest
	}
	if d.Next.Before(sum.Next) {
		sum.Next = d.Next
	}
}

// largestReasons sorts reasons by their number of receivers, largest first. It returns at most
// deferredReasons entries. If there are more reasons, the last entry is otherReasons and contains the
// sum of the smallest reasons.
func largestReasons(reasons map[string]*Deferred) []Deferred {
	out := make([]Deferred, 0, len(reasons))
	for _, d := range reasons {
		out = append(out, *d)
	}
	slices.SortFunc(out, func(a, b Deferred) int {
		return cmp.Or(cmp.Compare(b.Receivers, a.Receivers), cmp.Compare(a.Reason, b.Reason))
	})
	if len(out) <= deferredReasons {
		return out
	}
	rest := map[string]*Deferred{}
	for _, d := range out[deferredReasons-1:] {
		d.Reason = otherReasons
		addReason(rest, d)
	}
	return append(out[:deferredReasons-1], *rest[otherReasons])
}

// keepZero adds to the count c the reasons that only an earlier count contains, with 0 receivers
// (see DeferredCount). A topic gets at most twice deferredReasons reasons.
func (c *DeferredCount) keepZero(earlier *DeferredCount) {
	for topic, reasons := range earlier.Topics {
		for _, d := range reasons {
			now := c.Topics[topic]
			if len(now) < 2*deferredReasons && !slices.ContainsFunc(now, func(n Deferred) bool { return n.Reason == d.Reason }) {
				c.Topics[topic] = append(now, Deferred{Reason: d.Reason, Oldest: c.At, Next: c.At})
			}
		}
	}
}

// OfTopic returns the deferred receivers of a topic, one Deferred for each reason. It returns nil
// before the first count.
func (d *DeferredCounter) OfTopic(topic string) []Deferred {
	c := d.last.Load()
	if c == nil {
		return nil
	}
	return slices.DeleteFunc(append([]Deferred{}, c.Topics[topic]...), func(d Deferred) bool { return d.Receivers == 0 })
}

// OfLane returns the deferred receivers of a lane by reason, and the time at which the count began.
// The result includes reasons with no receivers; see DeferredCount. The result ok is false before
// the first count.
func (d *DeferredCounter) OfLane(l notify.Lane) (reasons map[string]*Deferred, at time.Time, ok bool) {
	c := d.last.Load()
	if c == nil {
		return nil, at, false
	}
	reasons = map[string]*Deferred{}
	for _, topic := range []string{l.Topic(), l.DLQTopic()} {
		for _, d := range c.Topics[topic] {
			addReason(reasons, d)
		}
	}
	return reasons, c.At, true
}
