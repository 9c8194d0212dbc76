package app

import (
	"context"
	"sync/atomic"

	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// patientLog is the log of brokers, for intake: once an append has failed because
// nobody answers, and the probe says the same, the next ones fail at once, so
// that a request is refused, or spilled, in a millisecond and not after a second.
type patientLog struct {
	intake.Log
	away   func() error // what the probe says
	failed *atomic.Bool // the last append
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
