package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
	"github.com/notifyd/notifyd/pkg/store"
)

// TestTriggersSplit runs the suite with every row in two parts.
func TestTriggersSplit(t *testing.T) {
	overEach(t, func(t *testing.T, open func(*testing.T) *opened) {
		enginetest.Triggers(t, func(enginetest.T) (engine.Triggers, func() engine.Triggers) {
			s := open(t)
			split := func() engine.Triggers {
				s.SplitTriggers()
				return s.Triggers()
			}
			return split(), func() engine.Triggers {
				s.reopen()
				return split()
			}
		})
	})
}

func swapTo(t *testing.T, s *opened, row engine.Trigger) engine.Trigger {
	t.Helper()
	same(t, "won", val(s.Triggers().Swap(t.Context(), []engine.TriggerSwap{{Old: row.Version, New: row}}))(t), []bool{true})
	row.Version++
	return row
}

func getTrigger(t *testing.T, s *opened, id string) engine.Trigger {
	t.Helper()
	return val(s.Triggers().Get(t.Context(), []string{id}))(t)[0]
}

func listedAs(t *testing.T, s *opened, state engine.TriggerState) (ids []string) {
	t.Helper()
	for _, row := range val(s.Triggers().List(t.Context(), "shop", state, engine.TriggerCursor{}, 100))(t) {
		ids = append(ids, row.ID)
	}
	return ids
}

// beforeHeads calls hook before the heads of triggers are looked at.
type beforeHeads struct {
	rows.Rows
	hook func()
}

func (r *beforeHeads) GetMany(ctx context.Context, p rows.Partition, n int, key func([]byte, int) []byte, fn func(int, []byte) error) error {
	if hook := r.hook; p.Table == 'B' && hook != nil {
		r.hook = nil
		hook()
	}
	return r.Rows.GetMany(ctx, p, n, key, fn)
}

// TestReadsOneVersion: between the two parts of a large trigger a swap replaces both.
func TestReadsOneVersion(t *testing.T) {
	t.Parallel()
	r := &beforeHeads{Rows: memory.New().Rows()}
	s := &opened{Contracts: store.OnRows(r)}
	row := engine.Trigger{ID: "trg_1", Caller: "shop", URL: "https://a.example", Payload: bytes.Repeat([]byte("a"), 4000), State: engine.TriggerPending}
	same(t, "created", val(s.Triggers().Create(t.Context(), []engine.Trigger{row}))(t), []bool{true})
	row.Version = 1
	row = swapTo(t, s, row) // from now on it has a head
	next := row
	next.Payload = bytes.Repeat([]byte("b"), 4000)
	r.hook = func() { next = swapTo(t, s, next) }
	got := getTrigger(t, s, row.ID)
	if got.Version != next.Version || !bytes.Equal(got.Payload, next.Payload) {
		t.Errorf("version %d with the payload of %q, want %d and %q", got.Version, got.Payload[:1], next.Version, next.Payload[:1])
	}
}

// TestSwapsLeaveTheRequest: the request of a large trigger is written once, and
// again only when a swap changes it.
func TestSwapsLeaveTheRequest(t *testing.T) {
	overEach(t, func(t *testing.T, open func(*testing.T) *opened) {
		s := open(t)
		row := engine.Trigger{ID: "trg_1", Caller: "shop", Payload: bytes.Repeat([]byte("x"), store.SplitFrom), State: engine.TriggerPending, FireAt: 5}
		same(t, "won", val(s.Triggers().Create(t.Context(), []engine.Trigger{row}))(t), []bool{true})
		row.Version = 1
		stored := func(table byte) []byte {
			return val(s.Rows().Get(t.Context(), rows.Partition{Table: table}, row.ID))(t)[0]
		}
		before := stored('G')
		row.State, row.FireAt, row.Epoch, row.Log = engine.TriggerInFlight, 6, 1, []engine.Attempt{{N: 1, Class: "ok"}}
		row = swapTo(t, s, row)
		if before == nil || !bytes.Equal(stored('G'), before) {
			t.Error("a swap of the state has written the request anew")
		}
		if head := stored('B'); len(head) == 0 || len(head) > 100 {
			t.Errorf("a head of %d bytes", len(head))
		}
		if got := getTrigger(t, s, row.ID); !reflect.DeepEqual(got, row) {
			t.Errorf("%+v", got)
		}
		row.Payload = []byte("short")
		row = swapTo(t, s, row)
		if got := getTrigger(t, s, row.ID); !reflect.DeepEqual(got, row) || bytes.Equal(stored('G'), before) {
			t.Errorf("%+v", got)
		}
	})
}

