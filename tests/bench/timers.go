package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/timer"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// measureTimerEngine measures P7: the registration of timers, the timer wheel, and how late timers
// are released. The lateness is measured at a steady rate, and with a full minute of timers. A
// release passes the whole engine, on a store that fsyncs, until the engine calls Publish. P6 and
// P8 measure what happens after Publish.
func measureTimerEngine(ctx context.Context, b *bench) {
	b.measureParking(ctx)
	b.measureScheduling(ctx)
	b.measureWheel(ctx)
	b.measureLateness(ctx)
	b.measureFullMinute(ctx)
}

const timerShards = 16 // the same number as in app.Default

// timerEngine is a running timer.Engine with its own store.
type timerEngine struct {
	*timer.Engine
	*background
	store *pebble.Store
	dir   string
}

func (b *bench) timerEngine(ctx context.Context, publish func(context.Context, []engine.Timer) error) *timerEngine {
	e := &timerEngine{dir: b.folder("timers")}
	e.store = rig.Must(pebble.Open(pebble.Config{Dir: e.dir}))
	// The engine is configured as in a node; see pkg/app/later.go.
	e.Engine = timer.New(timer.Config{
		Store: e.store.Timers(), Schedules: e.store.Schedules(), Cold: e.store.ColdTimers(), Heartbeats: memory.NewHeartbeats(),
		Owner: "bench", Shards: timerShards, Publish: publish,
	})
	e.background = inBackground(ctx, e.Run)
	rig.Ok(rig.Until(ctx, "every shard has its owner", func() (bool, error) { return len(e.Stats().Shards) == timerShards, nil }))
	return e
}

func (e *timerEngine) close() {
	e.end()
	rig.Ok(e.store.Close())
	removeFolders(e.dir)
}

const (
	timerWriters = 8
	timerBatch   = 256
)

// timerAt returns the timer of one scheduled push that is due at the given time.
func timerAt(due time.Time, payload []byte) engine.Timer {
	c := notify.Chunk{Base: notify.NewBase(due)}
	return engine.Timer{FireAt: due.UnixMilli(), ID: c.TimerID(0), Kind: timer.KindEnvelope, Target: "notifications-push", Payload: payload, Head: c.Base, Weight: 1}
}

// putting is a function that stores timers. They are durable when it returns.
type putting = func(ctx context.Context, ts []engine.Timer)

// inBatches calls the function store with batches of timers, from timerWriters goroutines, for
// about d. It returns timers per second. The timers are due between one and two hours from now.
func inBatches(ctx context.Context, d time.Duration, payloads [][]byte, store putting) (perSecond float64) {
	began := time.Now()
	batches := [timerWriters][timerBatch]engine.Timer{}
	return flood(ctx, timerWriters, d, func(ctx context.Context, writer int) int {
		ts := batches[writer][:]
		for i := range ts {
			ts[i] = timerAt(began.Add(time.Hour+rand.N(time.Hour)), payloads[i%len(payloads)])
		}
		store(ctx, ts)
		return timerBatch
	})
}

// measureParking compares Engine.Park with Pebble alone. Both sides store the same keys (shard,
// time, id) and values (kind, target, head, payload), in the same batches, from the same number of
// goroutines. Each goroutine waits until its batch is durable before it sends the next batch.
// Pebble itself combines the fsyncs of several goroutines. At the end the number of stored rows
// must be the number of acknowledged timers.
func (b *bench) measureParking(ctx context.Context) {
	b.registrations(ctx, "timers parked", func(e *timerEngine) putting {
		return func(ctx context.Context, ts []engine.Timer) { rig.Ok(e.Park(ctx, ts)) }
	}, putTimers)
}

// measureScheduling compares Engine.ParkScheduled with Pebble alone. ParkScheduled stores a
// schedule with each timer. Pebble alone stores the same rows in one batch: the row of the
// schedule, its two index rows and the row of the timer.
func (b *bench) measureScheduling(ctx context.Context) {
	b.registrations(ctx, "schedules and their timers stored", func(e *timerEngine) putting {
		return func(ctx context.Context, ts []engine.Timer) {
			ss := make([]engine.Schedule, len(ts))
			for i := range ts {
				ss[i] = scheduleOf(&ts[i])
			}
			rig.Ok(e.ParkScheduled(ctx, ss, ts))
		}
	}, func(batch *pebbledb.Batch, ts []engine.Timer) {
		putSchedules(batch, ts)
		putTimers(batch, ts)
	})
}

