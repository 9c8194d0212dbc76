package timer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// counters count events since the start.
type counters struct {
	released             [3]atomic.Uint64 // by lane
	failures, refused    atomic.Uint64
	tookOver, lost       atomic.Uint64
	lateRows, rehomed    atomic.Uint64
	dropped, headReads   atomic.Uint64
	headSwaps            atomic.Uint64
	nearQueued, nearLost atomic.Uint64
	promoted, purged     atomic.Uint64
}

// Stats is the state of an engine at one moment.
type Stats struct {
	Pending      int          // timers in memory
	PendingBytes int          // their payload
	Shards       []ShardStats // that this engine owns
	Others       []ShardStats // for which this engine is a standby, as last read
	Backlog      Backlog

	HeartbeatAge time.Duration // age of this engine's last one; 0 without Heartbeats
	Members      []string      // owners, as of the last beat
	ClockOffset  time.Duration

	// Counted since the start.
	Released        [3]uint64 // by Lane
	PublishFailures uint64    // calls that failed
	Refused         uint64    // each refused publish of a single timer
	TookOver        uint64    // shards
	Lost            uint64    // shards lost without being handed over
	LateRows        uint64    // found when a minute was closed
	Rehomed         uint64    // rows stored again because their minute was closed
	Dropped         uint64    // timers that a head kept from being released
	HeadReads       uint64    // reads; with HeadSwaps the cost of touched timers
	HeadSwaps       uint64
	NearQueued      uint64 // near timers handed to the queue
	NearLost        uint64 // near timers that the queue did not take: released when their minute is closed
	Promoted        uint64 // rows moved from the cold table
	Purged          uint64 // schedules
}

// ShardStats is the state of one shard. For a shard that this engine does not own it has only
// WatermarkAge, which grows while no engine owns the shard.
type ShardStats struct {
	Shard        uint16
	Term         uint64
	Closed       int64         // minute
	Watermark    int64         // minute
	WatermarkAge time.Duration // from the watermark's end to now; below 3 minutes if healthy
	Pending      int           // timers in memory
	Left         int64         // timers left to catch up
}

// Backlog is what has to be caught up after an outage.
type Backlog struct {
	Left     int64   // timers counted and not released
	Counting bool    // not everything is counted: Left will grow
	Rate     float64 // recent releases a second; 0: not known yet
	Limit    float64 // this engine's share of the configured rate
	// ETA is how long the rest will take at Rate, or at Limit while Rate is not known.
	ETA time.Duration
}

// Stats returns the current state. It may be called from any goroutine.
func (e *Engine) Stats() Stats {
	c := &e.counters
	s := Stats{
		ClockOffset:     e.offset(),
		PublishFailures: c.failures.Load(), Refused: c.refused.Load(),
		TookOver: c.tookOver.Load(), Lost: c.lost.Load(),
		LateRows: c.lateRows.Load(), Rehomed: c.rehomed.Load(), Dropped: c.dropped.Load(),
		HeadReads: c.headReads.Load(), HeadSwaps: c.headSwaps.Load(),
		NearQueued: c.nearQueued.Load(), NearLost: c.nearLost.Load(),
		Promoted: c.promoted.Load(), Purged: c.purged.Load(),
	}
	for lane := range s.Released {
		s.Released[lane] = c.released[lane].Load()
	}
	now := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Pending = e.pendingLocked()
	s.Backlog.Limit = float64(e.cfg.CatchUpRate) * e.shareLocked()
	for n, t := range e.tenures {
		if t == nil && !e.members.watchesLocked(uint16(n)) {
			continue
		}
		if t == nil {
			s.Others = append(s.Others, ShardStats{Shard: uint16(n), WatermarkAge: time.Duration(now-e.watermarkEnd[n]) * time.Millisecond})
			continue
		}
		left := t.leftLocked()
		s.PendingBytes += t.loads[OnTime].bytes + t.loads[CatchUp].bytes
		s.Backlog.Left += left
		s.Backlog.Counting = s.Backlog.Counting || t.counting || len(t.uncounted) > 0
		s.Shards = append(s.Shards, ShardStats{
			Shard: t.shard, Term: t.state.Term, Closed: t.state.Closed, Watermark: t.state.Watermark,
			WatermarkAge: time.Duration(now-(t.state.Watermark+1)*60_000) * time.Millisecond,
			Pending:      t.loads[OnTime].unacked + t.loads[CatchUp].unacked, Left: left,
		})
	}
	if s.Backlog.Left > 0 {
		rate := s.Backlog.Limit
		if e.releaser.catchUpRate.perSecond > 0 && e.clock()-e.releaser.catchUpRate.since < 10*time.Second {
			s.Backlog.Rate = e.releaser.catchUpRate.perSecond
			rate = e.releaser.catchUpRate.perSecond
		}
		s.Backlog.ETA = time.Duration(float64(s.Backlog.Left) / rate * float64(time.Second))
	}
	if e.cfg.Heartbeats != nil {
		s.HeartbeatAge = e.clock() - e.members.beatAt
		s.Members = append(s.Members, e.members.alive...)
	}
	return s
}

// watchOthers reads every Beat the watermarks of the shards for which this engine is a standby and
// which it does not own, until ctx ends. So a shard that no engine releases is noticed.
func (e *Engine) watchOthers(ctx context.Context) {
	for notify.Sleep(ctx, e.cfg.Beat) {
		for n := range e.shards() {
			e.mu.Lock()
			look := e.tenures[n] == nil && e.members.watchesLocked(uint16(n))
			e.mu.Unlock()
			if !look {
				continue
			}
			call, stop := context.WithTimeout(ctx, e.cfg.WriteTimeout)
			st, err := e.cfg.Store.Shard(call, uint16(n))
			stop()
			if err != nil {
				if ctx.Err() == nil {
					e.complaints.report("cannot look at timer shards", err)
				}
				break // it shows as a watermark age that grows
			}
			e.mu.Lock()
			e.noteWatermarkLocked(uint16(n), &st)
			e.mu.Unlock()
		}
	}
}

// noteWatermarkLocked notes the watermark of a shard. A shard that never had an owner has none: its
// age counts from the start of this engine. The caller holds mu.
func (e *Engine) noteWatermarkLocked(n uint16, st *engine.ShardState) {
	if st.Watermark > 0 {
		e.watermarkEnd[n] = (st.Watermark + 1) * 60_000
	}
}

// complaints logs errors that repeat, each kind at most every 10 s.
type complaints struct {
	log  *slog.Logger
	mu   sync.Mutex
	last map[string]time.Time
}

func (c *complaints) report(what string, err error) {
	c.mu.Lock()
	now := time.Now()
	quiet := now.Sub(c.last[what]) < 10*time.Second
	if !quiet {
		if c.last == nil {
			c.last = map[string]time.Time{}
		}
		c.last[what] = now
	}
	c.mu.Unlock()
	if !quiet && !errors.Is(err, context.Canceled) { // a cancelled call at the end is no error
		c.log.Error(what+"; trying again", "err", err)
	}
}
