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

// Drainer moves spilled records into the log when the log works again, in the order in which they
// were spilled. It removes a record from the buffer only after the log has acknowledged the record.
// While the buffer contains records, Service adds new messages of otp and alert to the buffer too,
// so that they do not overtake these records. Spilling ends when the buffer is empty. After a crash
// between append and drop, records are appended a second time, with the same chunks.
type Drainer struct {
	Spill Spill
	Log   Log
	// Pause between two calls of Drain. Default 100 ms.
	Every  time.Duration
	Batch  int          // records per append. Default 256
	Logger *slog.Logger // nil: discarded
}

// Run drains the buffer until ctx ends, and then returns nil.
func (d *Drainer) Run(ctx context.Context) error {
	log := d.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	failing := false // so that each outage logs one line, not one per attempt
	for {
		n, err := d.Drain(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			log.Warn("records cannot be moved from the spill buffer to the log; the move is tried again", slog.Any("error", err))
		case n > 0:
			log.Info("records were moved from the spill buffer to the log", slog.Int("records", n))
		}
		failing = err != nil
		if !notify.Sleep(ctx, cmp.Or(d.Every, 100*time.Millisecond)) {
			return nil
		}
	}
}

// Drain moves records into the log until the buffer is empty. It returns how many records it moved.
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
			return n, errors.Join(errors.New("records were appended to the log, but could not be removed from the spill buffer"), err)
		}
		n += len(waiting)
	}
}
