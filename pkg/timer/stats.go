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

// counters count events since the engine was made.
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
	PendingBytes int          // payload bytes of these timers
	Shards       []ShardStats // shards that this engine owns
	// Shards that this engine does not own but for which it is a standby, as last read.
	Others  []ShardStats
	Backlog Backlog

	HeartbeatAge time.Duration // time since this engine's last heartbeat; 0 without Heartbeats
	Members      []string      // owner names, at the last heartbeat
	ClockOffset  time.Duration

	// The fields below are counts since the engine was made.
	Released        [3]uint64 // by Lane
	PublishFailures uint64    // calls of Publish that failed
	Refused         uint64    // publishes of a single timer that were refused; each try counts
	TookOver        uint64    // shards taken over
	Lost            uint64    // shards lost because the lease expired or another engine took the shard over
	LateRows        uint64    // rows found when their minute was closed
	Rehomed         uint64    // rows stored again because their minute was closed
	Dropped         uint64    // timers that were not released because of their head
	HeadReads       uint64    // reads of heads; HeadReads and HeadSwaps are the cost of cancels and moves
	HeadSwaps       uint64
	NearQueued      uint64 // near timers sent to the queue
	// Timers that are due soon and that the queue did not accept. They are released when their
	// minute is closed.
	NearLost uint64
	Promoted uint64 // rows moved from the cold table
	Purged   uint64 // schedules deleted
}

// ShardStats is the state of one shard. If this engine does not own the shard, only Shard and
// WatermarkAge are set. WatermarkAge grows while no engine owns the shard.
type ShardStats struct {
	Shard        uint16
	Term         uint64
	Closed       int64         // last closed minute
	Watermark    int64         // minute of the watermark
	WatermarkAge time.Duration // from the end of the watermark's minute to now; below 3 minutes if healthy
	Pending      int           // timers in memory
	Left         int64         // timers left to catch up
}

// Backlog is what must be caught up after an outage.
type Backlog struct {
	Left     int64   // timers that are counted and not released
	Counting bool    // some timers are not counted yet, so Left will grow
	Rate     float64 // recent releases a second; 0: not known yet
	Limit    float64 // this engine's share of the configured rate
	// ETA is how long the catch-up will still take at Rate, or at Limit while Rate is not known.
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

// watchOthers reads the watermarks of the shards that this engine does not own and for which it is
// a standby. It reads them every Beat until ctx ends. So a shard that no engine releases is
// noticed.
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
					e.complaints.report("cannot read the state of timer shards", err)
				}
				break // the failure shows as a growing watermark age
			}
			e.mu.Lock()
			e.noteWatermarkLocked(uint16(n), &st)
			e.mu.Unlock()
		}
	}
}

// noteWatermarkLocked stores when the minute of a shard's watermark ended. A shard that never had
// an owner has no watermark. For such a shard it keeps the time at which this engine learned of the
// shard. The caller holds mu.
func (e *Engine) noteWatermarkLocked(n uint16, st *engine.ShardState) {
	if st.Watermark > 0 {
		e.watermarkEnd[n] = (st.Watermark + 1) * 60_000
	}
}

// complaints logs errors that repeat. It logs each kind of error at most every 10 s.
type complaints struct {
	log  *slog.Logger
	mu   sync.Mutex
	last map[string]time.Time
}

// report logs an error after which the caller tries again.
func (c *complaints) report(what string, err error) { c.log10s(what+"; trying again", err) }

// log10s logs msg and err, unless it has logged msg in the last 10 s.
func (c *complaints) log10s(msg string, err error) {
	c.mu.Lock()
	now := time.Now()
	quiet := now.Sub(c.last[msg]) < 10*time.Second
	if !quiet {
		if c.last == nil {
			c.last = map[string]time.Time{}
		}
		c.last[msg] = now
	}
	c.mu.Unlock()
	if !quiet && !errors.Is(err, context.Canceled) { // a cancelled call at shutdown is no error
		c.log.Error(msg, "err", err)
	}
}
