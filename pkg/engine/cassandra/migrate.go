package cassandra

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

//go:embed migrations/*.cql
var migrationFiles embed.FS

// migrations are the steps that this build knows.
var migrations = engine.LoadMigrations(migrationFiles, "cql")

// tableID fixes the id of a table, so that two processes that make it at a time
// make the same one.
func (m *migrator) tableID(name string) string {
	h := sha256.Sum256([]byte("notifyd " + strings.ToLower(m.table(name))))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80 // version 8, RFC 9562
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// lockTime is how long a migration that died keeps the next one out; it renews
// its lock before each statement, of which a busy cluster takes seconds for one.
const lockTime = 2 * time.Minute

// Migrate makes the keyspace, if it is missing (Config.Replication replicas in
// Config.LocalDC, by NetworkTopologyStrategy), and brings its tables up, or down, or says how
// they stand. Steps that are applied are not applied again. Of two that run at a
// time the second waits for the first. Each change is awaited until all nodes
// agree on it.
func Migrate(ctx context.Context, cfg Config, dir engine.Direction) ([]engine.Migration, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	if dir != engine.Up && dir != engine.Down && dir != engine.Look {
		return nil, notify.Invalid("bad_config", "direction", "either up, down or status")
	}
	// A change of the schema takes longer than a request.
	cfg.Timeout, cfg.connectTimeout = max(cfg.Timeout, 30*time.Second), max(cfg.Timeout, 10*time.Second)
	cfg.NumConns = 1
	session, err := connect(ctx, cfg, "")
	if err != nil {
		return nil, translate(err)
	}
	defer session.Close()
	if err := cfg.learnDC(centres(session)); err != nil {
		return nil, err
	}
	m := migrator{session, cfg}
	all := slices.Clone(migrations)
	exists, err := m.exists(ctx)
	if err != nil {
		return nil, err
	}
	if !exists {
		if dir != engine.Up {
			return all, nil
		}
		if err := m.create(ctx); err != nil {
			return nil, err
		}
	}
	if dir == engine.Look {
		_, err := m.fill(ctx, all)
		return all, err
	}
	if err := m.change(ctx, `CREATE TABLE IF NOT EXISTS `+m.table("schema_lock")+` (name text PRIMARY KEY, owner bigint) WITH id = `+m.tableID("schema_lock")); err != nil {
		return nil, err
	}
	if err := m.change(ctx, `CREATE TABLE IF NOT EXISTS `+m.table("schema_migrations")+` (version int PRIMARY KEY, name text, applied bigint, works_with int) WITH id = `+m.tableID("schema_migrations")); err != nil {
		return nil, err
	}
	me := nonce()
	if err := m.lock(ctx, me); err != nil {
		return nil, err
	}
	defer m.unlock(context.WithoutCancel(ctx), me)
	if err := m.addWorksWith(ctx); err != nil {
		return nil, err
	}
	later, err := m.fill(ctx, all)
	if err == nil && later > 0 && dir == engine.Down {
		err = newer(cfg.Keyspace, later, len(all)) // which this build would not know to undo
	}
	if err != nil {
		return nil, err
	}
	for i := range all {
		x := &all[i]
		if dir == engine.Down {
			x = &all[len(all)-1-i]
		}
		if dir == engine.Up && !x.Applied.IsZero() {
			continue
		}
		if err := m.step(ctx, x, dir, me); err != nil {
			return all, err
		}
	}
	return all, nil
}

type migrator struct {
	session *gocql.Session
	cfg     Config
}

func (m *migrator) table(name string) string { return m.cfg.Keyspace + "." + name }

func (m *migrator) query(cql string, args ...any) *gocql.Query {
	return m.session.Query(cql, args...).Consistency(m.cons()).SerialConsistency(m.serial())
}

func (m *migrator) cons() gocql.Consistency   { return gocql.ParseConsistency(m.cfg.Consistency) }
func (m *migrator) serial() gocql.Consistency { return serialOf(m.cfg.Consistency) }

func serialOf(cons string) gocql.Consistency {
	if cons == "QUORUM" {
		return gocql.Serial
	}
	return gocql.LocalSerial
}

func (m *migrator) exists(ctx context.Context) (bool, error) {
	var name string
	err := m.query(`SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?`, strings.ToLower(m.cfg.Keyspace)).Consistency(gocql.One).ScanContext(ctx, &name)
	if errors.Is(err, gocql.ErrNotFound) {
		return false, nil
	}
	return err == nil, translate(err)
}

func (m *migrator) create(ctx context.Context) error {
	strategy := fmt.Sprintf(`{'class': 'NetworkTopologyStrategy', '%s': %d}`, strings.ReplaceAll(m.cfg.LocalDC, "'", "''"), m.cfg.Replication)
	return m.change(ctx, `CREATE KEYSPACE IF NOT EXISTS `+m.cfg.Keyspace+` WITH replication = `+strategy)
}

// change runs one statement of the schema and waits for all nodes.
func (m *migrator) change(ctx context.Context, cql string) error {
	if err := m.session.Query(cql).Consistency(gocql.One).ExecContext(ctx); err != nil {
		return fmt.Errorf("%.60s: %w", cql, translate(err))
	}
	return translate(m.session.AwaitSchemaAgreement(ctx))
}

// addWorksWith adds the column that a release before it did not make.
func (m *migrator) addWorksWith(ctx context.Context) error {
	var name string
	err := m.query(`SELECT column_name FROM system_schema.columns WHERE keyspace_name = ? AND table_name = 'schema_migrations' AND column_name = 'works_with'`, strings.ToLower(m.cfg.Keyspace)).Consistency(gocql.One).ScanContext(ctx, &name)
	if errors.Is(err, gocql.ErrNotFound) {
		return m.change(ctx, `ALTER TABLE `+m.table("schema_migrations")+` ADD works_with int`)
	}
	return translate(err)
}

// fill reads which steps are applied. later is the number of one that this build does not
// know but works with; 0: there is none.
func (m *migrator) fill(ctx context.Context, all []engine.Migration) (later int, err error) {
	// All columns: a release before works_with may have made the table.
	it := m.query(`SELECT * FROM ` + m.table("schema_migrations")).IterContext(ctx)
	for row := map[string]any{}; it.MapScan(row); clear(row) {
		version, _ := row["version"].(int)
		if i := slices.IndexFunc(all, func(x engine.Migration) bool { return x.Version == version }); i >= 0 {
			applied, _ := row["applied"].(int64)
			all[i].Applied = time.UnixMilli(applied)
			continue
		}
		if with, _ := row["works_with"].(int); with == 0 || with > len(all) {
			_ = it.Close()
			return 0, newer(m.cfg.Keyspace, version, len(all))
		}
		later = max(later, version)
	}
	err = it.Close()
	if isMissingTable(err) {
		return 0, nil // nothing was migrated yet
	}
	return later, translate(err)
}

// lock waits until nobody else migrates.
func (m *migrator) lock(ctx context.Context, me int64) error {
	for try := 0; ; try++ {
		row := map[string]any{}
		applied, err := m.query(`INSERT INTO `+m.table("schema_lock")+` (name, owner) VALUES ('schema', ?) IF NOT EXISTS USING TTL ?`, me, int(lockTime/time.Second)).MapScanCASContext(ctx, row)
		switch owner, _ := row["owner"].(int64); {
		case err == nil && (applied || owner == me):
			return nil
		case err != nil && refused(err):
			return translate(err)
		}
		// Somebody has it, or the answer did not come: then it is ours, and the next
		// try says so.
		if err := pause(ctx, max(try, 4)); err != nil {
			return err
		}
	}
}

// unlock lets the next one in; if it fails, the lock ends by itself.
func (m *migrator) unlock(ctx context.Context, me int64) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	_, err := m.query(`DELETE FROM `+m.table("schema_lock")+` WHERE name = 'schema' IF owner = ?`, me).MapScanCASContext(ctx, map[string]any{})
	if err != nil {
		m.cfg.Logger.Warn("the lock of the migrations was not given back; it ends by itself", "err", err)
	}
}