func scheduleOf(t *engine.Timer) engine.Schedule {
	return engine.Schedule{Base: t.Head, Caller: "shop", User: "user-0000001", Channel: notify.Push, Category: notify.Transactional, FireAt: t.FireAt, Created: t.FireAt - 3_600_000, Receivers: 1, Accepted: 1}
}

func (b *bench) registrations(ctx context.Context, what string, put func(*timerEngine) putting, bare func(*pebbledb.Batch, []engine.Timer)) {
	e := b.timerEngine(ctx, func(context.Context, []engine.Timer) error { return errors.New("no timer is due yet") })
	dir := b.folder("pebble")
	db := rig.Must(pebbledb.Open(dir, pebbleOptions()))
	payloads := envelopes(timerBatch, 1, text)
	var parked atomic.Int64
	ours := &side{name: "park", run: func(d time.Duration) float64 {
		return inBatches(ctx, d, payloads, func(ctx context.Context, ts []engine.Timer) {
			put(e)(ctx, ts)
			parked.Add(int64(len(ts)))
		})
	}}
	raw := &side{name: "pebble", run: func(d time.Duration) float64 {
		return inBatches(ctx, d, payloads, func(_ context.Context, ts []engine.Timer) {
			batch := db.NewBatch()
			bare(batch, ts)
			rig.Ok(batch.Commit(pebbledb.Sync))
			rig.Ok(batch.Close())
		})
	}}
	b.alternate("P7", b.length(3*time.Second, time.Second), ours, raw)
	rows := int64(0)
	rig.Ok(e.store.Timers().Pending(ctx, func(*engine.Timer) error { rows++; return nil }))
	if n := parked.Load(); rows != n {
		panic(fmt.Errorf("%d timers were acknowledged, but %d are stored", n, rows))
	}
	e.close()
	rig.Ok(db.Close())
	removeFolders(dir)
	b.add(result{ID: "P7", Work: fmt.Sprintf("%s, fsynced, %d goroutines, batches of %d, %d B of payload; %.2f cores, %.0f ns; ref: Pebble alone, %.2f cores, %.0f ns", what, timerWriters, timerBatch, len(payloads[0]), ours.cores, ours.cost, raw.cores, raw.cost),
		Value: ours.best, Unit: "timers/s", Reference: raw.best, main: true}, ratioOf(0.7))
}

// pebbleOptions returns the options for Pebble alone. The sizes are the same as in
// pkg/engine/pebble.
func pebbleOptions() *pebbledb.Options {
	return &pebbledb.Options{
		CacheSize: 128<<20 + 3*64<<20, MemTableSize: 64 << 20, MemTableStopWritesThreshold: 4,
		L0CompactionThreshold: 4, L0StopWritesThreshold: 64, LBaseMaxBytes: 64 << 20,
		CompactionConcurrencyRange: func() (int, int) { return 1, 2 },
		BytesPerSync:               512 << 10, WALBytesPerSync: 512 << 10, FormatMajorVersion: pebbledb.FormatNewest,
		Logger: silent{},
	}
}

type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}

// putTimers adds timers to a batch, with the same keys and values as our store writes.
func putTimers(batch *pebbledb.Batch, ts []engine.Timer) {
	var k, v []byte
	for i := range ts {
		t := &ts[i]
		k = append(k[:0], 't')
		k = binary.BigEndian.AppendUint16(k, uint16(i%timerShards))
		k = append(binary.BigEndian.AppendUint64(k, uint64(t.FireAt)), t.ID...)
		v = append(v[:0], 2, t.Kind, byte(len(t.Target)))
		v = append(append(append(v, t.Target...), 1), t.Head[:]...)
		v = append(append(v, byte(t.Gen), byte(t.Weight)), t.Payload...)
		rig.Ok(batch.Set(k, v, nil))
	}
}

