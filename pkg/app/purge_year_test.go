package app

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestYear writes into the embedded store what a year of notifications leaves there, and runs the
// purges of a process. It checks that, once the retention is over, neither the store grows nor the
// amount that a start reads from it.
func TestYear(t *testing.T) {
	t.Parallel()
	const day, singles = 24 * time.Hour, 100
	ctx, dir := t.Context(), t.TempDir()
	store, err := pebble.Open(pebble.Config{Dir: filepath.Join(dir, "store"), MemTableBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	kept, err := history.Open(history.Config{Dir: filepath.Join(dir, "history"), Retention: 30 * day})
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	n := &Node{embedded: &embeddedEngines{store: store, history: kept}, log: slog.New(slog.DiscardHandler)}
	n.cfg.Timers.MaxDelay = 60 * day
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

	write := func(now time.Time, d int) {
		t.Helper()
		var rows []notify.Row
		row := func(base notify.Base, done bool) *notify.Row {
			rows = append(rows, notify.Row{
				Key: notify.RowKey{Chunk: notify.Chunk{Base: base}}, Count: 1, Done: done, Caller: "shop",
				Accepted: base.Time().UnixMilli(), Updated: now.UnixMilli(), Topic: "notifications-sms",
				Default: notify.Exception{State: notify.Sent, Provider: "twilio", Receipt: fmt.Sprintf("SM%032d", len(rows))},
			})
			return &rows[len(rows)-1]
		}
		for range singles {
			base := notify.NewBase(now)
			row(base, true)
			row(base, true).Key.Kind = notify.RowReceipt
		}
		row(notify.NewBase(now.Add(-59*day)), true) // scheduled long ago, fires now
		row(notify.NewBase(now), false)             // claimed, and never done
		if err := store.Status().Put(ctx, rows); err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			if _, err := store.Cancels().Put(ctx, engine.Cancel{Scope: notify.ID{Base: rows[2*i].Key.Chunk.Base}.String(), At: now.UnixMilli()}); err != nil {
				t.Fatal(err)
			}
		}
		if err := store.Campaigns().AddPart(ctx, fmt.Sprint("cmp_", d), "shop", 0, rows[0].Key.Chunk.Base, 1, 0, now.UnixMilli()); err != nil {
			t.Fatal(err)
		}
	}
	purges := runner{n}.purges()
	if purges["purge of outcomes"] == nil || purges["purge of cancellations and campaigns"] == nil {
		t.Fatal("a process with the embedded engines runs no purge of outcomes")
	}
	type size struct {
		rows, open, cancels, campaigns int
		bytes                          uint64
	}
	measure := func(now time.Time, d int) (s size) {
		t.Helper()
		young := 0 // rows of the last 30 days, which must be there
		err := store.Status().Scan(ctx, 0, 1<<47, func(r *notify.Row) error {
			s.rows++
			if !r.Done {
				s.open++
			}
			if now.Sub(time.UnixMilli(r.Updated)) <= 30*day {
				young++
			}
			return nil
		})
		if want := 31 * (2*singles + 2); err != nil || young != want {
			t.Fatalf("day %d: %d rows of the last 30 days are left, want %d: %v", d, young, want, err)
		}
		cs, err := store.Cancels().Changes(ctx, 0, 1<<20) // what a start reads
		if err != nil {
			t.Fatal(err)
		}
		s.cancels = len(cs)
		for i := range d + 1 {
			if _, ok, err := store.Campaigns().Get(ctx, fmt.Sprint("cmp_", i)); err != nil {
				t.Fatal(err)
			} else if ok {
				s.campaigns++
			}
		}
		s.bytes = store.Metrics().DiskBytes
		return s
	}
	var at120 size
	for d := range 366 {
		now := start.Add(time.Duration(d) * day)
		write(now, d)
		for _, purge := range []func() error{
			func() error { return newPurger(n).removeOutcomes(ctx, now) },
			func() error { return newPurger(n).removeCancelsAndCampaigns(ctx, now) },
		} {
			if err := purge(); err != nil {
				t.Fatal(err)
			}
		}
		if d == 120 {
			at120 = measure(now, d)
		}
	}
	end := measure(start.Add(365*day), 365)
	t.Logf("day 120: %+v; day 365: %+v", at120, end)
	if end.rows != at120.rows || end.open != at120.open || end.cancels != at120.cancels || end.campaigns != at120.campaigns {
		t.Errorf("day 120: %+v; day 365: %+v: the store grows with age", at120, end)
	}
	if end.cancels > 10*93 || end.rows > 35*(2*singles+2)+93 {
		t.Errorf("%d rows, %d cancellations: more than retention explains", end.rows, end.cancels)
	}
	if end.bytes > 2*at120.bytes {
		t.Errorf("%d bytes after a year, %d after 120 days", end.bytes, at120.bytes)
	}
}
