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

// migrations are the migrations of this build, in order.
var migrations = engine.LoadMigrations(migrationFiles, "cql")

// tableID returns an id of a table that depends only on the name of the table. So if two
// processes create the table at the same time, both create the same table.
func (m *migrator) tableID(name string) string {
	h := sha256.Sum256([]byte("notifyd " + strings.ToLower(m.table(name))))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80 // version 8, RFC 9562
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// lockTime is the TTL of the lock of migrations. If a process dies while it has the lock, other
// processes cannot migrate for this time. A migration renews its lock before each statement. A
// statement may take some seconds on a busy cluster.
const lockTime = 2 * time.Minute

// Migrate applies all missing migrations (engine.Up), undoes all of them (engine.Down), or
// changes nothing (engine.Look). It returns the migrations with the times at which they
// were applied. With engine.Up it first creates the keyspace if the keyspace is missing.
// The new keyspace has NetworkTopologyStrategy and Config.Replication replicas in
// Config.LocalDC. If two processes migrate at the same time, the second process waits for
// the first. After each change Migrate waits until all nodes agree on the schema.
func Migrate(ctx context.Context, cfg Config, dir engine.Direction) ([]engine.Migration, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if dir != engine.Up && dir != engine.Down && dir != engine.Look {
		return nil, notify.Invalid("bad_config", "direction", fmt.Sprintf(`must be "up", "down" or "status", not %q`, string(dir)))
	}
	// A change of the schema takes longer than a normal request.
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
		_, err := m.readApplied(ctx, all)
		return all, err
	}
	if err := m.alterSchema(ctx, `CREATE TABLE IF NOT EXISTS `+m.table("schema_lock")+` (name text PRIMARY KEY, owner bigint) WITH id = `+m.tableID("schema_lock")); err != nil {
		return nil, err
	}
	if err := m.alterSchema(ctx, `CREATE TABLE IF NOT EXISTS `+m.table("schema_migrations")+` (version int PRIMARY KEY, name text, applied bigint, works_with int) WITH id = `+m.tableID("schema_migrations")); err != nil {
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
	later, err := m.readApplied(ctx, all)
	if err == nil && later > 0 && dir == engine.Down {
		err = newerError(cfg.Keyspace, later, len(all)) // this build cannot undo a later migration
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
		if err := m.applyStep(ctx, x, dir, me); err != nil {
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
	return m.alterSchema(ctx, `CREATE KEYSPACE IF NOT EXISTS `+m.cfg.Keyspace+` WITH replication = `+strategy)
}

// alterSchema runs one statement and waits until all nodes agree on the schema.
func (m *migrator) alterSchema(ctx context.Context, cql string) error {
	if err := m.session.Query(cql).Consistency(gocql.One).ExecContext(ctx); err != nil {
		return fmt.Errorf("%.60s: %w", cql, translate(err))
	}
	return translate(m.session.AwaitSchemaAgreement(ctx))
}

// addWorksWith adds the column works_with to schema_migrations if an earlier release made
// that table.
func (m *migrator) addWorksWith(ctx context.Context) error {
	var name string
	err := m.query(`SELECT column_name FROM system_schema.columns WHERE keyspace_name = ? AND table_name = 'schema_migrations' AND column_name = 'works_with'`, strings.ToLower(m.cfg.Keyspace)).Consistency(gocql.One).ScanContext(ctx, &name)
	if errors.Is(err, gocql.ErrNotFound) {
		return m.alterSchema(ctx, `ALTER TABLE `+m.table("schema_migrations")+` ADD works_with int`)
	}
	return translate(err)
}

// readApplied sets the field Applied of the known migrations. The keyspace may also have
// migrations of a newer release. readApplied returns the greatest version of these, or 0 if there
// are none. It returns KindConflict "keyspace_newer" if this build cannot work with the tables of
// one of them.
func (m *migrator) readApplied(ctx context.Context, known []engine.Migration) (later int, err error) {
	// SELECT * is used because an earlier release may have made the table, without the
	// column works_with.
	it := m.query(`SELECT * FROM ` + m.table("schema_migrations")).IterContext(ctx)
	for row := map[string]any{}; it.MapScan(row); clear(row) {
		version, _ := row["version"].(int)
		if i := slices.IndexFunc(known, func(x engine.Migration) bool { return x.Version == version }); i >= 0 {
			applied, _ := row["applied"].(int64)
			known[i].Applied = time.UnixMilli(applied)
			continue
		}
		if with, _ := row["works_with"].(int); with == 0 || with > len(known) {
			_ = it.Close()
			return 0, newerError(m.cfg.Keyspace, version, len(known))
		}
		later = max(later, version)
	}
	err = it.Close()
	if isMissingTable(err) {
		return 0, nil // nothing was migrated yet
	}
	return later, translate(err)
}

// lock waits until no other process has the lock of migrations, and stores the lock for
// this process.
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
		// Either another process has the lock, or the answer was lost. If the answer was
		// lost, the next try may find out that this process already has the lock.
		if err := backoff(ctx, max(try, 4)); err != nil {
			return err
		}
	}
}

// unlock releases the lock. If that fails, the lock expires after lockTime.
func (m *migrator) unlock(ctx context.Context, me int64) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	_, err := m.query(`DELETE FROM `+m.table("schema_lock")+` WHERE name = 'schema' IF owner = ?`, me).MapScanCASContext(ctx, map[string]any{})
	if err != nil {
		m.cfg.Logger.Warn("the lock of the migrations could not be released; it expires within 2 minutes", "err", err)
	}
}

