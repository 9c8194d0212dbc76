package pebble

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestReadersWaitForTheDisk: no reader sees a state that is not durable yet.
func TestReadersWaitForTheDisk(t *testing.T) {
	row := engine.Trigger{ID: "trg_1", Caller: "shop", State: engine.TriggerPending}
	base := notify.Base{1}
	for name, read := range map[string]func(context.Context, *Store) (string, error){
		"Get": func(ctx context.Context, s *Store) (string, error) {
			got, err := s.Triggers().Get(ctx, []string{row.ID})
			return fmt.Sprint(len(got) == 1 && got[0].State == engine.TriggerCancelled), err
		},
		"List": func(ctx context.Context, s *Store) (string, error) {
			got, err := s.Triggers().List(ctx, "shop", engine.TriggerCancelled, engine.TriggerCursor{}, 10)
			return fmt.Sprint(len(got) == 1), err
		},
		"Head": func(ctx context.Context, s *Store) (string, error) {
			h, _, err := s.Schedules().Head(ctx, base)
			return fmt.Sprint(h.State == engine.ScheduleCancelled), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newHangingFS(vfs.NewMem())
				s := mustOpen(t, testConfig(disk))
				if _, err := s.Triggers().Create(t.Context(), []engine.Trigger{row}); err != nil {
					t.Fatal(err)
				}
				disk.hang()
				go func() {
					next := row
					next.State = engine.TriggerCancelled
					if won, err := s.Triggers().Swap(context.Background(), []engine.TriggerSwap{{Old: 1, New: next}}); err != nil || !won[0] {
						t.Error(won, err)
					}
				}()
				go func() {
					if _, won, err := s.Schedules().Swap(context.Background(), 0, engine.ScheduleHead{Base: base, State: engine.ScheduleCancelled}); err != nil || !won {
						t.Error(won, err)
					}
				}()
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if got, err := read(ctx, s); err == nil {
					t.Fatalf("read %s while the disk hangs", got)
				}
				disk.release()
				synctest.Wait()
				if got, err := read(t.Context(), s); err != nil || got != "true" {
					t.Fatalf("%s, %v", got, err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestTimersApart: the tables of timers share nothing.
func TestTimersApart(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testConfig(vfs.NewMem()))
	tm := []engine.Timer{{FireAt: engine.DayMs, ID: []byte("a")}}
	if err := s.ColdTimers().Put(t.Context(), notify.SpreadOver(1), tm); err != nil {
		t.Fatal(err)
	}
	if hot, err := s.Timers().Buckets(t.Context(), 0, 0, 1<<40); len(hot) != 0 || err != nil {
		t.Errorf("hot: %v, %v", hot, err)
	}
	if err := s.Timers().Put(t.Context(), notify.SpreadOver(1), tm); err != nil {
		t.Fatal(err)
	}
	if err := s.ColdTimers().Drop(t.Context(), engine.TimerPartition{Bucket: 1}); err != nil {
		t.Fatal(err)
	}
	if hot, err := s.Timers().Buckets(t.Context(), 0, 0, 1<<40); len(hot) != 1 || err != nil {
		t.Errorf("hot: %v, %v", hot, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLargeCallIsDurable: a call that gets a batch of its own is durable when it returns.
func TestLargeCallIsDurable(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, testConfig(fs))
	ts := make([]engine.Timer, 4*minOwnBatch)
	for i := range ts {
		ts[i] = engine.Timer{FireAt: 1000, ID: fmt.Append(nil, "t", i), Kind: 1}
	}
	if err := s.Timers().Put(t.Context(), notify.SpreadOver(1), ts); err != nil {
		t.Fatal(err)
	}
	after := mustOpen(t, testConfig(fs.CrashClone(vfs.CrashCloneCfg{})))
	got, err := after.Timers().Scan(t.Context(), engine.TimerPartition{}, engine.TimerCursor{}, 1000, len(ts))
	if err != nil || len(got) != len(ts) {
		t.Errorf("%d of %d timers, %v", len(got), len(ts), err)
	}
	if err := errors.Join(s.Close(), after.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.Timers().Put(t.Context(), notify.SpreadOver(1), ts); notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("a closed store takes timers: %v", err)
	}
}