// renew keeps the lock for the next statement.
func (m *migrator) renew(ctx context.Context, me int64) error {
	applied, err := m.query(`UPDATE `+m.table("schema_lock")+` USING TTL ? SET owner = ? WHERE name = 'schema' IF owner = ?`, int(lockTime/time.Second), me, me).MapScanCASContext(ctx, map[string]any{})
	if err != nil {
		return translate(err)
	}
	if !applied {
		return notify.Unavailable("cassandra", retryAfter, errors.New("another process took the lock of the migrations over"))
	}
	return nil
}

func (m *migrator) step(ctx context.Context, x *engine.Migration, dir engine.Direction, me int64) error {
	for _, cql := range statements(x.Script[dir]) {
		// Statements name tables alone; the first word in front of which a keyspace
		// belongs follows TABLE and EXISTS.
		if err := m.renew(ctx, me); err != nil {
			return err
		}
		if err := m.change(ctx, m.qualify(cql)); err != nil {
			return fmt.Errorf("migration %d: %w", x.Version, err)
		}
	}
	if dir == engine.Down {
		x.Applied = time.Time{}
		return translate(m.query(`DELETE FROM `+m.table("schema_migrations")+` WHERE version = ?`, x.Version).ExecContext(ctx))
	}
	x.Applied = time.Now()
	return translate(m.query(`INSERT INTO `+m.table("schema_migrations")+` (version, name, applied, works_with) VALUES (?, ?, ?, ?)`, x.Version, x.Name, x.Applied.UnixMilli(), x.WorksWith).ExecContext(ctx))
}

