package cassandra

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A server takes milliseconds for what a map does in microseconds: model tests
// run fewer and shorter programs here, unless told otherwise.
func TestMain(m *testing.M) {
	flag.Parse()
	set := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { set[f.Name] = true })
	for name, value := range map[string]string{"rapid.checks": "20", "rapid.steps": "15", "rapid.shrinktime": "20s"} {
		if !set[name] {
			if err := flag.Set(name, value); err != nil {
				panic(err)
			}
		}
	}
	code := m.Run()
	shared.drop()
	os.Exit(code)
}

// testConfig is of a keyspace of its own.
func testConfig(t testing.TB) Config {
	replicas, _ := strconv.Atoi(os.Getenv("NOTIFY_TEST_CASSANDRA_REPLICAS")) // 0: one
	return Config{
		Replication: max(replicas, 1),
		Hosts:       []string{enginetest.Server(t, enginetest.CassandraEnv)},
		Keyspace:    fmt.Sprintf("test_%012x", rand.Uint64()>>16),
		// A machine that tests share may be slow; a node that is away has a test of
		// its own.
		Timeout: 20 * time.Second,
	}
}

// shared is the keyspaces of the suites. To make one takes seconds, so there are
// as many as suites run at a time, and each is emptied for the next test.
var shared = pool{slots: make(chan *Store, lanes)}

const lanes = 2

func init() {
	for range lanes {
		shared.slots <- nil
	}
}

type pool struct {
	slots chan *Store // nil: not made yet
	mu    sync.Mutex
	all   []*Store
}

func (p *pool) take(t testing.TB) *Store {
	cfg := testConfig(t)
	s := <-p.slots
	if s != nil {
		return s
	}
	s, err := migrated(cfg)
	if err != nil {
		p.slots <- nil
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, s)
	return s
}

func migrated(cfg Config) (*Store, error) {
	if _, err := Migrate(context.Background(), cfg, engine.Up); err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	return Open(context.Background(), cfg)
}

func (p *pool) give(s *Store) { p.slots <- s }

func (p *pool) drop() {
	for _, s := range p.all {
		err := s.session.Query(`DROP KEYSPACE IF EXISTS ` + s.cfg.Keyspace).Exec()
		if err != nil {
			fmt.Fprintln(os.Stderr, "drop keyspace:", err)
		}
		s.Close()
	}
}

// suite gives a contract's suite stores of one keyspace, which it takes for
// itself, and empties the contract's tables between tests. A restart is a new
// session: what is durable is the server's business.
func suite[E any](t *testing.T, of func(*Store) E, tables ...string) enginetest.Opener[E] {
	t.Helper()
	s := shared.take(t)
	t.Cleanup(func() { shared.give(s) })
	return func(t enginetest.T) (E, func() E) {
		for _, table := range append(tables, "buckets", "listings") {
			if err := s.session.Query(`TRUNCATE ` + table).Consistency(gocql.All).Exec(); err != nil {
				t.Fatalf("truncate %s: %v", table, err)
			}
		}
		s.forgetAll()
		return of(s), func() E {
			s.forgetAll()
			return of(s)
		}
	}
}

// forgetAll is what a new process does not know.
func (s *Store) forgetAll() {
	s.buckets.mu.Lock()
	s.buckets.noted = nil
	s.buckets.mu.Unlock()
}

var timerTables = []string{"timers", "timer_hints", "timers_cold", "timer_shards", "timer_heads", "timer_requests"}

func scheduling(s *Store) enginetest.Scheduling {
	return enginetest.Scheduling{Timers: s.Timers(), Cold: s.ColdTimers(), Schedules: s.Schedules()}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	enginetest.Status(t, suite(t, (*Store).Status, "chunks", "tenures"), func(s engine.Status, k notify.RowKey, value []byte) error {
		st, r := s.(status), notify.Row{Key: k}
		at := st.s.clock.now()
		return st.s.write(t.Context(), at, st.insert(&r, value, at))
	})
}

func TestTimers(t *testing.T) {
	t.Parallel()
	enginetest.Timers(t, suite(t, (*Store).Timers, "timers", "timer_hints", "timer_shards"))
}

func TestColdTimers(t *testing.T) {
	t.Parallel()
	enginetest.ColdTimers(t, suite(t, (*Store).ColdTimers, "timers_cold"))
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	enginetest.Schedules(t, suite(t, (*Store).Schedules, timerTables...))
}

func TestScheduled(t *testing.T) {
	t.Parallel()
	enginetest.Scheduled(t, suite(t, scheduling, timerTables...))
}

func TestTimersDropHints(t *testing.T) {
	t.Parallel()
	enginetest.TimersDropHints(t, suite(t, scheduling, timerTables...))
}

func TestTriggers(t *testing.T) {
	t.Parallel()
	enginetest.Triggers(t, suite(t, (*Store).Triggers, "triggers"))
}

func TestMeta(t *testing.T) {
	t.Parallel()
	enginetest.Meta(t, suite(t, (*Store).Meta, "records"))
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	enginetest.DeadLetters(t, suite(t, (*Store).DeadLetters, "dead_letters", "logs"))
}

func TestCancels(t *testing.T) {
	t.Parallel()
	enginetest.Cancels(t, suite(t, (*Store).Cancels, "cancels", "logs"))
}

func TestCampaigns(t *testing.T) {
	t.Parallel()
	enginetest.Campaigns(t, suite(t, (*Store).Campaigns, "records"))
}

func TestJobs(t *testing.T) {
	t.Parallel()
	enginetest.Jobs(t, suite(t, (*Store).Jobs, "records"))
}

func TestAudit(t *testing.T) {
	t.Parallel()
	enginetest.Audit(t, suite(t, (*Store).Audit, "records"))
}

func TestHolds(t *testing.T) {
	t.Parallel()
	enginetest.Holds(t, suite(t, (*Store).Holds, "holds"))
}

// The same suites with callers that compete as if they were in several processes, without the
// locks of one process.
func TestCompeting(t *testing.T) {
	t.Parallel()
	t.Run("audit", func(t *testing.T) { enginetest.Audit(t, competing(t, (*Store).Audit, "records")) })
	t.Run("cancels", func(t *testing.T) { enginetest.Cancels(t, competing(t, (*Store).Cancels, "cancels", "logs")) })
	t.Run("campaigns", func(t *testing.T) { enginetest.Campaigns(t, competing(t, (*Store).Campaigns, "records")) })
	t.Run("jobs", func(t *testing.T) { enginetest.Jobs(t, competing(t, (*Store).Jobs, "records")) })
}

func competing[E any](t *testing.T, of func(*Store) E, tables ...string) enginetest.Opener[E] {
	t.Helper()
	var s *Store
	open := suite(t, func(one *Store) E { s = one; s.locks.off = true; return of(s) }, tables...)
	t.Cleanup(func() { s.locks.off = false })
	return open
}
