package intake

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Drainer moves spilled records into the log once it is back, in the order
// they were spilled. A record leaves the buffer only after the log has
// acknowledged it: while any is left, critical messages join the buffer
// (Service), so that nothing overtakes them, and when the last one is dropped
// spilling is over. A crash between the two appends a record twice, as the same
// chunk.
type Drainer struct {
	Spill  Spill
	Log    Log
	Every  time.Duration // how often an empty buffer, or a failing log, is tried. Default 100 ms
	Batch  int           // records per append. Default 256
	Logger *slog.Logger  // nil: discarded
}

// Run drains until ctx ends, and returns nil then.
func (d *Drainer) Run(ctx context.Context) error {
	log := d.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	failing := false // one line per outage, not one per attempt
	for {
		n, err := d.Drain(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			log.Warn("spill buffer waits for the log", slog.Any("error", err))
		case n > 0:
			log.Info("spill buffer drained", slog.Int("records", n))
		}
		failing = err != nil
		if !notify.Sleep(ctx, cmp.Or(d.Every, 100*time.Millisecond)) {
			return nil
		}
	}
}

// Drain moves records until the buffer is empty, and returns how many.
func (d *Drainer) Drain(ctx context.Context) (n int, err error) {
	for {
		waiting, err := d.Spill.Peek(ctx, cmp.Or(d.Batch, 256))
		if err != nil || len(waiting) == 0 {
			return n, err
		}
		recs := make([]log.Record, len(waiting))
		for i, w := range waiting {
			recs[i] = log.Record{Topic: w.Topic, Partition: w.Part, Key: w.Key, Value: w.Value}
		}
		if err := d.Log.Append(ctx, recs); err != nil {
			return n, err
		}
		if err := d.Spill.Drop(ctx, waiting[len(waiting)-1].Seq); err != nil {
			return n, errors.Join(errors.New("records are in the log and still in the spill buffer"), err)
		}
		n += len(waiting)
	}
}
