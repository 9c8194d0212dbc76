package pebble

import (
	"bytes"
	"fmt"
	"reflect"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/engine"
)

func swapTo(t *testing.T, s *Store, row engine.Trigger) engine.Trigger {
	t.Helper()
	won, err := s.Triggers().Swap(t.Context(), []engine.TriggerSwap{{Old: row.Version, New: row}})
	if err != nil || !won[0] {
		t.Fatal(won, err)
	}
	row.Version++
	return row
}

func getTrigger(t *testing.T, s *Store, id string) engine.Trigger {
	t.Helper()
	got, err := s.Triggers().Get(t.Context(), []string{id})
	if err != nil {
		t.Fatal(err)
	}
	return got[0]
}

func listedAs(t *testing.T, s *Store, state engine.TriggerState) (ids []string) {
	t.Helper()
	rows, err := s.Triggers().List(t.Context(), "shop", state, engine.TriggerCursor{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		ids = append(ids, rows[i].ID)
	}
	return ids
}

// TestSwapsLeaveTheRequest: the request of a large trigger is written once, and
// again only when a swap changes it.
func TestSwapsLeaveTheRequest(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testConfig(vfs.NewMem()))
	row := engine.Trigger{ID: "trg_1", Caller: "shop", Payload: bytes.Repeat([]byte("x"), splitFrom), State: engine.TriggerPending, FireAt: 5}
	if _, err := s.Triggers().Create(t.Context(), []engine.Trigger{row}); err != nil {
		t.Fatal(err)
	}
	row.Version = 1
	request := func() []byte {
		t.Helper()
		v, err := s.get(triggerKey(row.ID))
		if err != nil || v == nil {
			t.Fatal(v, err)
		}
		return v
	}
	before := request()
	row.State, row.FireAt, row.Epoch, row.Log = engine.TriggerInFlight, 6, 1, []engine.Attempt{{N: 1, Class: "ok"}}
	row = swapTo(t, s, row)
	if !bytes.Equal(request(), before) {
		t.Error("a swap of the state has written the request anew")
	}
	head, err := s.get(triggerHeadKey(row.ID))
	if err != nil || len(head) == 0 || len(head) > 100 {
		t.Errorf("a head of %d bytes, %v", len(head), err)
	}
	if got := getTrigger(t, s, row.ID); !reflect.DeepEqual(got, row) {
		t.Errorf("%+v", got)
	}
	row.Payload = []byte("short")
	row = swapTo(t, s, row)
	if got := getTrigger(t, s, row.ID); !reflect.DeepEqual(got, row) || bytes.Equal(request(), before) {
		t.Errorf("%+v", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestHeadersAreNotStale: readers without a lock remember headers while rows are
// swapped. Each swap of the version that is stored wins, and of another none.
func TestHeadersAreNotStale(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testConfig(vfs.NewMem()))
	ids := []string{"trg_1", "trg_2", "trg_3"}
	for _, id := range ids {
		if _, err := s.Triggers().Create(t.Context(), []engine.Trigger{{ID: id, Caller: "shop", State: engine.TriggerPending}}); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := s.Triggers().Get(t.Context(), ids); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 300 {
		row := getTrigger(t, s, ids[i%3])
		row.Attempts = i
		row = swapTo(t, s, row)
		stale := row
		stale.Version--
		won, err := s.Triggers().Swap(t.Context(), []engine.TriggerSwap{{Old: stale.Version, New: stale}})
		if err != nil || won[0] {
			t.Fatal("a version that is gone has won", err)
		}
	}
	close(done)
	readers.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestHeadersReadWhileWriting: what a reader saw between the moment a writer began
// and the moment its row became visible is not believed afterwards, whatever the
// writer wrote. Torture found a cancelled trigger that was claimed by it.
func TestHeadersReadWhileWriting(t *testing.T) {
	t.Parallel()
	for state := engine.TriggerPending; state <= engine.TriggerExpired; state++ {
		var c triggerHeads
		old := triggerHeader{version: 1, state: engine.TriggerPending, caller: "shop"}
		before := c.reading("trg_1")
		c.writing("trg_1")
		c.found("trg_1", old, c.reading("trg_1"))
		c.wrote("trg_1", triggerHeader{version: 2, state: state, caller: "shop"})
		if h, ok := c.get("trg_1"); ok && h.version != 2 {
			t.Errorf("written as %d: version %d is believed", state, h.version)
		}
		c.found("trg_1", old, before)
		if h, ok := c.get("trg_1"); ok && h.version != 2 {
			t.Errorf("written as %d: version %d, read before, is believed", state, h.version)
		}
	}
}

// TestFlightsAreForgotten: what a claim wrote to say who is IN_FLIGHT goes when
// nobody is, with the swaps that follow.
func TestFlightsAreForgotten(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s := mustOpen(t, testConfig(fs))
	var all []engine.Trigger
	for i := range 10 {
		all = append(all, engine.Trigger{ID: fmt.Sprint("trg_", i), Caller: "shop", State: engine.TriggerPending})
	}
	if _, err := s.Triggers().Create(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	to := func(state engine.TriggerState, rows []engine.Trigger) {
		t.Helper()
		var ss []engine.TriggerSwap
		for i := range rows {
			row := getTrigger(t, s, rows[i].ID)
			row.State = state
			ss = append(ss, engine.TriggerSwap{Old: row.Version, New: row})
		}
		if _, err := s.Triggers().Swap(t.Context(), ss); err != nil {
			t.Fatal(err)
		}
	}
	to(engine.TriggerInFlight, all)
	if n := countRows(t, s, tFlight); n != 1 {
		t.Errorf("%d rows for one claim of ten", n)
	}
	to(engine.TriggerFired, all[:9])
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, testConfig(fs))
	if got := listedAs(t, s, engine.TriggerInFlight); len(got) != 1 || got[0] != all[9].ID {
		t.Errorf("IN_FLIGHT after a start: %v", got)
	}
	to(engine.TriggerPending, all[9:])
	to(engine.TriggerInFlight, all[9:])
	to(engine.TriggerFired, all[9:])
	to(engine.TriggerFired, all[9:])
	if n := countRows(t, s, tFlight); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	if got := listedAs(t, s, engine.TriggerInFlight); len(got) != 0 {
		t.Errorf("IN_FLIGHT: %v", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
