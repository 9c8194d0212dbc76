package history

import (
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// What is not found may have been lost by the log, if it was accepted around
// the time of what the log lost; else it was never there.
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
