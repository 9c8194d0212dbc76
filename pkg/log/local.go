package log

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Local reads records of a log in this process, without the network. It replaces only fetches. Groups,
// positions and commits still use the broker.
type Local interface {
	// Open returns a Tail that begins at an offset of a partition. The offset must be that of a
	// record or the end of the log. For any other offset, Open or the first call of Tail.Next returns
	// notify.KindGone.
	Open(tp TopicPartition, offset int64) (Tail, error)
}

// Tail reads a partition from a position. Only one goroutine may use it.
type Tail interface {
	// Next waits for records and returns some of them, in order and without a gap. It returns only
	// records that are stored as durably as an acknowledged batch. The caller must not write to the
	// records, because another reader may have the same records. Next returns the error of ctx,
	// notify.KindGone if the log does not hold the offset any more, or an error of a file. After an
	// error of a file the caller may call Next again.
	Next(ctx context.Context) (Fetched, error)
	Close() error
}

// Fetched is the result of Tail.Next.
type Fetched struct {
	Records []Record
	Epoch   int32 // leader epoch of the last record
	End     int64 // end of the log: the offset of the next record
}

// readLocal reads the records of the partition from Local instead of fetching them from the broker.
// It returns when the partition is being drained, was lost or is read again from another offset,
// and after notify.KindGone. It runs in its own goroutine, which the field localReaders counts.
func (a *assignment) readLocal(local Local, at int64, generation int, rejoin context.CancelCauseFunc) {
	defer a.localReaders.Done()
	for wait := a.g.cfg.RetryBackoff; ; {
		next, err := a.readLocalFrom(local, at, generation)
		if next > at {
			at, wait = next, a.g.cfg.RetryBackoff
		}
		switch {
		case err == nil || a.ctx.Err() != nil:
			return
		case notify.KindOf(err) == notify.KindGone:
			a.g.cfg.Events.trouble(err)
			rejoin(errRejoin)
			return
		}
		a.g.cfg.Events.trouble(err)
		if !a.waitUnlessDraining(wait) {
			return
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// readLocalFrom reads records, beginning at the given offset. It returns the offset after the last
// record that it queued. The error is nil if the partition is being drained, was lost or is read
// again from another offset.
func (a *assignment) readLocalFrom(local Local, offset int64, generation int) (next int64, err error) {
	tail, err := local.Open(a.tp, offset)
	if err != nil {
		return offset, err
	}
	defer tail.Close()
	for a.waitForRoom() {
		f, err := tail.Next(a.ctx)
		if err != nil {
			return offset, err
		}
		if !a.queueRecords(f.Records, func(int) int32 { return f.Epoch }, f.End, generation) {
			return offset, nil
		}
		offset = f.Records[len(f.Records)-1].Offset + 1
	}
	return offset, nil
}

// waitForRoom waits while the partition is paused because too many of its records are in flight. It
// returns false if the partition is being drained or was lost.
func (a *assignment) waitForRoom() bool {
	for {
		a.mu.Lock()
		paused, draining, changed := a.paused, a.draining, a.stateChanged
		a.mu.Unlock()
		if draining || !paused {
			return !draining
		}
		select {
		case <-changed:
		case <-a.ctx.Done():
			return false
		}
	}
}

// runLocal does the work of Run for a connection with Conn.Local. The map starts holds the offset
// at which each partition begins to be read.
func (r *Reader) runLocal(ctx context.Context, starts map[TopicPartition]int64, fn func(tp TopicPartition, recs []Record) error) error {
	g, ctx := errgroup.WithContext(ctx)
	var one sync.Mutex // held during a call of fn, so that calls do not overlap
	for tp, at := range starts {
		g.Go(func() error { return r.readPartition(ctx, tp, at, &one, fn) })
	}
	return g.Wait()
}

// readPartition reads a partition, beginning at the given offset, and calls the function fn with
// the records. It holds the mutex one during each call. It returns nil when ctx ends.
func (r *Reader) readPartition(ctx context.Context, tp TopicPartition, offset int64, one *sync.Mutex, fn func(tp TopicPartition, recs []Record) error) error {
	tail, err := r.conn.Local.Open(tp, offset)
	if err != nil {
		return err
	}
	defer tail.Close()
	for {
		f, err := tail.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			one.Lock()
			if ctx.Err() == nil {
				err = fn(tp, f.Records)
			}
			one.Unlock()
			if err != nil {
				return err
			}
		case notify.KindOf(err) == notify.KindGone:
			return err
		default: // a file cannot be read: try again until the read succeeds
			r.conn.Logger.Error("a partition of the log cannot be read; the read is tried again every second", "partition", tp.String(), "err", err)
			if !notify.Sleep(ctx, time.Second) {
				return nil
			}
		}
	}
}
