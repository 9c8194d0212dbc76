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

// These constants say how removal catches up after the clock has moved far ahead of the last
// removal time. This happens if the clock jumped, or if notifyd was down.
const (
	// If the clock is ahead by removalNear or less, removal follows the clock at once.
	removalNear = time.Hour
	// removalHold is how long notifyd must run before removal starts to catch up. During this time
	// an operator can correct the clock.
	removalHold = 24 * time.Hour
	// removalCatchUp is the longest time for which notifyd must run from the beginning of catching
	// up to its end.
	removalCatchUp = 5 * 24 * time.Hour
	// removalPace is the lowest speed of catching up. The difference between the clock and the last
	// removal time shrinks by at least removalPace seconds per second.
	removalPace = 7
)

// RemovalEvery is the time between two removals of old data. It is also the time between two
// writes of the removal time to the store.
const RemovalEvery = 10 * time.Minute

// Removal is the time that decides which data is old enough to be removed. It is never later than
// the clock. While the clock is ahead of it by at most removalNear, it follows the clock. Otherwise
// it advances with the time that passes while notifyd runs, and after removalHold it catches up
// slowly. So a clock that jumps forward cannot make notifyd remove everything at once. The methods
// are safe for concurrent use.
type Removal struct {
	part  string
	meta  engine.Meta
	log   *slog.Logger
	clock func() (wall time.Time, uptime time.Duration) // uptime is the running time, which never jumps

	mu         sync.Mutex    // guards the fields below
	loaded     bool          // the stored time was read
	removeUpTo time.Time     // data whose retention is over at this time may be removed
	heldFor    time.Duration // how much of removalHold has passed
	// catchUpFrom is how far the clock was ahead when catching up began. 0: removal does not catch
	// up now.
	catchUpFrom time.Duration
	advancedAt  time.Duration // value of uptime when removeUpTo was last advanced
	storedAt    time.Duration // value of uptime when removeUpTo was last stored
	// ahead is how far the clock is ahead of removeUpTo. It is 0 if the difference is at most
	// removalNear; then removal follows the clock.
	ahead time.Duration
}

// removalRow is the stored form of a Removal.
type removalRow struct {
	At   int64 `json:"at_ms"` // ms since 1970
	Held int64 `json:"held_ms,omitempty"`
}

func (r *Removal) row() string { return "removal " + r.part }

// Advance advances the removal time and returns it. Data whose retention is over at this time may be
// removed now. After an error no data may be removed.
func (r *Removal) Advance(ctx context.Context) (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wall, uptime := r.clock()
	if !r.loaded {
		if err := r.load(ctx, wall, uptime); err != nil {
			return time.Time{}, err
		}
	}
	passed := uptime - r.advancedAt
	r.advancedAt, r.removeUpTo = uptime, r.removeUpTo.Add(passed)
	before, ahead := r.ahead, wall.Sub(r.removeUpTo)
	if ahead > removalNear && r.heldFor < removalHold {
		r.heldFor += passed
	} else if ahead > removalNear {
		if r.catchUpFrom == 0 {
			r.catchUpFrom = ahead
		}
		more := max(removalPace, float64(r.catchUpFrom)/float64(removalCatchUp)) * float64(passed)
		r.removeUpTo = r.removeUpTo.Add(time.Duration(min(more, float64(ahead))))
	}
	if r.ahead = wall.Sub(r.removeUpTo); r.ahead <= removalNear {
		r.removeUpTo, r.heldFor, r.catchUpFrom, r.ahead = wall, 0, 0, 0
	}
	if before == 0 && r.ahead > 0 {
		r.log.Warn("the clock is ahead of the removal time: notifyd was down, or the clock jumped; if the clock is wrong, correct it before removal catches up",
			"part", r.part, "ahead", r.ahead.Round(time.Second), "catches_up_in", (removalHold - r.heldFor).Round(time.Minute))
	} else if before > 0 && r.ahead == 0 {
		r.log.Info("removal follows the clock again", "part", r.part)
	}
	if uptime-r.storedAt >= RemovalEvery {
		if err := r.storeRow(ctx); err != nil {
			return time.Time{}, err
		}
		r.storedAt = uptime
	}
	return r.removeUpTo, nil
}

// load reads the stored time. If there is no stored time, it starts with the clock's time.
func (r *Removal) load(ctx context.Context, wall time.Time, uptime time.Duration) error {
	raw, err := r.meta.GetMeta(ctx, r.row())
	if err != nil {
		return err
	}
	r.removeUpTo = wall
	if raw != nil {
		var row removalRow
		if err := json.Unmarshal(raw, &row); err != nil {
			return fmt.Errorf("decoding the stored row %q: %w", r.row(), err)
		}
		r.removeUpTo, r.heldFor = time.UnixMilli(row.At), time.Duration(row.Held)*time.Millisecond
	}
	r.loaded, r.storedAt = true, uptime-RemovalEvery
	return nil
}

// storeRow stores the removal time. If a crash loses the last write, the next start uses an earlier
// time and removes some data later.
func (r *Removal) storeRow(ctx context.Context) error {
	raw, err := json.Marshal(removalRow{At: r.removeUpTo.UnixMilli(), Held: r.heldFor.Milliseconds()})
	if err != nil {
		return err
	}
	return r.meta.PutMeta(ctx, r.row(), raw)
}

// Removals contains the Removal of each part that runs in this process.
type Removals struct {
	Log *slog.Logger

	mu  sync.Mutex          // guards all; locked before a Removal's mu
	all map[string]*Removal // by part
}

// Begin returns the Removal of a part. It continues from the time that is stored in meta.
func (rs *Removals) Begin(part string, meta engine.Meta) *Removal {
	began := time.Now()
	r := &Removal{part: part, meta: meta, log: rs.Log, clock: func() (time.Time, time.Duration) {
		now := time.Now()
		return now.Round(0), now.Sub(began) // Sub uses the monotonic clock
	}}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.all == nil {
		rs.all = map[string]*Removal{}
	}
	rs.all[part] = r
	return r
}

// forget removes the Removal of a part that no longer runs here.
func (rs *Removals) forget(r *Removal) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.all[r.part] == r {
		delete(rs.all, r.part)
	}
}

// Every returns a function that passes the part's removal time to the function purge. It does this
// once in each interval RemovalEvery until its context ends. If a purge fails, it is tried again in
// the next interval.
func (rs *Removals) Every(part string, meta engine.Meta, purge func(ctx context.Context, now time.Time) error) func(context.Context) error {
	return func(ctx context.Context) error {
		r := rs.Begin(part, meta)
		defer rs.forget(r)
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
				rs.Log.Warn("old data could not be removed; trying again later", "part", part, "err", err)
			}
		}
	}
}

// Ahead returns the part whose removal time is furthest behind the clock, and the difference. It
// returns 0 if the removal times of all parts follow the clock.
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
