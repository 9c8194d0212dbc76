package store_test

import (
	"strconv"
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// stored returns all outcome rows.
func stored(t *testing.T, s *opened) (out []notify.Row) {
	t.Helper()
	must(t, s.Status().Scan(bg, 0, 1<<40, func(r *notify.Row) error {
		out = append(out, *r)
		return nil
	}))
	return out
}

func TestPurges(t *testing.T) { overEach(t, testPurges) }

func testPurges(t *testing.T, open func(t *testing.T) *opened) {
	// rowAt is a row of a request made at one time and updated last at another.
	rowAt := func(made, updated int64, n uint64, done bool) notify.Row {
		return notify.Row{Key: notify.RowKey{Chunk: notify.Chunk{Base: base(made, n)}}, Updated: updated, Done: done}
	}
	t.Run("PurgeOutcomes removes rows updated last before closed if done, before open if not", func(t *testing.T) {
		s := open(t)
		receipt := rowAt(1000, 1999, 1, true)
		receipt.Key.Kind, receipt.Key.First = notify.RowReceipt, 4
		gone := []notify.Row{rowAt(1000, 1999, 1, true), receipt, rowAt(0, 99, 2, false)}
		kept := []notify.Row{
			rowAt(1000, 2000, 3, true), rowAt(1000, 100, 4, false), // at the limit
			rowAt(1000, 1999, 5, false), // its record may be in the log
			rowAt(1000, 9000, 6, true),  // a schedule of long ago that fired later
			rowAt(2000, 2000, 7, true), rowAt(2000, 2000, 8, false),
		}
		must(t, s.Status().Put(bg, append(append([]notify.Row{}, kept...), gone...)))
		same(t, "removed", val(s.PurgeOutcomes(bg, 2000, 100))(t), len(gone))
		same(t, "removed again", val(s.PurgeOutcomes(bg, 2000, 100))(t), 0)
		s.reopen()
		left := stored(t, s)
		same(t, "left", left, kept)
		for _, r := range gone {
			same(t, "gone", val(s.Status().Get(bg, []notify.RowKey{r.Key}))(t), []notify.Row{{}})
		}
	})
	t.Run("PurgeOutcomes removes however many there are", func(t *testing.T) {
		s := open(t)
		const n = 2500
		rows := make([]notify.Row, n)
		for i := range rows {
			rows[i] = rowAt(1000, 1000+int64(i%2)*5000, uint64(i), true)
		}
		must(t, s.Status().Put(bg, rows))
		same(t, "removed", val(s.PurgeOutcomes(bg, 5000, 0))(t), n/2)
		left := stored(t, s)
		same(t, "left", len(left), n/2)
	})
	t.Run("PurgeCancels removes cancellations made before a time", func(t *testing.T) {
		s := open(t)
		const n = 1203
		versions := make([]uint64, n)
		for i := range versions {
			versions[i] = val(s.Cancels().Put(bg, engine.Cancel{Scope: "ntf_" + strconv.Itoa(i), Caller: "shop", At: int64(i)}))(t)
		}
		same(t, "removed", val(s.PurgeCancels(bg, 1200))(t), 1200)
		s.reopen()
		same(t, "left", len(val(s.Cancels().Changes(bg, 0, 2*n))(t)), 3)
		same(t, "first left", val(s.Cancels().Changes(bg, 0, 1))(t)[0].Version, versions[1200])
		_, ok, err := s.Cancels().Get(bg, "ntf_1199")
		must(t, err)
		same(t, "gone", ok, false)
		_, ok, err = s.Cancels().Get(bg, "ntf_1200")
		must(t, err)
		same(t, "kept", ok, true)
	})
	t.Run("The newest of all stays, so that versions never begin again", func(t *testing.T) {
		for _, n := range []int{1, 2, 1000, 1001, 1002} {
			s := open(t)
			var last uint64
			for i := range n {
				last = val(s.Cancels().Put(bg, engine.Cancel{Scope: "ntf_" + strconv.Itoa(i), At: 1}))(t)
			}
			same(t, "removed", val(s.PurgeCancels(bg, 1<<40))(t), n-1)
			s.reopen()
			if v := val(s.Cancels().Put(bg, engine.Cancel{Scope: "ntf_next", At: 2}))(t); v <= last {
				t.Fatalf("version %d after %d", v, last)
			}
			same(t, "followed", len(val(s.Cancels().Changes(bg, last, 10))(t)), 1)
		}
	})
	t.Run("PurgeCampaigns removes campaigns with their parts if they and their newest part are old", func(t *testing.T) {
		s := open(t)
		add := func(id string, part uint32, at int64) {
			t.Helper()
			must(t, s.Campaigns().AddPart(bg, id, "shop", part, base(at, uint64(part)), 10, 1, at))
		}
		for part := range uint32(3) {
			add("cmp_1", part, 1000+int64(part))
			add("cmp_12", part, 1000) // begins with the id of the other
		}
		add("cmp_12", 3, 2000)
		add("cmp_3", 0, 2000)
		same(t, "removed", val(s.PurgeCampaigns(bg, 2000))(t), 1)
		s.reopen()
		for id, want := range map[string]int{"cmp_1": 0, "cmp_12": 4, "cmp_3": 1} {
			c, ok, err := s.Campaigns().Get(bg, id)
			must(t, err)
			same(t, id, ok, want > 0)
			same(t, id, len(c.Bases), want)
		}
		add("cmp_1", 0, 3000) // counts anew
		c, _, err := s.Campaigns().Get(bg, "cmp_1")
		must(t, err)
		same(t, "parts", [2]int{c.Parts, len(c.Bases)}, [2]int{1, 1})
	})
}
