package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/pkg/engine"
)

// oldestMajor is the oldest major version of PostgreSQL with which the tests run.
const oldestMajor = 13

// ClockOffset reads the primary's clock. offset is the time of the primary's clock minus
// the time of this process's clock. roundTrip is how long the query ran. The true offset
// differs from offset by at most roundTrip/2.
func (s *Store) ClockOffset(ctx context.Context) (offset, roundTrip time.Duration, err error) {
	c, err := s.pool.Acquire(ctx) // before the measurement, because a new connection takes long
	if err != nil {
		return 0, 0, translate(err)
	}
	defer c.Release()
	offset, roundTrip, err = askClock(ctx, c)
	return offset, roundTrip, translate(err)
}

func askClock(ctx context.Context, c *pgxpool.Conn) (offset, roundTrip time.Duration, err error) {
	return engine.AskClock(func() (at time.Time, err error) {
		err = c.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&at)
		return at, err
	})
}

// Doctor checks whether a primary answers, whether this build works with the schema of the
// primary, whether an acknowledged write is on disk, and how many machines have the write. It
// also checks the clock of the primary and the pool of connections. Doctor takes at most 10 s.
func (s *Store) Doctor(ctx context.Context) (fs engine.Findings) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	add := fs.Add
	hosts := s.hostNames()
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		add("postgres", true, "fail", "start PostgreSQL, or correct postgres.dsn; the primary must be among its hosts", "no primary answers among %s: %v", hosts, err)
		return fs
	}
	defer c.Release()
	var number, standbys, synchronous int
	var version, commit, wanted string
	var fsync, fullPages bool
	// Read the clock in a separate query, because reading the other values would delay the
	// answer.
	offset, roundTrip, err := askClock(ctx, c)
	if err == nil {
		err = c.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('server_version_num')::int,
			current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
			current_setting('fsync')::bool, current_setting('full_page_writes')::bool,
			(SELECT count(*) FROM pg_stat_replication), (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))`).
			Scan(&version, &number, &commit, &wanted, &fsync, &fullPages, &standbys, &synchronous)
	}
	if err != nil {
		add("postgres", true, "fail", "look at the log of PostgreSQL", "%s does not answer: %v", hosts, err)
		return fs
	}
	host := c.Conn().Config().Host
	add("postgres", number/10000 < oldestMajor, "warn", fmt.Sprintf("run PostgreSQL %d or later", oldestMajor), "the primary is %s (of the hosts %s); it has version %s and answers in %s", host, hosts, version, roundTrip.Round(10*time.Microsecond))
	have, err := s.appliedMigrations(ctx, c)
	if err == nil {
		err = checkSchema(have)
	}
	add("postgres schema", err != nil, "fail", "run notifyd migrate up with the newest release", "%d of %d migrations are applied%s", len(have), len(migrations), errSuffix(err))
	add("postgres durability", commit == "off" || !fsync || !fullPages, "fail", "set synchronous_commit, fsync and full_page_writes on: otherwise a power cut loses acknowledged preferences", "synchronous_commit %s, fsync %s, full_page_writes %s", commit, onOff(fsync), onOff(fullPages))
	switch {
	case strings.TrimSpace(wanted) != "":
		add("postgres standbys", synchronous == 0, "fail", "start a standby that synchronous_standby_names names: until then every write waits", "%d standbys are connected, %d of them synchronous; synchronous_standby_names is %q", standbys, synchronous, wanted)
	default:
		add("postgres standbys", true, "warn", "set synchronous_standby_names: without it a failover may lose acknowledged opt-outs", "%d standbys are connected, none of them synchronous", standbys)
	}
	fs.AddClock("postgres clock", "warn", "", offset, roundTrip)
	if n := s.pool.Stat(); n.MaxConns() > 0 {
		add("postgres pool", n.AcquiredConns() >= n.MaxConns(), "warn", "find what is slow in pg_stat_activity, or give the pool more connections", "%d of %d connections are in use", n.AcquiredConns()-1, n.MaxConns())
	}
	return fs
}

// hostNames returns the hosts of the DSN as text for error messages.
func (s *Store) hostNames() string {
	cc := s.pool.Config().ConnConfig
	list := []string{fmt.Sprintf("%s:%d", cc.Host, cc.Port)}
	for _, f := range cc.Fallbacks {
		if one := fmt.Sprintf("%s:%d", f.Host, f.Port); one != list[len(list)-1] {
			list = append(list, one)
		}
	}
	return strings.Join(list, ", ")
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

func errSuffix(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}
