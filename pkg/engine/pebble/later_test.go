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

// TestReadersWaitForTheDisk: a state that is not durable yet is shown to nobody.
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

// countRows counts what is stored in tables.
func countRows(t *testing.T, s *Store, tables ...byte) (n int) {
	t.Helper()
	for _, table := range tables {
		if err := s.each(under([]byte{table}), func(_, _ []byte) (bool, error) { n++; return true, nil }); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// TestPurgeLooksAgain: a row that is swapped between a purge's scan and its turn
// at the row's lock stays.
func TestPurgeLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, testConfig(vfs.NewMem()))
		row := engine.Trigger{ID: "trg_1", Caller: "shop", State: engine.TriggerFired, Ended: 5}
		if _, err := s.Triggers().Create(t.Context(), []engine.Trigger{row}); err != nil {
			t.Fatal(err)
		}
		unlock, err := s.locks.lock(t.Context(), string(triggerKey(row.ID)))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if n, err := s.Triggers().Purge(context.Background(), 10, 10); n != 0 || err != nil {
				t.Errorf("purged %d, %v", n, err)
			}
		}()
		synctest.Wait() // it waits for the lock
		w := triggerWrite{row: &row, old: headerOf(&row), new: triggerHeader{version: 2, state: row.State, ended: 50, caller: "shop"}}
		row.Ended = 50
		if err := s.commit.write(t.Context(), func(tx tx) {
			w.fill(tx, triggerKey(row.ID), appendTrigger(nil, &row, &w.new, false), nil)
		}, nil); err != nil {
			t.Fatal(err)
		}
		unlock()
		synctest.Wait()
		got, err := s.Triggers().Get(t.Context(), []string{row.ID})
		if err != nil || got[0].Ended != 50 {
			t.Errorf("%+v, %v", got, err)
		}
		// And it is purged when its new time has come.
		if n, err := s.Triggers().Purge(t.Context(), 51, 10); n != 1 || err != nil {
			t.Errorf("purged %d, %v", n, err)
		}
		if n := countRows(t, s, tTrigger, tTriggerList, tTriggerEnded, tTriggerHead); n != 0 {
			t.Errorf("%d rows are left", n)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestTimersApart: the tables of timers share nothing.
func TestTimersApart(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testConfig(vfs.NewMem()))
	tm := []engine.Timer{{FireAt: engine.DayMs, ID: []byte("a")}}
	if err := s.ColdTimers().Put(t.Context(), 1, tm); err != nil {
		t.Fatal(err)
	}
	if hot, err := s.Timers().Buckets(t.Context(), 0, 0, 1<<40); len(hot) != 0 || err != nil {
		t.Errorf("hot: %v, %v", hot, err)
	}
	if err := s.Timers().Put(t.Context(), 1, tm); err != nil {
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

// TestLargeCallIsDurable: a call that is a batch of its own is durable when it returns.
func TestLargeCallIsDurable(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, testConfig(fs))
	ts := make([]engine.Timer, 4*minAlone)
	for i := range ts {
		ts[i] = engine.Timer{FireAt: 1000, ID: fmt.Append(nil, "t", i), Kind: 1}
	}
	if err := s.Timers().Put(t.Context(), 1, ts); err != nil {
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
	if err := s.Timers().Put(t.Context(), 1, ts); notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("a closed store takes timers: %v", err)
	}
}
