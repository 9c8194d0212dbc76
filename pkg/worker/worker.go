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

// Worker delivers the envelopes of one lane. It is the handler of a consumer group. The group owns
// the goroutines that call the Worker.
type Worker struct {
	cfg           Config
	capacity      *quota // addresses at the provider
	openReceivers *openReceivers
	scratch       sync.Pool // *scratch
	batches       sync.Pool // *receiverBatch
	rated         Rated     // the provider, if it is Rated; nil otherwise
	// claimLast means that a window is claimed only when it has capacity. It is true for SMS and for
	// Rated providers, which send far more slowly than claims are written. So an otp message can
	// overtake alerts that wait for capacity, and a receiver that waits for capacity is not ambiguous
	// after a crash. Other lanes claim earlier, to keep thousands of calls in flight.
	claimLast bool
}

// New returns a worker. It starts no goroutine.
func New(cfg Config) *Worker {
	cfg = cfg.withDefaults()
	w := &Worker{cfg: cfg, capacity: newQuota(cfg.InFlight), openReceivers: &openReceivers{limit: cfg.InFlight}}
	w.rated, _ = cfg.Provider.(Rated)
	w.claimLast = w.rated != nil || cfg.Lane.Channel == notify.SMS
	if w.claimLast && w.rated == nil { // a Rated provider's health is checked before the permit
		w.capacity.shut = func() (bool, time.Time, <-chan struct{}) { return cfg.Health.allShut(&w.cfg.Routes) }
	}
	return w
}

// Assigned implements log.Handler. It returns the handler of a partition's records. The handler
// stops when ctx ends.
func (w *Worker) Assigned(ctx context.Context, tp log.TopicPartition) log.PartitionHandler {
	return newPartition(ctx, w, tp)
}

// waitDue waits until a retry is due. If the wait is longer than Hold, it parks the retry in the
// timer store instead. It returns false if the retry is parked, or if the partition is being
// drained and the next owner makes the retry.
func (w *Worker) waitDue(j *job) bool {
	at := time.UnixMilli(j.env.NotBefore)
	wait := time.Until(at)
	switch {
	case wait <= 0:
		return true
	case wait <= w.cfg.Hold:
		return notify.Sleep(j.p.untilDrain, wait)
	}
	ctx := j.p.ctx
	span := w.cfg.Tracer.Start("park", traceOf(&j.env))
	defer span.End()
	t := engine.Timer{FireAt: j.env.NotBefore, ID: timerID(j.row.Key), Kind: timer.KindEnvelope, Target: j.msg.Topic, Payload: j.msg.Value}
	if w.park(ctx, []engine.Timer{t}, int(j.env.Count)) == nil {
		j.p.forgetJob(j)
		j.msg.Done()
	}
	return false
}

// park stores the timers ts, which hold the given number of receivers. It tries again until it
// succeeds or ctx ends. After a success, it reports the number of receivers to Events.Parked.
func (w *Worker) park(ctx context.Context, ts []engine.Timer, receivers int) error {
	err := w.retryUntil(ctx, "timer store", func() error { return w.cfg.Parker.Park(ctx, ts) })
	if f := w.cfg.Events.Parked; err == nil && f != nil {
		f(w.cfg.Lane, receivers)
	}
	return err
}

// mismatch handles an envelope whose key has a row for other receivers. This happens if a repeated
// request was split into other chunks. Receivers that are also in the envelope of the row are
// dropped. For the others, mismatch appends a derived envelope to the log.
func (w *Worker) mismatch(ctx context.Context, j *job, row *notify.Row) {
	w.cfg.Logger.Error("a chunk came again with other receivers; receivers that were in the first copy are dropped, the others are sent",
		"base", j.env.Chunk.Base.String(), "partition", j.env.Chunk.Partition, "block", j.env.Chunk.Block, "trace_id", notify.TraceID(j.env.Trace))
	j.p.leaveOrder(j)
	var seen map[uint32]struct{}
	if w.retryUntil(ctx, "the first copy of a chunk", func() (err error) { seen, err = w.seenIndexes(ctx, row); return err }) != nil {
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
		if w.retryUntil(ctx, "log", func() error { return w.cfg.Log.Append(ctx, []log.Record{rec}) }) != nil {
			return
		}
	}
	j.p.forgetJob(j)
	j.msg.Done()
}