// TestHeadersAreNotStale: readers without a lock remember headers while rows are
// swapped. Each swap of the version that is stored wins, and of another none.
func TestHeadersAreNotStale(t *testing.T) {
	overEach(t, func(t *testing.T, open func(*testing.T) *opened) {
		s := open(t)
		ids := []string{"trg_1", "trg_2", "trg_3"}
		for _, id := range ids {
			val(s.Triggers().Create(t.Context(), []engine.Trigger{{ID: id, Caller: "shop", State: engine.TriggerPending}}))(t)
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
			won := val(s.Triggers().Swap(t.Context(), []engine.TriggerSwap{{Old: stale.Version, New: stale}}))(t)
			same(t, "won with a version that is gone", won, []bool{false})
		}
		close(done)
		readers.Wait()
	})
}

// TestFlightsAreForgotten: what a claim wrote to say who is IN_FLIGHT goes when
// nobody is, with the swaps that follow.
func TestFlightsAreForgotten(t *testing.T) {
	overEach(t, func(t *testing.T, open func(*testing.T) *opened) {
		s := open(t)
		var all []engine.Trigger
		for i := range 10 {
			all = append(all, engine.Trigger{ID: fmt.Sprint("trg_", i), Caller: "shop", State: engine.TriggerPending})
		}
		val(s.Triggers().Create(t.Context(), all))(t)
		to := func(state engine.TriggerState, rows []engine.Trigger) {
			t.Helper()
			var ss []engine.TriggerSwap
			for i := range rows {
				row := getTrigger(t, s, rows[i].ID)
				row.State = state
				ss = append(ss, engine.TriggerSwap{Old: row.Version, New: row})
			}
			val(s.Triggers().Swap(t.Context(), ss))(t)
		}
		to(engine.TriggerInFlight, all)
		same(t, "rows for one claim of ten", countRows(t, s.Rows(), 'K'), 1)
		to(engine.TriggerFired, all[:9])
		s.reopen()
		same(t, "IN_FLIGHT after a start", listedAs(t, s, engine.TriggerInFlight), []string{all[9].ID})
		to(engine.TriggerPending, all[9:])
		to(engine.TriggerInFlight, all[9:])
		to(engine.TriggerFired, all[9:])
		to(engine.TriggerFired, all[9:])
		same(t, "rows that are left", countRows(t, s.Rows(), 'K'), 0)
		same(t, "IN_FLIGHT", listedAs(t, s, engine.TriggerInFlight), []string(nil))
	})
}

// TestListsInPages: lists that are longer than a page of the index are merged whole, and
// from any place on.
func TestListsInPages(t *testing.T) {
	overEach(t, func(t *testing.T, open func(*testing.T) *opened) {
		s := open(t)
		const n = 1500
		states := []engine.TriggerState{engine.TriggerPending, engine.TriggerFired, engine.TriggerFailed}
		all := make([]engine.Trigger, n)
		for i := range all {
			all[i] = engine.Trigger{ID: fmt.Sprintf("trg_%04d", i), Caller: "shop", State: states[i%7%3]}
			if i%5 == 0 {
				all[i].Caller = fmt.Sprint("other", i%10)
			}
		}
		val(s.Triggers().Create(t.Context(), all))(t)
		for _, caller := range []string{"shop", ""} {
			for _, state := range []engine.TriggerState{0, engine.TriggerPending, engine.TriggerFired} {
				for _, from := range []int{n, 1000, 700} {
					var want, got []string
					for i := from - 1; i >= 0; i-- {
						if (caller == "" || all[i].Caller == caller) && (state == 0 || all[i].State == state) {
							want = append(want, all[i].ID)
						}
					}
					for _, row := range val(s.Triggers().List(t.Context(), caller, state, engine.TriggerCursor{ID: fmt.Sprintf("trg_%04d", from)}, n))(t) {
						got = append(got, row.ID)
					}
					same(t, fmt.Sprintf("caller %q, state %d, from %d", caller, state, from), got, want)
				}
			}
		}
	})
}

