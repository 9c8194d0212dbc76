package history

import (
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// A notification that is not found may have been lost by the log, if it was accepted around the
// time of the lost records. Otherwise it never existed.
func TestLostRecordsAreNotNotFound(t *testing.T) {
	t.Parallel()
	s, err := Open(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	now := time.Now()
	ask := func(at time.Time) string {
		t.Helper()
		_, err := s.Find(t.Context(), notify.ID{Base: notify.NewBase(at)})
		e, ok := errors.AsType[*notify.Error](err)
		if !ok {
			t.Fatal(err)
		}
		return e.Code
	}
	if got := ask(now); got == CodeRecordLost {
		t.Errorf("nothing is lost, and it is %s", got)
	}
	s.Lost(now.Add(-time.Hour).UnixMilli(), now.Add(-50*time.Minute).UnixMilli())
	for ago, lost := range map[time.Duration]bool{
		2 * time.Hour: false, 62 * time.Minute: false, 59 * time.Minute: true, 51 * time.Minute: true, 48 * time.Minute: false, 0: false,
	} {
		if got := ask(now.Add(-ago)); (got == CodeRecordLost) != lost {
			t.Errorf("accepted %v ago: %s", ago, got)
		}
	}
	s.Lost(now.Add(-2*time.Minute).UnixMilli(), 0) // to the end
	if got := ask(now.Add(-2 * time.Minute)); got != CodeRecordLost {
		t.Errorf("behind the last one known: %s", got)
	}
}

// A chunk that lies in the log twice, with other receivers: each copy is found by
// its own, in the tail and in a segment.
func TestCopyOfAChunk(t *testing.T) {
	t.Parallel()
	s, _ := open(t, Config{Dir: t.TempDir()})
	first := envelope(baseAt(now, 1), 3, 7, "c", receiver{0, "ann"}, receiver{2, "bob"})
	second := envelope(baseAt(now, 1), 3, 7, "c", receiver{0, "ann"}, receiver{2, "bob"}, receiver{3, "cid"})
	other := envelope(baseAt(now, 1), 3, 8, "c", receiver{0, "ann"}, receiver{2, "bob"})
	must(t, s.Append(t.Context(), record(3, 10, other), record(3, 11, first), record(3, 12, second)))
	for _, where := range []string{"in the tail", "sealed"} {
		for offset, e := range map[int64]*notify.Envelope{10: other, 11: first, 12: second} {
			f, err := s.Copy(e.Chunk, notify.ColumnDigest(e.Receivers))
			if err != nil || f.Offset != offset || f.Envelope.Count != e.Count {
				t.Errorf("%s: offset %d, %d receivers, %v; want offset %d", where, f.Offset, f.Envelope.Count, err, offset)
			}
		}
		if _, err := s.Copy(first.Chunk, 1); notify.KindOf(err) != notify.KindNotFound {
			t.Errorf("%s: a copy nobody wrote: %v", where, err)
		}
		sealNow(t, s)
	}
}
