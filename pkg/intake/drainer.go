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

// Drainer moves spilled records into the log once it is back, in the order in which they were
// spilled. A record leaves the buffer only after the log has acknowledged it. While a record is
// left, critical messages join the buffer (Service), so that they cannot overtake it. When the last
// one is dropped, spilling ends. A crash between append and drop appends a record twice, as the
// same chunk.
type Drainer struct {
	Spill  Spill
	Log    Log
	Every  time.Duration // pause while the buffer is empty or the log fails. Default 100 ms
	Batch  int           // records per append. Default 256
	Logger *slog.Logger  // nil: discarded
}

// Run drains until ctx ends. It then returns nil.
func (d *Drainer) Run(ctx context.Context) error {
	log := d.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	failing := false // log one line per outage, not per attempt
	for {
		n, err := d.Drain(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			log.Warn("the spill buffer cannot be drained; it waits for the log", slog.Any("error", err))
		case n > 0:
			log.Info("spill buffer drained", slog.Int("records", n))
		}
		failing = err != nil
		if !notify.Sleep(ctx, cmp.Or(d.Every, 100*time.Millisecond)) {
			return nil
		}
	}
}

// Drain moves records until the buffer is empty, and returns how many it moved.
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