// qualify puts the keyspace before the table of a statement.
func (m *migrator) qualify(cql string) string {
	for _, before := range []string{"TABLE IF NOT EXISTS ", "TABLE IF EXISTS ", "ALTER TABLE "} {
		if i := strings.Index(cql, before); i >= 0 {
			i += len(before)
			return cql[:i] + m.cfg.Keyspace + "." + cql[i:]
		}
	}
	return cql
}

// statements cuts a file at its semicolons and leaves comments out.
func statements(file string) (out []string) {
	var b strings.Builder
	for line := range strings.Lines(file) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			b.WriteString(line)
		}
	}
	for _, s := range strings.Split(b.String(), ";") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// checkSchema refuses a keyspace that this build would misread.
func checkSchema(ctx context.Context, s *Store) error {
	all := slices.Clone(migrations)
	m := migrator{s.session, s.cfg}
	if _, err := m.fill(ctx, all); err != nil {
		return err
	}
	for _, x := range all {
		if x.Applied.IsZero() {
			return notMigrated(s.cfg.Keyspace, nil)
		}
	}
	return nil
}

func notMigrated(keyspace string, err error) error {
	return &notify.Error{
		Kind: notify.KindConflict, Code: "keyspace_not_migrated",
		Msg: "the keyspace " + keyspace + " has not the tables of this release: run notifyd migrate up", Err: err,
	}
}

func newer(keyspace string, found, known int) error {
	return &notify.Error{
		Kind: notify.KindConflict, Code: "keyspace_newer",
		Msg: fmt.Sprintf("the keyspace %s was migrated by a newer release (step %d, this build knows up to %d)", keyspace, found, known),
	}
}

func isMissingTable(err error) bool {
	r, ok := errors.AsType[gocql.RequestError](err)
	return ok && r.Code() == gocql.ErrCodeInvalid && (strings.Contains(r.Message(), "does not exist") || strings.Contains(r.Message(), "unconfigured table"))
}