// renewLock extends the lock for the next statement. It returns an error if this process
// does not have the lock any more because the lock has expired.
func (m *migrator) renewLock(ctx context.Context, me int64) error {
	applied, err := m.query(`UPDATE `+m.table("schema_lock")+` USING TTL ? SET owner = ? WHERE name = 'schema' IF owner = ?`, int(lockTime/time.Second), me, me).MapScanCASContext(ctx, map[string]any{})
	if err != nil {
		return translate(err)
	}
	if !applied {
		return notify.Unavailable("cassandra", retryAfter, errors.New("this process has lost the lock of the migrations: the lock expired, or another process took it over"))
	}
	return nil
}

// applyStep runs the script of a migration and updates the table schema_migrations.
func (m *migrator) applyStep(ctx context.Context, x *engine.Migration, dir engine.Direction, me int64) error {
	for _, cql := range statements(x.Script[dir]) {
		if err := m.renewLock(ctx, me); err != nil {
			return err
		}
		if err := m.alterSchema(ctx, m.qualify(cql)); err != nil {
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

// qualify puts the keyspace before the table name in a statement, because the scripts
// contain table names without a keyspace. The table name follows the word TABLE or EXISTS.
func (m *migrator) qualify(cql string) string {
	for _, before := range []string{"TABLE IF NOT EXISTS ", "TABLE IF EXISTS ", "ALTER TABLE "} {
		if i := strings.Index(cql, before); i >= 0 {
			i += len(before)
			return cql[:i] + m.cfg.Keyspace + "." + cql[i:]
		}
	}
	return cql
}

// statements splits a script at its semicolons and leaves out comment lines.
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

// checkSchema returns KindConflict if this build does not work with the tables of the
// keyspace.
func checkSchema(ctx context.Context, s *Store) error {
	all := slices.Clone(migrations)
	m := migrator{s.session, s.cfg}
	if _, err := m.readApplied(ctx, all); err != nil {
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
		Msg: "the keyspace " + keyspace + " does not have the tables of this release: run notifyd migrate up", Err: err,
	}
}

func newerError(keyspace string, found, known int) error {
	return &notify.Error{
		Kind: notify.KindConflict, Code: "keyspace_newer",
		Msg: fmt.Sprintf("the keyspace %s was migrated by a newer release (it has migration %d, but this build knows only migrations 1 to %d): start that release or a newer one", keyspace, found, known),
	}
}

func isMissingTable(err error) bool {
	r, ok := errors.AsType[gocql.RequestError](err)
	return ok && r.Code() == gocql.ErrCodeInvalid && (strings.Contains(r.Message(), "does not exist") || strings.Contains(r.Message(), "unconfigured table"))
}
