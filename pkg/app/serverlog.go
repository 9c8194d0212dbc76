package app

import (
	"context"
	"sync/atomic"

	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// patientLog is the log that intake uses if the log is Kafka. If an append has failed because no
// broker answers, and log.Probe confirms this, the next appends fail at once. So notifyd refuses a
// request, or puts it into the spill buffer, within a millisecond instead of a second.
type patientLog struct {
	intake.Log
	away   func() error // returns the result of the probe
	failed *atomic.Bool // true: the last append failed because no broker answered
}

func newPatientLog(log intake.Log, away func() error) patientLog {
	return patientLog{log, away, &atomic.Bool{}}
}

func (l patientLog) Append(ctx context.Context, recs []log.Record) error {
	if l.failed.Load() {
		if err := l.away(); err != nil {
			return err
		}
	}
	err := l.Log.Append(ctx, recs)
	l.failed.Store(notify.KindOf(err) == notify.KindUnavailable && ctx.Err() == nil)
	return err
}