// afterScan calls a function once, after the next Scan of a table.
type afterScan struct {
	rows.Rows
	table byte
	run   func()
}

func (a *afterScan) Scan(ctx context.Context, p rows.Partition, in rows.Range, fn func(rows.Row) (bool, error)) error {
	err := a.Rows.Scan(ctx, p, in, fn)
	if run := a.run; run != nil && p.Table == a.table {
		a.run = nil
		run()
	}
	return err
}

// TestTriggerPurgeLooksAgain: a row that is swapped between a purge's scan and its turn
// at the row's lock stays, and nothing of it is left once its new time has come.
func TestTriggerPurgeLooksAgain(t *testing.T) {
	a := &afterScan{Rows: memory.New().Rows(), table: 'E'}
	s := store.OnRows(a).Triggers()
	row := engine.Trigger{ID: "trg_1", Caller: "shop", State: engine.TriggerFired, Ended: 5}
	val(s.Create(t.Context(), []engine.Trigger{row}))(t)
	a.run = func() {
		row.Ended = 50
		same(t, "won", val(s.Swap(t.Context(), []engine.TriggerSwap{{Old: 1, New: row}}))(t), []bool{true})
	}
	same(t, "purged", val(s.Purge(t.Context(), 10, 10))(t), 0)
	same(t, "ended", val(s.Get(t.Context(), []string{row.ID}))(t)[0].Ended, int64(50))
	same(t, "purged later", val(s.Purge(t.Context(), 51, 10))(t), 1)
	same(t, "rows that are left", countRows(t, a, 'G', 'L', 'E', 'B'), 0)
}

// TestNewerTriggersAreNotDamaged: a value of each form that a newer release wrote is told
// apart from damage.
func TestNewerTriggersAreNotDamaged(t *testing.T) {
	bad := map[string]byte{"row": 'G', "head": 'B'}
	for what, table := range bad {
		s := &opened{Contracts: memory.New().Contracts}
		row := engine.Trigger{ID: "trg_1", Caller: "shop", Payload: make([]byte, store.SplitFrom), State: engine.TriggerPending}
		val(s.Triggers().Create(bg, []engine.Trigger{row}))(t)
		row.Version = 1
		row = swapTo(t, s, row)
		for version, want := range map[byte]error{200: notify.ErrNewer, 0: notify.ErrCorrupt} {
			must(t, s.Rows().Write(bg, func(b rows.Batch) { b.Set(rows.Partition{Table: table}, []byte(row.ID), []byte{version, 'x'}) }))
			_, get := s.Triggers().Get(bg, []string{row.ID})
			_, listed := s.Triggers().List(bg, "shop", 0, engine.TriggerCursor{}, 1)
			_, swap := s.Triggers().Swap(bg, []engine.TriggerSwap{{Old: 2, New: row}})
			for call, err := range map[string]error{"Get": get, "List": listed, "Swap": swap} {
				if !errors.Is(err, want) || errors.Is(err, notify.ErrNewer) != (version == 200) || errors.Is(err, notify.ErrCorrupt) == (version == 200) {
					t.Errorf("%s of a %s of version %d: %v", call, what, version, err)
				}
			}
		}
	}
}
