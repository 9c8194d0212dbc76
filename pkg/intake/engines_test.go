package intake

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/store"
)

// stores is what intake needs of an engine.
type stores interface {
	Idem() store.Idem
	Campaigns() *store.Campaigns
	Cancels() store.Cancels
	Spill() *store.Spill
}

// over makes a service over an engine and a log.
func over(t *testing.T, s stores, log Log) *Service {
	t.Helper()
	svc, err := New(Stores{
		Log: log, Partitions: func(string, notify.Base) int { return 6 }, Idem: s.Idem(),
		Campaigns: s.Campaigns(), Cancels: s.Cancels(), Spill: s.Spill(),
	}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// openPebble opens a store on fs.
func openPebble(t *testing.T, fs vfs.FS) *pebble.Store {
	t.Helper()
	s, err := pebble.Open(pebble.Config{Dir: "data", FS: fs, CacheBytes: 1 << 20, MemTableBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestOverEngines runs the promises of a key, a campaign and the spill buffer
// over the engines instead of the doubles.
func TestOverEngines(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) stores{
		"memory": func(*testing.T) stores { return memory.New() },
		"pebble": func(t *testing.T) stores { return openPebble(t, vfs.NewMem()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st, log := open(t), &fakeLog{}
			s := over(t, st, log)

			var wg sync.WaitGroup
			answers := make([]request.Answer, 64)
			for i := range answers {
				wg.Go(func() {
					for {
						a, err := s.Single(t.Context(), request.Meta{Caller: "c", Key: "one"}, []byte(singleBody))
						if notify.KindOf(err) == notify.KindConflict {
							continue
						}
						if err != nil {
							t.Error(err)
						}
						answers[i] = a
						return
					}
				})
			}
			wg.Wait()
			for _, a := range answers {
				if !bytes.Equal(a.Body, answers[0].Body) {
					t.Errorf("answers %s and %s", a.Body, answers[0].Body)
				}
			}
			if len(log.records()) != 1 {
				t.Errorf("%d records for one key", len(log.records()))
			}

			for range 2 {
				if _, err := s.Fanout(t.Context(), request.Meta{Caller: "c"}, part(3, `["a","b","a"]`)); err != nil {
					t.Fatal(err)
				}
			}
			if c, ok, err := st.Campaigns().Get(t.Context(), someCampaign); err != nil || !ok || c.Parts != 1 || c.Accepted != 2 || c.Rejected != 1 {
				t.Errorf("campaign %+v, %v, %v", c, ok, err)
			}
			if _, err := st.Cancels().Put(t.Context(), engine.Cancel{Scope: someCampaign, Caller: "c", At: time.Now().UnixMilli()}); err != nil {
				t.Fatal(err)
			}
			_, err := s.Fanout(t.Context(), request.Meta{Caller: "c"}, part(4, `["a"]`))
			refused(t, err, notify.KindConflict, "campaign_cancelled", "campaign")

			log.set(logDown())
			before := len(log.records())
			for range 3 {
				if _, err := s.Single(t.Context(), request.Meta{Caller: "c"}, []byte(singleBody)); err != nil {
					t.Fatal(err)
				}
			}
			log.set(nil)
			if _, err := s.Single(t.Context(), request.Meta{Caller: "c"}, []byte(singleBody)); err != nil || len(log.records()) != before {
				t.Errorf("%v, %d records overtook the spilled ones", err, len(log.records())-before)
			}
			if n, err := (&Drainer{Spill: st.Spill(), Log: log}).Drain(t.Context()); err != nil || n != 4 {
				t.Errorf("drained %d, %v", n, err)
			}
			if _, err := s.Single(t.Context(), request.Meta{Caller: "c"}, []byte(singleBody)); err != nil || len(log.records()) != before+5 {
				t.Errorf("%v, %d records after the drain, want 5", err, len(log.records())-before)
			}
		})
	}
}

// TestPowerLoss: the reservation is on disk before the first record is in the
// log. The power goes right after the append; with what was synced, the repeat
// writes the same records.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	for _, q := range requests() {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			fs := vfs.NewCrashableMem()
			log := &fakeLog{}
			var after *vfs.MemFS
			log.after = func() error {
				after = fs.CrashClone(vfs.CrashCloneCfg{})
				panic(crash{})
			}
			m := request.Meta{Caller: "c", Key: "k"}
			if s := over(t, openPebble(t, fs), log); !dies(func() { q.call(s, t.Context(), m, q.body) }) {
				t.Fatal("it did not crash")
			}
			log.after = nil
			first := log.records()

			st := openPebble(t, after)
			endLease(t, st.Idem(), engine.IdemKey{Caller: "c", Key: "k"})
			if a, err := q.call(over(t, st, log), t.Context(), m, q.body); err != nil || a.Replayed {
				t.Fatalf("%+v, %v", a, err)
			}
			second := log.records()[len(first):]
			if len(first) == 0 || len(second) != len(first) {
				t.Fatalf("%d records, then %d", len(first), len(second))
			}
			for i := range first {
				if !bytes.Equal(first[i].Value, second[i].Value) || first[i].Partition != second[i].Partition {
					t.Errorf("record %d differs the second time", i)
				}
			}
		})
	}
}

// endLease lets the lease of a key run out.
func endLease(t *testing.T, idem request.Idem, key engine.IdemKey) {
	t.Helper()
	now := time.Now().UnixMilli()
	stored, won, err := idem.Reserve(context.Background(), engine.Reservation{Key: key, Expires: now + 1000}, now)
	if err != nil || won {
		t.Fatalf("the reservation is gone: %v", err)
	}
	if ok, err := idem.TakeOver(context.Background(), stored, stored.Owner, 0); err != nil || !ok {
		t.Fatalf("lease: %v, %v", ok, err)
	}
}
