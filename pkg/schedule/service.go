package schedule

import (
	"bytes"
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Config configures a Service. Schedules, Timers, Cold, Shards, Park and Ended are required.
type Config struct {
	Schedules engine.Schedules
	Timers    engine.Timers
	Cold      engine.ColdTimers
	Shards    engine.Shards // the same as the timer engine's

	// Park stores timers for the timer engine. If it returns nil, the timers are durable.
	Park func(ctx context.Context, ts []engine.Timer) error
	// Store stores schedules and their timers. It stores the schedules before the timers or
	// together with them. If it returns nil, both are durable. Default: Schedules.Put, then Park.
	Store func(ctx context.Context, ss []engine.Schedule, ts []engine.Timer) error
	// Forget removes rows of generations that no longer count. Default: the rows stay until their
	// minute is closed.
	Forget func(ctx context.Context, shards notify.Spread, ts []engine.Timer) error
	// Gate returns an error while the process cannot store more. The caller gets that error. Gate is
	// called before a move, never before a cancel.
	Gate func() error
	// Clock returns an error while the clock of this process is not reliable. Then it is not known
	// whether a schedule is due, so nothing is cancelled or moved and the caller gets the error.
	Clock func() error
	// Ended records that the notifications in these timers were cancelled before they were due. If
	// it returns nil, the record is durable. A second call with the same timers changes nothing.
	Ended func(ctx context.Context, ts []engine.Timer) error

	// Guard is the time before the fire time of a schedule in which the schedule can no longer be
	// cancelled or moved. Guard must be at least the sum of the timer engine's look-ahead, its write
	// timeout and the clock skew between processes. Default 4.5 s.
	Guard time.Duration
	// MaxDelay is how far into the future a schedule may be moved. Default 366 days.
	MaxDelay time.Duration
	// MaxMoves is how often one schedule may be moved. Default 1,000.
	MaxMoves int
	Logger   *slog.Logger // default: discarded
}

// Service stores, reads, cancels and moves schedules. Its methods are safe for concurrent use, even
// if other processes use the same store.
type Service struct{ cfg Config }

// New returns a service. It starts no goroutine.
func New(cfg Config) *Service {
	if cfg.Guard == 0 {
		cfg.Guard = 4500 * time.Millisecond
	}
	if cfg.MaxDelay == 0 {
		cfg.MaxDelay = 366 * 24 * time.Hour
	}
	if cfg.MaxMoves == 0 {
		cfg.MaxMoves = 1000
	}
	if cfg.Gate == nil {
		cfg.Gate = func() error { return nil }
	}
	if cfg.Clock == nil {
		cfg.Clock = func() error { return nil }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Service{cfg}
}

// View is the current state of a schedule.
type View struct {
	engine.Schedule
	// State is the state in the schedule's head (see engine.ScheduleHead). Without a head it is
	// SchedulePending, also after the release.
	State   engine.ScheduleState
	Gen     uint32
	FireAt  int64 // fire time of the current generation, ms since 1970
	Touched int64 // when the schedule was last cancelled or moved, ms since 1970; 0: never
	MovedAt int64 // when the schedule was last moved, ms since 1970; 0: never or not known
	MovedBy string
	moves   uint32
	version uint64
}

// Put stores schedules and their timers. If it returns nil, both are durable. A second call with
// the same values changes nothing.
func (s *Service) Put(ctx context.Context, ss []engine.Schedule, ts []engine.Timer) error {
	if s.cfg.Store != nil {
		return s.cfg.Store(ctx, ss, ts)
	}
	if err := s.cfg.Schedules.Put(ctx, ss); err != nil {
		return err
	}
	return s.cfg.Park(ctx, ts)
}

// Get returns the schedule with this base. It returns notify.KindNotFound if there is no such
// schedule.
func (s *Service) Get(ctx context.Context, base notify.Base) (View, error) {
	sch, ok, err := s.cfg.Schedules.Get(ctx, base)
	switch {
	case err != nil:
		return View{}, err
	case !ok:
		return View{}, notify.NotFound("schedule")
	}
	return s.viewOf(ctx, sch)
}

func (s *Service) viewOf(ctx context.Context, sch engine.Schedule) (View, error) {
	v := View{Schedule: sch, State: engine.SchedulePending, FireAt: sch.FireAt}
	h, ok, err := s.cfg.Schedules.Head(ctx, sch.Base)
	if err != nil {
		return View{}, err
	}
	if ok {
		v.State, v.Gen, v.version = h.State, h.Gen, h.Version
		v.MovedAt, v.MovedBy, v.moves = h.MovedAt, h.MovedBy, h.Moves
		if h.FireAt != 0 {
			v.FireAt = h.FireAt
		}
		if h.State == engine.ScheduleCancelled || h.Gen > 0 {
			v.Touched = h.At
		}
	}
	return v, nil
}

// List returns at most max schedules of a caller, newest request first. It begins after the
// schedule whose base is the parameter after. An empty caller means all callers.
func (s *Service) List(ctx context.Context, caller string, after notify.Base, max int) ([]View, error) {
	ss, err := s.cfg.Schedules.List(ctx, caller, after, max)
	if err != nil {
		return nil, err
	}
	out := make([]View, len(ss))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(headsAtOnce)
	for i, sch := range ss {
		g.Go(func() (err error) {
			out[i], err = s.viewOf(ctx, sch)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return out, nil
}

// headsAtOnce is how many heads List reads at the same time. Each head is a quorum read.
const headsAtOnce = 32

// Timers returns the rows of the schedule's current generation that are still stored, and the view
// to which they belong. If the schedule was moved in the meantime, that view is newer than v. The
// payloads of the rows contain the receivers.
func (s *Service) Timers(ctx context.Context, v View) (View, []engine.Timer, error) {
	for range maxSwapTries {
		ts, err := s.timerRows(ctx, &v)
		if err != nil {
			return v, nil, err
		}
		if sumWeight(ts) == v.Accepted {
			return v, ts, nil
		}
		// Rows are missing. A move may have removed the rows of the earlier generation.
		now, err := s.viewOf(ctx, v.Schedule)
		if err != nil || now.version == v.version {
			return v, ts, err
		}
		v = now
	}
	return v, nil, errContended()
}

// sumWeight returns the number of receivers of the rows.
func sumWeight(ts []engine.Timer) (n uint32) {
	for i := range ts {
		n += ts[i].Weight
	}
	return n
}

// timerRows reads the rows of the generation in v.
func (s *Service) timerRows(ctx context.Context, v *View) ([]engine.Timer, error) {
	shards, err := s.cfg.Shards()
	if err != nil {
		return nil, err
	}
	var out []engine.Timer
	for c := range v.chunks() {
		t, ok, err := s.timerRow(ctx, c, v.Gen, v.FireAt, shards)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, t)
		}
	}
	return out, nil
}

// chunks yields every chunk that the schedule may have.
func (v *View) chunks() func(yield func(notify.Chunk) bool) {
	return func(yield func(notify.Chunk) bool) {
		if !v.FanOut {
			yield(notify.Chunk{Base: v.Base, Partition: v.Partition})
			return
		}
		for block := range (v.Receivers + v.BlockSize - 1) / v.BlockSize {
			for p := range v.Partitions {
				if !yield(notify.Chunk{Base: v.Base, Partition: p, Block: block}) {
					return
				}
			}
		}
	}
}

// timerRow reads one timer from Config.Timers (the near future) or, if it is not there, from
// Config.Cold (the far future).
func (s *Service) timerRow(ctx context.Context, c notify.Chunk, gen uint32, fireAt int64, shards notify.Spread) (engine.Timer, bool, error) {
	id := c.TimerID(gen)
	shard := engine.ShardOf(id, shards)
	after := engine.TimerCursor{FireAt: fireAt, ID: timerIDBefore(id)}
	rows, err := s.cfg.Timers.Scan(ctx, engine.TimerPartition{Bucket: fireAt / 60_000, Shard: shard}, after, fireAt, 1)
	if err != nil {
		return engine.Timer{}, false, err
	}
	if len(rows) == 0 || !bytes.Equal(rows[0].ID, id) {
		if rows, err = s.cfg.Cold.Scan(ctx, engine.TimerPartition{Bucket: fireAt / engine.DayMs, Shard: shard}, after, fireAt, 1); err != nil {
			return engine.Timer{}, false, err
		}
	}
	if len(rows) == 0 || rows[0].FireAt != fireAt || !bytes.Equal(rows[0].ID, id) {
		return engine.Timer{}, false, nil
	}
	return rows[0], true, nil
}

// timerIDBefore returns the greatest timer id that is lower than id and has at most 64 bytes.
func timerIDBefore(id []byte) []byte {
	n := len(id) - 1
	out := append(make([]byte, 0, 64), id[:n]...)
	if id[n] == 0 {
		return out
	}
	out = append(out, id[n]-1)
	for len(out) < 64 {
		out = append(out, 0xff)
	}
	return out
}
