package timer

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/wheel"
)

// Config of an Engine. The zero value of a number means its default.
type Config struct {
	Store engine.Timers
	// Publish hands due timers on; nil means every one of them is durable where
	// it went. It is called again with the same timers until it succeeds.
	Publish func(ctx context.Context, ts []engine.Timer) error

	Shards    int           // partitions of a minute: 16
	Poll      time.Duration // between loads: 1 s
	Lookahead time.Duration // how far ahead of now rows are loaded: 2 s
	Grace     time.Duration // from a minute's end to its close: 10 s
	Batch     int           // timers a Publish at most, and rows a scan: 512
	BatchSize int           // bytes of payload a Publish at most, unless one has more: 4 MiB
	// Loading pauses at either limit while Publish is slow or refuses, so that
	// an outage of any length is caught up in bounded memory.
	MaxPending int    // timers loaded and not acknowledged: 131,072
	MaxBytes   int    // their payload, in bytes: 128 MiB
	Owner      string // name written into the shard rows
	Logger     *slog.Logger
	// Released is told of each published batch: its size and the lateness of
	// its latest timer.
	Released func(n int, late time.Duration)
}

// Engine loads, releases and closes. Park may be called from any goroutine,
// also before Run; what it stores is released once Run runs.
type Engine struct {
	cfg  Config
	wake chan struct{} // something went into the wheel
	room chan struct{} // a shard that was full may load again

	mu      sync.Mutex
	wheel   *wheel.Wheel[*entry]
	shards  []*shard
	pending int // loaded, not acknowledged
}

type shard struct {
	n       uint16
	state   engine.ShardState
	owned   bool
	loaded  int64 // rows with FireAt <= loaded go into the wheel as they are stored
	scanned int64 // rows with FireAt < scanned need no scan; the sweeper's own
	missed  int64 // first FireAt of the rows that found the shard full
	fresh   bool  // rows below the watermark have not been looked for yet
	page    int   // rows the next scan asks for; the sweeper's own
	minutes map[int64]*minute

	open, bytes int  // timers loaded and not acknowledged, and their payload
	full        bool // loading pauses
}

// minute is what is known of a minute that is not dropped yet.
type minute struct {
	seen map[rowID]struct{} // rows that were put into the wheel
	open int                // of them, not acknowledged
}

type rowID struct{ a, b uint64 }

func idOf(t *engine.Timer) rowID {
	h := notify.ColumnDigest(t.ID)
	return rowID{h ^ uint64(t.FireAt)*0x9e3779b97f4a7c15, notify.HashUser(append([]byte{1}, t.ID...))}
}

// entry is a timer in the wheel or on its way out.
type entry struct {
	t engine.Timer
	s *shard
	m *minute
}

// New returns an engine that starts nothing.
func New(cfg Config) *Engine {
	def := func(p *time.Duration, d time.Duration) {
		if *p == 0 {
			*p = d
		}
	}
	def(&cfg.Poll, time.Second)
	def(&cfg.Lookahead, 2*time.Second)
	def(&cfg.Grace, 10*time.Second)
	size := func(p *int, n int) {
		if *p == 0 {
			*p = n
		}
	}
	size(&cfg.Shards, 16)
	size(&cfg.Batch, 512)
	size(&cfg.BatchSize, 4<<20)
	size(&cfg.MaxPending, 1<<17)
	size(&cfg.MaxBytes, 128<<20)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Released == nil {
		cfg.Released = func(int, time.Duration) {}
	}
	e := &Engine{cfg: cfg, wake: make(chan struct{}, 1), room: make(chan struct{}, 1), wheel: wheel.New[*entry](time.Now())}
	for n := range cfg.Shards {
		e.shards = append(e.shards, &shard{n: uint16(n), missed: math.MaxInt64, page: min(64, cfg.Batch), minutes: map[int64]*minute{}})
	}
	return e
}

// Park stores timers; nil means durable. A timer whose time has passed fires at
// once, one into a closed minute under the minute of now.
func (e *Engine) Park(ctx context.Context, ts []engine.Timer) error {
	for len(ts) > 0 {
		stored := e.rehome(ts)
		if err := e.cfg.Store.Put(ctx, e.cfg.Shards, stored); err != nil {
			return err
		}
		ts = e.admit(stored)
	}
	return nil
}

// rehome moves timers of closed minutes to now. (Which minutes an earlier owner
// has closed is not known before the take-over: what is stored there until then
// is found by the first close.)
func (e *Engine) rehome(ts []engine.Timer) []engine.Timer {
	now := time.Now().UnixMilli()
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]engine.Timer, len(ts))
	for i, t := range ts {
		s := e.shards[engine.ShardOf(t.ID, e.cfg.Shards)]
		if t.FireAt/60_000 <= s.state.Closed {
			// The second term holds when the clock was set back.
			t.FireAt = max(t.FireAt, now, (s.state.Closed+1)*60_000)
		}
		out[i] = t
	}
	return out
}

// admit puts stored timers that the load cursor has passed into the wheel, and
// returns those whose minute was closed meanwhile: they must be stored again.
func (e *Engine) admit(ts []engine.Timer) (again []engine.Timer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range ts {
		s := e.shards[engine.ShardOf(ts[i].ID, e.cfg.Shards)]
		switch {
		case !s.owned:
		case ts[i].FireAt/60_000 <= s.state.Closed:
			again = append(again, ts[i])
		case ts[i].FireAt > s.loaded: // the sweeper will come by
		case s.full:
			s.missed = min(s.missed, ts[i].FireAt)
		default:
			e.loadLocked(s, &ts[i])
		}
	}
	return again
}

// loadLocked puts a row into the wheel, once.
func (e *Engine) loadLocked(s *shard, t *engine.Timer) {
	m := s.minute(t.FireAt / 60_000)
	id := idOf(t)
	if _, dup := m.seen[id]; dup {
		return
	}
	m.seen[id] = struct{}{}
	m.open++
	e.pending++
	s.open++
	s.bytes += len(t.Payload)
	if s.open >= e.cfg.MaxPending/e.cfg.Shards || s.bytes >= e.cfg.MaxBytes/e.cfg.Shards {
		s.full = true
	}
	e.wheel.Add(time.UnixMilli(t.FireAt), &entry{*t, s, m})
	e.rouse()
}

// rouse makes the releaser look at the wheel again.
func (e *Engine) rouse() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (s *shard) minute(at int64) *minute {
	m := s.minutes[at]
	if m == nil {
		m = &minute{seen: map[rowID]struct{}{}}
		s.minutes[at] = m
	}
	return m
}

// ackLocked forgets a timer that is durable where it went.
func (e *Engine) ackLocked(x *entry) {
	s := x.s
	x.m.open--
	e.pending--
	s.open--
	s.bytes -= len(x.t.Payload)
	if s.full && s.open <= e.cfg.MaxPending/e.cfg.Shards/2 && s.bytes <= e.cfg.MaxBytes/e.cfg.Shards/2 {
		s.full = false
		select {
		case e.room <- struct{}{}:
		default:
		}
	}
}

// Pending is the number of timers in the wheel or being published.
func (e *Engine) Pending() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pending
}