// putSchedules adds the schedules of timers to a batch, with the same keys and values as our store
// writes: for each schedule its row, an index row by caller and an index row by fire time.
func putSchedules(batch *pebbledb.Batch, ts []engine.Timer) {
	var k, v []byte
	for i := range ts {
		x := scheduleOf(&ts[i])
		v = append(v[:0], 2, 0, byte(x.Channel), byte(x.Category), byte(len(x.Caller)))
		v = append(append(v, x.Caller...), 0)
		for _, at := range []int64{x.FireAt, x.Created, x.Expires} {
			v = binary.AppendVarint(v, at)
		}
		v = append(v, 0, 0, 0, byte(x.Receivers), byte(x.Accepted), byte(len(x.User)))
		v = append(v, x.User...)
		k = append(append(k[:0], 'R'), x.Base[:]...)
		rig.Ok(batch.Set(k, v, nil))
		k = append(append(append(k[:0], 'C', 0, byte(len(x.Caller))), x.Caller...), x.Base[:]...)
		rig.Ok(batch.Set(k, nil, nil))
		k = append(binary.BigEndian.AppendUint64(append(k[:0], 'F'), uint64(x.FireAt)), x.Base[:]...)
		rig.Ok(batch.Set(k, nil, nil))
	}
}

// releases is a record of how late the engine releases each timer. The engine passes the released
// timers to the method publish.
type releases struct {
	want int           // number of timers
	all  chan struct{} // closed when this number of timers was released

	mu    sync.Mutex
	late  []time.Duration
	seen  map[string]struct{}
	last  time.Time
	again int             // timers that were released a second time
	bare  []time.Duration // sorted lateness of a sleeper that ran at the same time
}

// sleeper is the reference of lateness: a goroutine that only wakes every millisecond and records
// how late it woke. If the machine has no free processor, the sleeper is late, too.
type sleeper struct {
	stop chan struct{}
	done chan []time.Duration
}

func startSleeper(at time.Time) *sleeper {
	s := &sleeper{make(chan struct{}), make(chan []time.Duration, 1)}
	go func() {
		var late []time.Duration
		for ; ; at = at.Add(time.Millisecond) {
			time.Sleep(time.Until(at)) // returns at once if at is earlier than now
			select {
			case <-s.stop:
				slices.Sort(late)
				s.done <- late
				return
			default:
			}
			late = append(late, time.Since(at))
		}
	}()
	return s
}

func (s *sleeper) end() []time.Duration { close(s.stop); return <-s.done }

func newReleases(n int) *releases {
	return &releases{want: n, all: make(chan struct{}), late: make([]time.Duration, 0, n), seen: make(map[string]struct{}, n)}
}

func (r *releases) publish(_ context.Context, ts []engine.Timer) error {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range ts {
		if _, twice := r.seen[string(ts[i].ID)]; twice {
			r.again++
			continue
		}
		r.seen[string(ts[i].ID)] = struct{}{}
		if r.late = append(r.late, now.Sub(time.UnixMilli(ts[i].FireAt))); len(r.late) == r.want {
			r.last = now
			close(r.all)
		}
	}
	return nil
}

// waitReleased waits until all timers were released and returns their sorted lateness. It panics if
// a timer was released early, twice, or not within the limit.
func (r *releases) waitReleased(ctx context.Context, limit time.Duration) []time.Duration {
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	select {
	case <-r.all:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.late)
	switch {
	case len(r.late) < r.want:
		panic(fmt.Errorf("%d of %d timers are not released %v after the last was due", r.want-len(r.late), r.want, limit))
	case r.late[0] < 0:
		panic(fmt.Errorf("a timer was released %v early", -r.late[0]))
	case r.again > 0:
		panic(fmt.Errorf("%d timers were released twice without a crash", r.again))
	}
	return r.late
}

// parkSpread parks n timers. The parameter start is the due time of the first, and the others are
// spread evenly over the duration span. parkSpread panics if it has not stored all timers before
// the first is due.
func (e *timerEngine) parkSpread(ctx context.Context, n int, span time.Duration, start time.Time) {
	payload := envelopes(1, 1, text)[0]
	rig.InSteps(ctx, n, 1000, timerWriters, func(ctx context.Context, from, to int) {
		ts := make([]engine.Timer, 0, to-from)
		for i := from; i < to; i++ {
			ts = append(ts, timerAt(start.Add(time.Duration(i)*span/time.Duration(n)), payload))
		}
		rig.Ok(e.Park(ctx, ts))
	})
	if left := time.Until(start); left < 0 {
		panic(fmt.Errorf("storing %d timers took too long: it ended %v after the first timer was due", n, -left))
	}
}

