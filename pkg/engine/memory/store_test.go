package memory_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/rows"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open[E any](of func(*memory.Store) E) enginetest.Opener[E] {
	return func(enginetest.T) (E, func() E) { return of(memory.New()), nil }
}

func TestRows(t *testing.T) {
	enginetest.Rows(t, open(func(s *memory.Store) rows.Rows { return s.Rows() }))
}

func TestStatus(t *testing.T) {
	enginetest.Status(t, open(enginetest.StatusOver), enginetest.DamageOver)
}
func TestTimers(t *testing.T)      { enginetest.Timers(t, open((*memory.Store).Timers)) }
func TestPrefs(t *testing.T)       { enginetest.Prefs(t, open((*memory.Store).Prefs)) }
func TestCallers(t *testing.T)     { enginetest.Callers(t, open((*memory.Store).Callers)) }
func TestMeta(t *testing.T)        { enginetest.Meta(t, open((*memory.Store).Meta)) }
func TestIdem(t *testing.T)        { enginetest.Idem(t, open((*memory.Store).Idem)) }
func TestSpill(t *testing.T)       { enginetest.Spill(t, open((*memory.Store).Spill)) }
func TestDeadLetters(t *testing.T) { enginetest.DeadLetters(t, open((*memory.Store).DeadLetters)) }
func TestCancels(t *testing.T)     { enginetest.Cancels(t, open((*memory.Store).Cancels)) }
func TestHolds(t *testing.T)       { enginetest.Holds(t, open((*memory.Store).Holds)) }
func TestCampaigns(t *testing.T)   { enginetest.Campaigns(t, open((*memory.Store).Campaigns)) }
func TestJobs(t *testing.T)        { enginetest.Jobs(t, open((*memory.Store).Jobs)) }
func TestAudit(t *testing.T)       { enginetest.Audit(t, open((*memory.Store).Audit)) }
func TestSchedules(t *testing.T)   { enginetest.Schedules(t, open((*memory.Store).Schedules)) }
func TestColdTimers(t *testing.T)  { enginetest.ColdTimers(t, open((*memory.Store).ColdTimers)) }
func TestTriggers(t *testing.T)    { enginetest.Triggers(t, open((*memory.Store).Triggers)) }

func TestTimersDropHints(t *testing.T) {
	enginetest.TimersDropHints(t, open(scheduling))
}

func TestQueue(t *testing.T) {
	enginetest.Queue(t, open(func(s *memory.Store) engine.Queue { return s.Queue("q", enginetest.QueueReceives) }))
}

// Both suites run in a synctest bubble, where sleeping is how time passes.

func TestLease(t *testing.T) {
	enginetest.Lease(t, func(enginetest.T) (engine.Lease, func() engine.Lease) { return memory.NewLease(), nil }, time.Sleep)
}

func TestLimits(t *testing.T) {
	enginetest.Limits(t, func(enginetest.T) (*memory.Limits, func() *memory.Limits) { return memory.NewLimits(), nil }, time.Sleep)
}

func scheduling(s *memory.Store) enginetest.Scheduling {
	return enginetest.Scheduling{Timers: s.Timers(), Cold: s.ColdTimers(), Schedules: s.Schedules()}
}

func TestScheduled(t *testing.T) { enginetest.Scheduled(t, open(scheduling)) }
