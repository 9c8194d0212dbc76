package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/timer"
)

// Worker brings the envelopes of one lane to their outcomes. It is the handler
// of a consumer group; the group owns the goroutine that calls it.
type Worker struct {
	cfg      Config
	capacity *quota // addresses at the provider
	claims   *claims
	scratch  sync.Pool // *scratch
	looks    sync.Pool // *looks
	rated    Rated     // the provider, if it has a rate of its own
	// claimLast: windows are claimed once they hold capacity. SMS, and whatever
	// has a rate, is sent at one far below that of claims; claimed late, codes pass
	// alerts in the queue for capacity, and nothing is ambiguous that was never
	// called. Others claim ahead, to keep thousands of calls under way.
	claimLast bool
}

// New returns a worker that starts nothing.
func New(cfg Config) *Worker {
	cfg = cfg.withDefaults()
	w := &Worker{cfg: cfg, capacity: newQuota(cfg.InFlight), claims: &claims{most: cfg.InFlight}}
	w.rated, _ = cfg.Provider.(Rated)
	w.claimLast = w.rated != nil || cfg.Lane.Channel == notify.SMS
	if w.claimLast && w.rated == nil { // else it is looked at before the permit
		w.capacity.shut = func() (bool, time.Time, <-chan struct{}) { return cfg.Health.shut(&w.cfg.Routes) }
	}
	return w
}

// Assigned implements log.Handler: it returns what handles a partition's
// records until ctx ends.
func (w *Worker) Assigned(ctx context.Context, tp log.TopicPartition) log.PartitionHandler {
	return newPartition(ctx, w, tp)
}

// due waits for a retry's time, or parks it when that is far. False: the job
// ends here, parked or dropped.
func (w *Worker) due(j *job) bool {
	at := time.UnixMilli(j.env.NotBefore)
	wait := time.Until(at)
	switch {
	case wait <= 0:
		return true
	case wait <= w.cfg.Hold:
		return notify.Sleep(j.p.soft, wait)
	}
	ctx := j.p.ctx
	span := w.cfg.Tracer.Start("park", traceOf(&j.env))
	defer span.End()
	t := engine.Timer{FireAt: j.env.NotBefore, ID: timerID(j.row.Key), Kind: timer.KindEnvelope, Target: j.msg.Topic, Payload: j.msg.Value}
	if w.park(ctx, []engine.Timer{t}, int(j.env.Count)) == nil {
		j.p.forget(j)
		j.msg.Done()
	}
	return false
}

// park puts timers of so many receivers into the timer store, however long that
// takes.
func (w *Worker) park(ctx context.Context, ts []engine.Timer, receivers int) error {
	err := w.until(ctx, "timer store", func() error { return w.cfg.Parker.Park(ctx, ts) })
	if f := w.cfg.Events.Parked; err == nil && f != nil {
		f(w.cfg.Lane, receivers)
	}
	return err
}

// mismatch handles an envelope whose key has a row of other receivers: a
// request was split differently the second time. What the row says is done is
// done; the others run as a derived part of their own.
func (w *Worker) mismatch(ctx context.Context, j *job, row *notify.Row) {
	w.cfg.Logger.Error("chunk met again with other receivers; deduplicating one by one",
		"base", j.env.Chunk.Base.String(), "partition", j.env.Chunk.Partition, "block", j.env.Chunk.Block, "trace_id", notify.TraceID(j.env.Trace))
	j.p.leave(j)
	var seen map[uint32]struct{}
	if w.until(ctx, "the first copy of a chunk", func() (err error) { seen, err = w.seen(ctx, row); return err }) != nil {
		return
	}
	d := j.env
	var wr notify.ReceiverWriter
	rd := notify.ReadReceivers(d.Receivers)
	for r := (notify.Receiver{}); rd.Next(&r); {
		if _, ok := seen[r.Index]; !ok {
			wr.Append(r)
			if wr.Count() == 1 {
				d.First = r.Index
			}
		}
	}
	if wr.Count() > 0 {
		d.Receivers, d.Count = wr.Bytes(), wr.Count()
		d.Deferrals = 1<<15 | d.Deferrals
		d.Cause, d.Parent = "split_differently", row.Digest
		rec := log.Record{Topic: w.cfg.Lane.Topic(), Partition: j.msg.Partition, Value: notify.AppendEnvelope(nil, &d)}
		if w.until(ctx, "log", func() error { return w.cfg.Log.Append(ctx, []log.Record{rec}) }) != nil {
			return
		}
	}
	j.p.forget(j)
	j.msg.Done()
}

// seen is the request indexes of the envelope that a row is about.
func (w *Worker) seen(ctx context.Context, row *notify.Row) (map[uint32]struct{}, error) {
	if len(row.Index) == 0 {
		return w.cfg.Seen(ctx, row)
	}
	m := make(map[uint32]struct{}, len(row.Index))
	for _, x := range row.Index {
		m[x] = struct{}{}
	}
	return m, nil
}

// poison puts a record nobody can decode aside, with its origin.
func (w *Worker) poison(ctx context.Context, m message, cause error) error {
	if f := w.cfg.Events.Poison; f != nil {
		f(m.Topic)
	}
	if cause == nil {
		cause = errors.New("not of this lane")
	}
	w.cfg.Logger.Error("undecodable record", "topic", m.Topic, "partition", m.Partition, "offset", m.Offset, "err", cause)
	aside := log.Poisoner{Log: w.cfg.Log}
	return w.until(ctx, "log", func() error { return aside.Poison(ctx, m, cause) })
}

// damaged puts the bytes of an outcome row that cannot be decoded aside, with the
// origin of its envelope, and replaces the row by one that says of each receiver of
// the envelope that it may have been called, because the row's content is lost.
func (w *Worker) damaged(ctx context.Context, j *job, row *notify.Row) error {
	if f := w.cfg.Events.Damaged; f != nil {
		f(w.cfg.Lane)
	}
	cause := fmt.Errorf("outcome row of %s %s cannot be decoded", j.env.Chunk.Base, chunkName(j.env.Chunk))
	w.cfg.Logger.Error("undecodable outcome row; its receivers may have been called", "receivers", j.env.Count,
		"topic", j.msg.Topic, "partition", j.msg.Partition, "offset", j.msg.Offset, "trace_id", notify.TraceID(j.env.Trace), "err", cause)
	aside := log.Poisoner{Log: w.cfg.Log}
	m := log.NewMsg(log.Record{Topic: j.msg.Topic, Partition: j.msg.Partition, Offset: j.msg.Offset, Value: row.Damaged, Time: j.msg.Time}, func() {})
	*row = j.row
	row.StartedUpTo, row.Starts = j.env.Count, 1
	return w.until(ctx, "log", func() error { return aside.Poison(ctx, m, cause) })
}

func (w *Worker) routeOf(address []byte) string {
	if n := w.cfg.Routes.Of(address); n >= 0 {
		return w.cfg.Routes.Names[n]
	}
	return ""
}

// until repeats f until it succeeds or ctx ends: what must be durable before a
// mark is never given up.
func (w *Worker) until(ctx context.Context, what string, f func() error) error {
	for pause := (notify.Pause{}); ; {
		err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.cfg.Logger.Error("cannot hand on; trying again", "to", what, "lane", w.cfg.Lane.String(), "err", err)
		if !pause.Wait(ctx) {
			return ctx.Err()
		}
	}
}

func chunkName(c notify.Chunk) string {
	return strconv.Itoa(int(c.Partition)) + "." + strconv.FormatUint(uint64(c.Block), 10)
}
