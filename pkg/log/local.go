package log

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Local is a log in this process whose records are read without the network. It
// replaces fetches and nothing else: groups, positions and commits go to the
// broker as ever.
type Local interface {
	// Open stands at an offset of a partition. notify.KindGone: the log does not
	// hold it, and it is not the next one either.
	Open(tp TopicPartition, offset int64) (Tail, error)
}

// Tail is a place in a partition. It is used by one goroutine.
type Tail interface {
	// Next waits for records and returns some, in order and without a gap: only
	// those the broker has acknowledged, or would have. They are not written to
	// afterwards, nor may they be: other readers may have been given the same. An
	// error is ctx's, or of notify.KindGone when the log does not hold the offset any
	// more, or of a file; after the last kind it may be called again.
	Next(ctx context.Context) (Fetched, error)
	Close() error
}

// Fetched is what a Tail returns.
type Fetched struct {
	Records []Record
	Epoch   int32 // leader epoch of the last one
	End     int64 // of the log: the offset its next record gets
}

// follow reads a partition from its place until the assignment is over, in place
// of the client's fetches.
func (a *assignment) follow(local Local, at int64, generation int, rejoin context.CancelCauseFunc) {
	defer a.following.Done()
	for wait := a.g.cfg.RetryBackoff; ; {
		next, err := a.followFrom(local, at, generation)
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
		if !a.pause(wait) {
			return
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// followFrom returns where it stands; nil: there is nothing more to do.
func (a *assignment) followFrom(local Local, at int64, generation int) (next int64, err error) {
	tail, err := local.Open(a.tp, at)
	if err != nil {
		return at, err
	}
	defer tail.Close()
	for a.hasRoom() {
		f, err := tail.Next(a.ctx)
		if err != nil {
			return at, err
		}
		if !a.push(f.Records, func(int) int32 { return f.Epoch }, f.End, generation) {
			return at, nil
		}
		at = f.Records[len(f.Records)-1].Offset + 1
	}
	return at, nil
}

// hasRoom waits while as much is in flight as may be; false: the assignment is
// over.
func (a *assignment) hasRoom() bool {
	for {
		a.mu.Lock()
		paused, draining, changed := a.paused, a.draining, a.changed
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

// runLocal is Run over a Local.
func (r *Reader) runLocal(ctx context.Context, from map[TopicPartition]int64, fn func(tp TopicPartition, recs []Record) error) error {
	g, ctx := errgroup.WithContext(ctx)
	var one sync.Mutex // for fn
	for tp, at := range from {
		g.Go(func() error { return r.follow(ctx, tp, at, &one, fn) })
	}
	return g.Wait()
}

// follow returns nil when ctx has ended.
func (r *Reader) follow(ctx context.Context, tp TopicPartition, at int64, one *sync.Mutex, fn func(tp TopicPartition, recs []Record) error) error {
	tail, err := r.conn.Local.Open(tp, at)
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
		default: // of a file; while it cannot be read there is nothing to do
			r.conn.Logger.Error("the log cannot be read", "partition", tp.String(), "err", err)
			if !notify.Sleep(ctx, time.Second) {
				return nil
			}
		}
	}
}
