package conserve

import (
	"context"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// listCounter counts pages.
type listCounter struct {
	engine.Triggers
	pages int
}

func (l *listCounter) List(ctx context.Context, caller string, state engine.TriggerState, after engine.TriggerCursor, max int) ([]engine.Trigger, error) {
	l.pages++
	return l.Triggers.List(ctx, caller, state, after, max)
}

// An audit of a day reads that day and what is open, not the month that is kept.
func TestAuditReadsWhatItAsksFor(t *testing.T) {
	store := &listCounter{Triggers: memory.New().Triggers()}
	now := time.Now()
	made := func(ago time.Duration, state engine.TriggerState) engine.Trigger {
		at := now.Add(-ago)
		return engine.Trigger{ID: trigger.Mender{}.ID(notify.NewBase(at)), Caller: "shop", State: state, Created: at.UnixMilli(), LeaseUntil: now.Add(time.Hour).UnixMilli()}
	}
	rows := []engine.Trigger{made(time.Minute, engine.TriggerFired), made(20*24*time.Hour, engine.TriggerInFlight)}
	for range 5000 {
		rows = append(rows, made(10*24*time.Hour, engine.TriggerFired))
	}
	if _, err := store.Create(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	r := newRun(New(Config{Rows: store, Triggers: trigger.Mender{}}), now.Add(-24*time.Hour), 100)
	err := (&triggerRun{run: r}).countTriggers(t.Context())
	if err != nil || r.rep.Triggers != 2 || r.rep.States["FIRED"] != 1 || r.rep.Waiting[triggerClaim] != 1 {
		t.Errorf("%d triggers are looked at: %v, %v, %v", r.rep.Triggers, r.rep.States, r.rep.Waiting, err)
	}
	if store.pages > 2 {
		t.Errorf("it took %d pages", store.pages)
	}
}