// parkTime returns the time that parking n timers may take before the first is due.
func parkTime(n int) time.Duration { return 5*time.Second + time.Duration(n)*20*time.Microsecond }

// measureReleases passes n timers through a new engine. The parameter start is the due time of the
// first, and the others are spread evenly over the duration span. It returns the sorted lateness of
// the timers and the number of busy cores.
func (b *bench) measureReleases(ctx context.Context, name string, n int, start time.Time, span time.Duration) (late []time.Duration, r *releases, cores float64) {
	r = newReleases(n)
	e := b.timerEngine(ctx, r.publish)
	e.parkSpread(ctx, n, span, start)
	rig.Ok(rig.Pause(ctx, time.Until(start)))
	bare := startSleeper(start)
	sp := b.span(name)
	late = r.waitReleased(ctx, span+2*time.Minute)
	cores, _ = sp.cores()
	r.bare = bare.end()
	e.close()
	return late, r, cores
}

func inMs(d time.Duration) float64 { return round(float64(d)/1e6, 3) }

// quantile returns the q quantile of sorted values; q is from 0 to 1.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// measureLateness measures how late timers are at 50,000 releases a second.
func (b *bench) measureLateness(ctx context.Context) {
	const rate = 50_000
	span := b.length(20*time.Second, 5*time.Second)
	n := int(rate * span.Seconds())
	late, r, cores := b.measureReleases(ctx, "P7-lateness", n, time.Now().Add(parkTime(n)).Truncate(time.Millisecond), span)
	b.add(result{ID: "P7", Work: fmt.Sprintf("lateness at %s releases/s for %.0f s, p99; p50 %g p99.9 %g max %g ms, 0 early; %.2f cores; ref: a goroutine that only sleeps, max %g ms", number(rate), span.Seconds(), inMs(quantile(late, 0.5)), inMs(quantile(late, 0.999)), inMs(late[n-1]), cores, inMs(r.bare[len(r.bare)-1])),
		Value: inMs(quantile(late, 0.99)), Unit: "ms", Reference: inMs(quantile(r.bare, 0.99))}, below(50, "ms"))
}

// measureFullMinute measures a full minute: a million timers, or 100,000 in six seconds if -short
// is set. In the first run the due times are spread over the minute. In the second run all timers
// are due at the first millisecond of the minute; this run is for information.
func (b *bench) measureFullMinute(ctx context.Context) {
	n, span := 1_000_000, time.Minute
	if b.short {
		n = 100_000
		span = 6 * time.Second // the same rate
	}
	for _, over := range []time.Duration{span, 0} {
		start := time.Now().Add(parkTime(n))
		if over == time.Minute || over == 0 && !b.short {
			start = start.Truncate(time.Minute).Add(time.Minute)
		}
		start = start.Truncate(time.Millisecond)
		late, r, cores := b.measureReleases(ctx, "P7-minute", n, start, over)
		due := start.Add(over - over/time.Duration(n)).Truncate(time.Millisecond)
		what, want := fmt.Sprintf("%s timers, due times spread over %.0f s", number(float64(n)), over.Seconds()), below(10, "s")
		if over == 0 {
			what, want = fmt.Sprintf("%s timers due at the same millisecond", number(float64(n))), info
		}
		b.add(result{ID: "P7", Work: fmt.Sprintf("%s: time from the last due time until all were released; lateness p99 %g ms, max %g ms; %.2f cores", what, inMs(quantile(late, 0.99)), inMs(late[n-1]), cores),
			Value: round(max(r.last.Sub(due), 0).Seconds(), 3), Unit: "s"}, want)
	}
}

func below(v float64, unit string) need {
	return need{fmt.Sprintf("< %g %s", v, unit), func(r result) bool { return r.Value < v }}
}
