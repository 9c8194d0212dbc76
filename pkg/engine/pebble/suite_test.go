package pebble

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/rows"
)

// testConfig is a small store on a file system in memory that knows what was
// synced.
func testConfig(fs vfs.FS) Config {
	return Config{Dir: "data", FS: fs, CacheBytes: 1 << 20, MemTableBytes: 256 << 10}
}

func mustOpen(t enginetest.T, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

// open gives the suites a store whose restarts are losses of power: what was
// not synced is gone.
func open[E any](of func(*Store) E) enginetest.Opener[E] {
	return func(t enginetest.T) (E, func() E) {
		fs := vfs.NewCrashableMem()
		s := mustOpen(t, testConfig(fs))
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Fatalf("close: %v", err)
			}
		})
		return of(s), func() E {
			after := fs.CrashClone(vfs.CrashCloneCfg{})
			if err := s.Close(); err != nil {
				t.Fatalf("close: %v", err)
			}
			fs = after
			s = mustOpen(t, testConfig(fs))
			return of(s)
		}
	}
}

func TestRows(t *testing.T) {
	t.Parallel()
	enginetest.Rows(t, open(func(s *Store) rows.Rows { return s.Rows() }))
}

func TestStatus(t *testing.T) {
	t.Parallel()
	enginetest.Status(t, open(enginetest.StatusOver), enginetest.DamageOver)
}
func TestTimers(t *testing.T)  { t.Parallel(); enginetest.Timers(t, open((*Store).Timers)) }
func TestPrefs(t *testing.T)   { t.Parallel(); enginetest.Prefs(t, open((*Store).Prefs)) }
func TestCallers(t *testing.T) { t.Parallel(); enginetest.Callers(t, open((*Store).Callers)) }
func TestMeta(t *testing.T)    { t.Parallel(); enginetest.Meta(t, open((*Store).Meta)) }
func TestIdem(t *testing.T)    { t.Parallel(); enginetest.Idem(t, open((*Store).Idem)) }
func TestSpill(t *testing.T)   { t.Parallel(); enginetest.Spill(t, open((*Store).Spill)) }
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	enginetest.DeadLetters(t, open((*Store).DeadLetters))
}
func TestCancels(t *testing.T)   { t.Parallel(); enginetest.Cancels(t, open((*Store).Cancels)) }
func TestCampaigns(t *testing.T) { t.Parallel(); enginetest.Campaigns(t, open((*Store).Campaigns)) }
func TestJobs(t *testing.T)      { t.Parallel(); enginetest.Jobs(t, open((*Store).Jobs)) }
func TestAudit(t *testing.T)     { t.Parallel(); enginetest.Audit(t, open((*Store).Audit)) }
func TestHolds(t *testing.T)     { t.Parallel(); enginetest.Holds(t, open((*Store).Holds)) }

func TestSchedules(t *testing.T)  { t.Parallel(); enginetest.Schedules(t, open((*Store).Schedules)) }
func TestColdTimers(t *testing.T) { t.Parallel(); enginetest.ColdTimers(t, open((*Store).ColdTimers)) }
func TestTriggers(t *testing.T)   { t.Parallel(); enginetest.Triggers(t, open((*Store).Triggers)) }
func TestQueue(t *testing.T)      { t.Parallel(); enginetest.Queue(t, open(testQueue)) }

func TestTimersDropHints(t *testing.T) {
	t.Parallel()
	enginetest.TimersDropHints(t, open(scheduling))
}

func testQueue(s *Store) engine.Queue { return s.Queue("q", enginetest.QueueReceives) }

func scheduling(s *Store) enginetest.Scheduling {
	return enginetest.Scheduling{Timers: s.Timers(), Cold: s.ColdTimers(), Schedules: s.Schedules()}
}

func TestScheduled(t *testing.T) { t.Parallel(); enginetest.Scheduled(t, open(scheduling)) }
