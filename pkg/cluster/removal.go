package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// How removal goes on when this machine's clock is ahead of what it was when
// removal ran last: the clock jumped, or notifyd was down.
const (
	removalNear    = time.Hour          // ahead by up to this: removal follows at once
	removalHold    = 24 * time.Hour     // of running before it catches up: time to correct a clock that is wrong
	removalCatchUp = 5 * 24 * time.Hour // of running, at most, until it has caught up
	removalPace    = 7                  // at least so many times the time passed are caught up meanwhile
)

// RemovalEvery is how often a part removes, and it is stored how far removal is.
const RemovalEvery = 10 * time.Minute

// Removal is the time that one part removes by. It is never ahead of the clock, and
// it goes on with the time that passes while notifyd runs, not with the clock: a
// clock that jumps forward by more than a retention would remove everything at once.
// Its methods may be called from any goroutine.
type Removal struct {
	part  string
	meta  engine.Meta
	log   *slog.Logger
	clock func() (wall time.Time, up time.Duration) // up never jumps

	mu     sync.Mutex
	loaded bool
	at     time.Time     // what is over at this time may be removed
	held   time.Duration // how long it was held of removalHold
	gap    time.Duration // how far the clock was ahead when it began to catch up; 0: it does not
	up     time.Duration // when at was advanced last
	noted  time.Duration // when at was stored last
	ahead  time.Duration // of the clock, above removalNear; 0: removal follows it
}

// removalRow is the stored form of a Removal.
type removalRow struct {
	At   int64 `json:"at_ms"` // ms since 1970
	Held int64 `json:"held_ms,omitempty"`
}

func (r *Removal) row() string { return "removal " + r.part }

// Advance returns the time to remove by now. After an error nothing may be removed.
func (r *Removal) Advance(ctx context.Context) (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wall, up := r.clock()
	if !r.loaded {
		if err := r.load(ctx, wall, up); err != nil {
			return time.Time{}, err
		}
	}
	passed := up - r.up
	r.up, r.at = up, r.at.Add(passed)
	before, ahead := r.ahead, wall.Sub(r.at)
	if ahead > removalNear && r.held < removalHold {
		r.held += passed
	} else if ahead > removalNear {
		if r.gap == 0 {
			r.gap = ahead
		}
		more := max(removalPace, float64(r.gap)/float64(removalCatchUp)) * float64(passed)
		r.at = r.at.Add(time.Duration(min(more, float64(ahead))))
	}
	if r.ahead = wall.Sub(r.at); r.ahead <= removalNear {
		r.at, r.held, r.gap, r.ahead = wall, 0, 0, 0
	}
	if before == 0 && r.ahead > 0 {
		r.log.Warn("the clock is ahead of the time that removal goes by: notifyd was down, or the clock jumped; if it is wrong, set it right before removal catches up",
			"part", r.part, "ahead", r.ahead.Round(time.Second), "catches_up_in", (removalHold - r.held).Round(time.Minute))
	} else if before > 0 && r.ahead == 0 {
		r.log.Info("removal follows the clock again", "part", r.part)
	}
	if up-r.noted >= RemovalEvery {
		if err := r.note(ctx); err != nil {
			return time.Time{}, err
		}
		r.noted = up
	}
	return r.at, nil
}

// load reads how far removal was. Where it never ran it begins with the clock.
func (r *Removal) load(ctx context.Context, wall time.Time, up time.Duration) error {
	raw, err := r.meta.GetMeta(ctx, r.row())
	if err != nil {
		return err
	}
	r.at = wall
	if raw != nil {
		var row removalRow
		if err := json.Unmarshal(raw, &row); err != nil {
			return fmt.Errorf("stored row %s: %w", r.row(), err)
		}
		r.at, r.held = time.UnixMilli(row.At), time.Duration(row.Held)*time.Millisecond
	}
	r.loaded, r.noted = true, up-RemovalEvery
	return nil
}

// note stores how far removal is. A start that finds an earlier time removes less.
func (r *Removal) note(ctx context.Context) error {
	raw, err := json.Marshal(removalRow{At: r.at.UnixMilli(), Held: r.held.Milliseconds()})
	if err != nil {
		return err
	}
	return r.meta.PutMeta(ctx, r.row(), raw)
}

// Removals are the removals by the parts that run in this process.
type Removals struct {
	Log *slog.Logger

	mu  sync.Mutex
	all map[string]*Removal
}

// Begin begins the removal of a part. It goes on from the time stored in meta.
func (rs *Removals) Begin(part string, meta engine.Meta) *Removal {
	began := time.Now()
	r := &Removal{part: part, meta: meta, log: rs.Log, clock: func() (time.Time, time.Duration) {
		now := time.Now()
		return now.Round(0), now.Sub(began) // with the monotonic clock
	}}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.all == nil {
		rs.all = map[string]*Removal{}
	}
	rs.all[part] = r
	return r
}

// end forgets the removal of a part that does not run here any more.
func (rs *Removals) end(r *Removal) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.all[r.part] == r {
		delete(rs.all, r.part)
	}
}

// Every calls purge every RemovalEvery until its context ends, with the time that
// this part removes by. A purge that fails is tried again with the next tick.
func (rs *Removals) Every(part string, meta engine.Meta, purge func(ctx context.Context, now time.Time) error) func(context.Context) error {
	return func(ctx context.Context) error {
		r := rs.Begin(part, meta)
		defer rs.end(r)
		t := time.NewTicker(RemovalEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-ctx.Done():
				return nil
			}
			now, err := r.Advance(ctx)
			if err == nil {
				err = purge(ctx, now)
			}
			if err != nil && ctx.Err() == nil {
				rs.Log.Warn(part, "err", err)
			}
		}
	}
}

// Ahead is how far the clock is ahead of the removal that is furthest behind, and of
// which part that is; 0: all follow the clock.
func (rs *Removals) Ahead() (part string, ahead time.Duration) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.all {
		r.mu.Lock()
		if r.ahead > ahead {
			part, ahead = r.part, r.ahead
		}
		r.mu.Unlock()
	}
	return part, ahead
}