// seenIndexes returns the indexes, in the request, of the receivers in the envelope of a row.
func (w *Worker) seenIndexes(ctx context.Context, row *notify.Row) (map[uint32]struct{}, error) {
	if len(row.Index) == 0 {
		return w.cfg.ChunkIndexes(ctx, row)
	}
	m := make(map[uint32]struct{}, len(row.Index))
	for _, x := range row.Index {
		m[x] = struct{}{}
	}
	return m, nil
}

// poison puts a record that cannot be decoded into the poison topic, with its origin. If cause is
// nil, the record belongs to another lane.
func (w *Worker) poison(ctx context.Context, m message, cause error) error {
	if f := w.cfg.Events.Poison; f != nil {
		f(m.Topic)
	}
	if cause == nil {
		cause = errors.New("the record belongs to another lane")
	}
	w.cfg.Logger.Error("a record cannot be handled; it is put into the poison topic", "topic", m.Topic, "partition", m.Partition, "offset", m.Offset, "err", cause)
	aside := log.Poisoner{Log: w.cfg.Log}
	return w.retryUntil(ctx, "log", func() error { return aside.Poison(ctx, m, cause) })
}

// replaceDamaged replaces an outcome row that cannot be decoded. It puts the bytes of the row, with
// the origin of its envelope, into the poison topic. Then it sets *row to a new row. The old
// content is lost, so the new row says that every receiver of the envelope may have been called.
func (w *Worker) replaceDamaged(ctx context.Context, j *job, row *notify.Row) error {
	if f := w.cfg.Events.Damaged; f != nil {
		f(w.cfg.Lane)
	}
	cause := fmt.Errorf("the outcome row of request %s, chunk %s, cannot be decoded", j.env.Chunk.Base, chunkName(j.env.Chunk))
	w.cfg.Logger.Error("cannot decode an outcome row; its receivers may have been called already", "receivers", j.env.Count,
		"topic", j.msg.Topic, "partition", j.msg.Partition, "offset", j.msg.Offset, "trace_id", notify.TraceID(j.env.Trace), "err", cause)
	aside := log.Poisoner{Log: w.cfg.Log}
	m := log.NewMsg(log.Record{Topic: j.msg.Topic, Partition: j.msg.Partition, Offset: j.msg.Offset, Value: row.Damaged, Time: j.msg.Time}, func() {})
	*row = j.row
	row.StartedUpTo, row.Starts = j.env.Count, 1
	return w.retryUntil(ctx, "log", func() error { return aside.Poison(ctx, m, cause) })
}

func (w *Worker) routeOf(address []byte) string {
	if n := w.cfg.Routes.Of(address); n >= 0 {
		return w.cfg.Routes.Names[n]
	}
	return ""
}

// retryUntil repeats f until f succeeds or ctx ends. It never gives up for another reason, because
// a record must not be marked as done before f has succeeded. The parameter what is the name of the
// store for the log messages.
func (w *Worker) retryUntil(ctx context.Context, what string, f func() error) error {
	for pause := (notify.Pause{}); ; {
		err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.cfg.Logger.Error("a call to a store or to the log failed; will try again", "to", what, "lane", w.cfg.Lane.String(), "err", err)
		if !pause.Wait(ctx) {
			return ctx.Err()
		}
	}
}

func chunkName(c notify.Chunk) string {
	return strconv.Itoa(int(c.Partition)) + "." + strconv.FormatUint(uint64(c.Block), 10)
}
