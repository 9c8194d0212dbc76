package conserve

import (
	"context"
	"errors"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/schedule"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// many is a history of chunks without rows, timers or records.
type many struct {
	chunks, size int
	at           time.Time
	each         func(i int)
}

func (m *many) Sync(context.Context, map[history.Part]int64) error { return nil }

func (m *many) Chunks(_ context.Context, from map[history.Part]int64, _ int64, fn func(*engine.Found) error) (map[history.Part]int64, error) {
	p := history.Part{Topic: "notifications-push"}
	out := map[history.Part]int64{p: int64(m.chunks)}
	if from[p] > 0 {
		return out, nil
	}
	for i := range m.chunks {
		var w notify.ReceiverWriter
		for k := range m.size {
			w.Append(notify.Receiver{Index: uint32(k), User: []byte("user")})
		}
		f := engine.Found{Topic: p.Topic, Offset: int64(i), Envelope: notify.Envelope{
			Chunk: notify.Chunk{Base: notify.NewBase(m.at).Item(i)}, FanOut: true, Channel: notify.Push, Category: notify.Marketing,
			Accepted: m.at.UnixMilli(), Caller: "shop", Count: w.Count(), Receivers: w.Bytes(),
		}}
		if err := fn(&f); err != nil {
			return nil, err
		}
		m.each(i)
	}
	return out, nil
}

func (m *many) Unsealed(history.Part, int64, int64, func(*engine.Found) error) error { return nil }
func (m *many) Counted(f *engine.Found) (int64, error) {
	return f.Offset, nil
}
func (m *many) Find(context.Context, notify.ID) (engine.Found, error) {
	return engine.Found{}, notify.NotFound("notification")
}
func (m *many) ChunksOf(notify.Base) ([]history.Held, error) { return nil, nil }
func (m *many) Has(notify.Base) (bool, error)                { return true, nil }
func (m *many) Kept(now time.Time) time.Time                 { return now.Add(-time.Hour) }

// passed is a log in which everything was committed and trimmed.
type passed struct{ end int64 }

func (l passed) Bounds(context.Context) (map[log.TopicPartition]Bounds, error) {
	return map[log.TopicPartition]Bounds{{Topic: "notifications-push"}: {Start: l.end, Committed: l.end, End: l.end}}, nil
}

func (l passed) Read(context.Context, map[log.TopicPartition]int64, map[log.TopicPartition]int64, func(log.TopicPartition, *log.Record) error) error {
	return nil
}

func (l passed) Lost(log.TopicPartition, int64) bool { return false }

type noSchedules struct{}

func (noSchedules) List(context.Context, string, notify.Base, int) ([]schedule.View, error) {
	return nil, nil
}
func (noSchedules) Get(context.Context, notify.Base) (schedule.View, error) {
	return schedule.View{}, notify.NotFound("schedule")
}
func (noSchedules) Timers(context.Context, schedule.View) (schedule.View, []engine.Timer, error) {
	return schedule.View{}, nil, nil
}

// TestMemoryIsBounded: of a million receivers that are all lost, which is the
// most there can be to remember, no more than a batch is held, and no more is
// listed than may be; all are counted.
func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var base, most uint64
		heap := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		h := &many{chunks: 250, size: 4000, at: time.Now()}
		h.each = func(i int) {
			if i%5 == 0 {
				most = max(most, heap())
			}
		}
		store := memory.New()
		a := New(Config{
			Log: passed{int64(h.chunks)}, History: h, Status: store.Status(), Timers: store.Timers(), Cold: store.ColdTimers(),
			Spill: store.Spill(), Schedules: noSchedules{}, Shards: engine.FixedShards(16), First: []string{"notifications-push"}, Batch: 20_000,
		})
		base = heap()
		rep, err := a.Run(t.Context(), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		const all = 1_000_000
		if rep.Accepted != all || rep.Lost != all || rep.Drift != all || rep.Classes[api.DriftRecordGone] != all || len(rep.Findings) != 100 || !rep.Truncated {
			t.Errorf("accepted=%d lost=%d drift=%d, %d listed", rep.Accepted, rep.Lost, rep.Drift, len(rep.Findings))
		}
		if grown := int64(most) - int64(base); grown > 24<<20 {
			t.Errorf("%d MiB were held", grown>>20)
		}
		if most == 0 || base == math.MaxUint64 {
			t.Error("nothing was measured")
		}
	})
}

// TestWhoLeavesKeepsNoPlace: one audit at a time, and who waits for its turn may go.
func TestWhoLeavesKeepsNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(Config{})
		a.turn <- struct{}{} // one is under way
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := a.Run(ctx, time.Time{})
			left <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		<-a.turn
	})
}

// keptAt is a history that holds of each chunk the copy at an offset.
type keptAt struct {
	many
	offset int64
}

func (h *keptAt) Counted(*engine.Found) (int64, error) { return h.offset, nil }

// TestOneCopyIsCounted: of the copies of a chunk that an audit reads it counts one,
// also where the history holds a copy that was appended after the audit began.
func TestOneCopyIsCounted(t *testing.T) {
	const end = 10
	for _, tc := range []struct {
		name    string
		kept    int64
		counted int64 // the offset of the copy that is counted
	}{{"the first", 2, 2}, {"the last", 7, 7}, {"of after the beginning", 12, 2}} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRun(New(Config{History: &keptAt{offset: tc.kept}}), time.Time{}, 1)
			r.bounds = map[log.TopicPartition]Bounds{{Topic: "notifications-push"}: {End: end}}
			for _, offset := range []int64{2, 5, 7} {
				f := engine.Found{Topic: "notifications-push", Offset: offset}
				again, err := r.isRepeatedCopy(&f)
				if err != nil || again != (offset != tc.counted) {
					t.Errorf("the copy at %d: a repeat is %v, %v", offset, again, err)
				}
			}
		})
	}
}
