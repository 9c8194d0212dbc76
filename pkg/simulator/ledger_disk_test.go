package simulator

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/notify"
)

// TestLedgerOrderBeyondMemory checks that with more users than memory holds the order is compared
// later, with the same result.
func TestLedgerOrderBeyondMemory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all, few := testLedger(), NewLedger("", 384*rapid.IntRange(4, 100).Draw(t, "room"))
		for i := range rapid.IntRange(1, 80).Draw(t, "n") {
			e := hitOf(notify.ID{Base: base(byte(i)), Index: uint32(i), FanOut: true}.String(), "a", rapid.SampledFrom([]Outcome{Rejected, Accepted}).Draw(t, "outcome"))
			e.user, e.userSeq = fmt.Sprint(rapid.IntRange(0, 20).Draw(t, "user")), uint64(rapid.IntRange(1, 9).Draw(t, "seq"))
			again := *e
			all.recordEntry(e)
			few.recordEntry(&again)
		}
		few.Settle()
		want, got := all.Order(), few.Order()
		if got.Users != want.Users || got.Reordered != want.Reordered || got.ReorderedAttempts != want.ReorderedAttempts || got.Pending != 0 {
			t.Fatalf("%+v\nwant %+v", got, want)
		}
	})
}

// TestLedgerManyAtOnce checks that calls which record while another call writes are counted, and
// that memory stays within its bound. Half of the ids come twice, the second time from disk.
func TestLedgerManyAtOnce(t *testing.T) {
	t.Parallel()
	const each, workers = 20_000, 4
	l := NewLedger(t.TempDir(), 1<<20)
	b := notify.NewBase(time.Now())
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := notify.ID{Base: b, Index: uint32(w*each + i), FanOut: true}
				if i%2 == 1 {
					id = notify.ID{Base: b.Item(w*each + i)}
				}
				e := hitOf(id.String(), "a", Accepted)
				e.user, e.userSeq = fmt.Sprint(w, i%5000), uint64(i)
				l.recordEntry(e)
				if i >= each/2 {
					again := *e
					again.id = notify.ID{Base: b, Index: uint32(w*each + 2*(i-each/2)), FanOut: true}.String()
					l.recordEntry(&again)
				}
			}
		})
	}
	wg.Wait()
	l.Settle()
	n := l.Summary()
	if n.IDs != each*workers || n.Duplicates != each*workers/2 || n.Order.Reordered != 0 || n.DiskError != "" || n.Disk == 0 {
		t.Errorf("%+v", n)
	}
	if got := l.pairs.hotTable.bytes(); got > l.pairs.budget+fanBytes*(workers+1) || len(l.pairs.runs) < 3 {
		t.Errorf("%d bytes in memory of %d, %d runs", got, l.pairs.budget, len(l.pairs.runs))
	}
	if each := float64(n.Disk) / float64(n.Receivers); each > 64 {
		t.Errorf("%.1f bytes a receiver on disk", each)
	}
}

// TestLedgerDiskFails checks that receivers stay in memory and are counted if the disk fails, and
// that the summary reports the error.
func TestLedgerDiskFails(t *testing.T) {
	t.Parallel()
	l := NewLedger(filepath.Join(t.TempDir(), "none"), 1<<16)
	b := base(1)
	for i := range uint32(5000) {
		l.recordEntry(hitOf(notify.ID{Base: b, Index: i, FanOut: true}.String(), "a", Accepted))
	}
	l.recordEntry(hitOf(notify.ID{Base: b}.String(), "a", Accepted))
	l.recordEntry(hitOf(notify.ID{Base: b}.String(), "a", Accepted))
	if n := l.Summary(); n.IDs != 5001 || n.Duplicates != 1 || n.DiskError == "" {
		t.Errorf("%+v", n)
	}
	rows, next, err := l.Arrivals(0)
	if list, _ := ParseArrivals(rows); err != nil || int(next) != len(list) || next == 0 {
		t.Errorf("%d arrivals, %v", len(list), err)
	}
	if _, _, err := l.Arrivals(next + 1); notify.KindOf(err) != notify.KindInvalid {
		t.Errorf("beyond the end: %v", err)
	}
}
