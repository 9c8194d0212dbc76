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

// counters count since the start.
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

// Stats is a moment's picture of an engine.
type Stats struct {
	Pending      int          // timers in memory
	PendingBytes int          // their payload
	Shards       []ShardStats // owned by this engine
	Others       []ShardStats // that this engine is a standby of, as they were last seen
	Backlog      Backlog

	HeartbeatAge time.Duration // since the last one of this engine; 0 without Heartbeats
	Members      []string      // owners, as of the last beat
	ClockOffset  time.Duration

	// Counted since the start.
	Released        [3]uint64 // by Lane
	PublishFailures uint64    // calls that failed
	Refused         uint64    // timers that nobody takes, each try
	TookOver        uint64    // shards
	Lost            uint64    // shards that were not given up
	LateRows        uint64    // found when a minute was closed
	Rehomed         uint64    // rows stored again because their minute was closed
	Dropped         uint64    // timers that a head kept from being released
	HeadReads       uint64    // with HeadSwaps what touched timers cost
	HeadSwaps       uint64
	NearQueued      uint64 // near timers handed to the queue
	NearLost        uint64 // that the queue did not take: they come with the close
	Promoted        uint64 // rows moved from the cold table
	Purged          uint64 // schedules
}

// ShardStats is what one shard is at; of one that this engine does not own,
// WatermarkAge alone, which grows as long as nobody does.
type ShardStats struct {
	Shard        uint16
	Term         uint64
	Closed       int64         // minute
	Watermark    int64         // minute
	WatermarkAge time.Duration // from the watermark's end to now; a healthy one is below 3 minutes
	Pending      int           // timers in memory
	Left         int64         // timers left to catch up
}

// Backlog is what is being caught up after an outage.
type Backlog struct {
	Left     int64   // timers counted and not released
	Counting bool    // Left will grow: not all of it is counted
	Rate     float64 // releases a second lately; 0: not known yet
	Limit    float64 // this engine's share of the configured rate
	// ETA is how long the rest will take: at Rate, or at Limit as long as that
	// is not known.
	ETA time.Duration
}

// Stats returns a picture of now. It may be called from any goroutine.
func (e *Engine) Stats() Stats {
	c := &e.count
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
			s.Others = append(s.Others, ShardStats{Shard: uint16(n), WatermarkAge: time.Duration(now-e.water[n]) * time.Millisecond})
			continue
		}
		left := t.leftLocked()
		s.PendingBytes += t.loads[OnTime].bytes + t.loads[CatchUp].bytes
		s.Backlog.Left += left
		s.Backlog.Counting = s.Backlog.Counting || t.counting || len(t.spans) > 0
		s.Shards = append(s.Shards, ShardStats{
			Shard: t.n, Term: t.state.Term, Closed: t.state.Closed, Watermark: t.state.Watermark,
			WatermarkAge: time.Duration(now-(t.state.Watermark+1)*60_000) * time.Millisecond,
			Pending:      t.loads[OnTime].open + t.loads[CatchUp].open, Left: left,
		})
	}
	if s.Backlog.Left > 0 {
		rate := s.Backlog.Limit
		if e.releaser.caught.last > 0 && e.clock()-e.releaser.caught.since < 10*time.Second {
			s.Backlog.Rate = e.releaser.caught.last
			rate = e.releaser.caught.last
		}
		s.Backlog.ETA = time.Duration(float64(s.Backlog.Left) / rate * float64(time.Second))
	}
	if e.cfg.Heartbeats != nil {
		s.HeartbeatAge = e.clock() - e.members.beatAt
		s.Members = append(s.Members, e.members.alive...)
	}
	return s
}

// watch looks every Beat how far the shards are that this engine is a standby of and does
// not own, until ctx ends: a shard that no engine releases must be seen by some.
func (e *Engine) watch(ctx context.Context) {
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
					e.troubl.say("cannot look at timer shards", err)
				}
				break // it shows as a lag that grows
			}
			e.mu.Lock()
			e.sawLocked(uint16(n), &st)
			e.mu.Unlock()
		}
	}
}

// sawLocked notes how far a shard is. One that never had an owner has no
// watermark: it lags since this engine began.
func (e *Engine) sawLocked(n uint16, st *engine.ShardState) {
	if st.Watermark > 0 {
		e.water[n] = (st.Watermark + 1) * 60_000
	}
}

// complaints logs troubles that come again and again, each kind every 10 s.
type complaints struct {
	log  *slog.Logger
	mu   sync.Mutex
	last map[string]time.Time
}

func (c *complaints) say(what string, err error) {
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
	if !quiet && !errors.Is(err, context.Canceled) { // the end is no trouble
		c.log.Error(what+"; trying again", "err", err)
	}
}
