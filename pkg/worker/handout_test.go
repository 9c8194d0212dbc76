package worker

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// written remembers every row that was put.
type written struct {
	engine.Status
	mu   sync.Mutex
	rows []notify.Row
}

func (w *written) Put(ctx context.Context, rows []notify.Row) error {
	w.mu.Lock()
	w.rows = append(w.rows, rows...)
	w.mu.Unlock()
	return w.Status.Put(ctx, rows)
}

func (w *written) of(e *notify.Envelope) (rows []notify.Row) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.rows {
		if r.Key == e.Key() {
			rows = append(rows, r)
		}
	}
	return rows
}

// All windows for which there is budget are claimed by one write of the row, and never more windows
// than may be open. Windows of an envelope that waits for an earlier envelope of its users leave
// half of the budget free.
func TestWindowsAreClaimedTogether(t *testing.T) {
	in(t, func(t *testing.T) {
		st := &written{}
		p := newPlant(t, pushLane, func(c *Config) {
			c.Window, c.Ahead = 10, 4
			st.Status = c.Status
			c.Status = st
		})
		p.prov.set(600*time.Millisecond, nil)
		first, second := p.envelope(notify.Transactional, userIDs(100)...), p.envelope(notify.Transactional, userIDs(30)...)
		p.send(first)
		synctest.Wait()
		p.send(second)
		synctest.Wait()
		rows := st.of(&first)
		if len(rows) != 1 || rows[0].StartedUpTo != 40 {
			t.Fatalf("the first four windows: %d rows, %+v", len(rows), rows)
		}
		p.prov.mu.Lock()
		calls := p.prov.calls
		p.prov.mu.Unlock()
		if calls != 40 {
			t.Errorf("%d receivers are at the provider", calls)
		}
		if rows := st.of(&second); len(rows) != 0 {
			t.Fatalf("claimed with all the room taken: %+v", rows)
		}
		pass(650 * time.Millisecond)
		if rows := st.of(&second); len(rows) > 0 && rows[0].StartedUpTo > 20 {
			t.Errorf("%d are claimed before their turn", rows[0].StartedUpTo)
		}
		pass(time.Minute)
		rows = st.of(&first)
		if len(rows) > 10 || !rows[len(rows)-1].Done {
			t.Fatalf("%d writes for ten windows and the outcome", len(rows))
		}
		if got := p.state(&second, 29).State; got != notify.Delivered {
			t.Errorf("the last one is %v", got)
		}
	})
}
