package cassandra

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Doctor looks whether a cluster can keep what it is trusted with. It changes
// nothing. What is wrong is in the findings; an error is one of the arguments.
func Doctor(ctx context.Context, cfg Config) (engine.Findings, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	d := &doctor{}
	where := strings.Join(cfg.Hosts, ", ")
	session, err := connect(ctx, cfg, "")
	if err != nil {
		err = translate(err)
		repair := "start the nodes, or correct the addresses"
		switch {
		case notify.KindOf(err) == notify.KindUnauthorized || notify.KindOf(err) == notify.KindForbidden:
			repair = "correct the user name and password"
		case notify.KindOf(err) == notify.KindInvalid:
			repair = "correct the files of certificates"
		case cfg.TLS.Enabled:
			repair += "; look whether the certificates are those of this cluster"
		}
		d.Add("reachable", true, "fail", repair, "%s: %v", where, err)
		return d.Findings, nil
	}
	defer session.Close()
	d.migrator = migrator{session, cfg}
	d.Add("reachable", false, "", "", "%s", where)
	if err := d.cfg.learnDC(centres(session)); err != nil {
		d.Add("data centre", true, "fail", "set datacenter", "%v", err)
	}
	for _, look := range []func(context.Context) error{d.version, d.schema, d.copies, d.commitLog, d.paxos, d.clock} {
		if err := look(ctx); err != nil {
			d.Add("reachable", true, "fail", "look at the log of the nodes", "%v", err)
			break
		}
	}
	return d.Findings, nil
}

type doctor struct {
	migrator
	engine.Findings
	nodes    []*gocql.HostInfo // of the data centre
	replicas int

	offset, took time.Duration // of the node's clock that was looked at last
}

// eachUp calls look with each node of the data centre that is up.
func (d *doctor) eachUp(look func(h *gocql.HostInfo) error) error {
	for _, h := range d.nodes {
		if !h.IsUp() {
			continue
		}
		if err := look(h); err != nil {
			return err
		}
	}
	return nil
}

func (d *doctor) one(cql string, args ...any) *gocql.Query {
	return d.session.Query(cql, args...).Consistency(gocql.One).Idempotent(true)
}

func (d *doctor) version(ctx context.Context) error {
	var version string
	if err := d.one(`SELECT release_version FROM system.local`).ScanContext(ctx, &version); err != nil {
		return translate(err)
	}
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, _ := strconv.Atoi(major)
	b, _ := strconv.Atoi(minor)
	d.Add("version", a < 4 || a == 4 && b < 1, "warn", "upgrade to 4.1 or later: compare and swap costs more round trips before", "Cassandra %s", version)
	return nil
}

func (d *doctor) schema(ctx context.Context) error {
	ok, err := d.exists(ctx)
	if err != nil {
		return err
	}
	const repair = "run notifyd migrate up"
	if !ok {
		d.Add("schema", true, "fail", repair, "there is no keyspace %s", d.cfg.Keyspace)
		return nil
	}
	all := slices.Clone(migrations)
	if _, err := d.fill(ctx, all); err != nil {
		if notify.KindOf(err) == notify.KindConflict {
			d.Add("schema", true, "fail", "run the newer release", "%v", err)
			return nil
		}
		return err
	}
	done := 0
	for _, x := range all {
		if !x.Applied.IsZero() {
			done++
		}
	}
	d.Add("schema", done < len(all), "fail", repair, "keyspace %s: %d of %d steps are applied", d.cfg.Keyspace, done, len(all))
	return nil
}

// copies looks at nodes and replicas, and whether the consistency that is asked
// for can be had.
func (d *doctor) copies(ctx context.Context) error {
	up := 0
	for _, h := range d.session.GetHosts() {
		if d.cfg.LocalDC != "" && h.DataCenter() != d.cfg.LocalDC {
			continue
		}
		if d.nodes = append(d.nodes, h); h.IsUp() {
			up++
		}
	}
	if d.cfg.LocalDC != "" && len(d.nodes) == 0 {
		d.Add("replication", true, "fail", "correct local_dc", "there is no data centre %s", d.cfg.LocalDC)
		return nil
	}
	var replication map[string]string
	err := d.one(`SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?`, strings.ToLower(d.cfg.Keyspace)).ScanContext(ctx, &replication)
	switch {
	case errors.Is(err, gocql.ErrNotFound):
		return nil // schema said so
	case err != nil:
		return translate(err)
	}
	for name, value := range replication {
		n, err := strconv.Atoi(value)
		if err == nil && (name == "replication_factor" || d.cfg.LocalDC == "" || name == d.cfg.LocalDC) {
			d.replicas += n
		}
	}
	level, repair := "fail", "ALTER KEYSPACE "+d.cfg.Keyspace+" WITH replication, then nodetool repair"
	switch {
	case d.replicas == 0:
		repair = "the keyspace has no replicas in this data centre: " + repair
	case d.replicas > len(d.nodes):
		repair = "add nodes, or " + repair
	case len(d.nodes) > 1 && d.replicas < 3:
		repair = "with less than 3 replicas a node that is lost takes data with it: " + repair
	case d.replicas == 1:
		level, repair = "warn", "a disk that is lost takes everything with it: make backups, or use 3 nodes"
	default:
		level = ""
	}
	d.Add("replication", level != "", level, repair, "%d replicas on %d nodes", d.replicas, len(d.nodes))
	d.consistency(up)
	return nil
}

// consistency says whether enough of the nodes are up for reads and writes, and warns of each
// that is not: the next one may be one too many.
func (d *doctor) consistency(up int) {
	need, level := d.replicas/2+1, "warn"
	if up < need {
		level = "fail"
	}
	d.Add("consistency", up < len(d.nodes), level, "start the nodes that are down",
		"%s needs %d of %d replicas; %d of %d nodes are up", d.cfg.Consistency, need, d.replicas, up, len(d.nodes))
}

// setting reads a setting of a node; empty: it has none.
func (d *doctor) setting(ctx context.Context, h *gocql.HostInfo, name string) (value string, err error) {
	err = d.one(`SELECT value FROM system_views.settings WHERE name = ?`, name).SetHostID(h.HostID()).ScanContext(ctx, &value)
	if errors.Is(err, gocql.ErrNotFound) {
		return "", nil
	}
	return value, translate(err)
}

// commitLog looks how each node syncs what it acknowledges. Periodic lost
// acknowledged writes when a node without others was killed; several replicas
// make up for it.
func (d *doctor) commitLog(ctx context.Context) error {
	return d.eachUp(func(h *gocql.HostInfo) error {
		mode, err := d.setting(ctx, h, "commitlog_sync")
		if err != nil {
			d.Add("commit log", true, "warn", "see to it that commitlog_sync is batch or group where a node stands alone", "%s does not say: %v", hostPort(h), err)
			return nil
		}
		d.addSync(hostPort(h), mode, d.replicas)
		return nil
	})
}

func (d *doctor) addSync(node, mode string, replicas int) {
	d.Add("commit log", replicas <= 1 && mode != "batch" && mode != "group", "fail",
		"one replica that is killed loses what it acknowledged last: set commitlog_sync: batch (or group) in cassandra.yaml and restart the node",
		"%s: commitlog_sync %s", node, mode)
}

// paxos looks which variant of Paxos each node runs. All of a cluster must run the
// same one.
func (d *doctor) paxos(ctx context.Context) error {
	return d.eachUp(func(h *gocql.HostInfo) error {
		variant, err := d.setting(ctx, h, "paxos_variant")
		if err != nil {
			d.Add("paxos", true, "warn", "see to it that paxos_variant is v2", "%s does not say: %v", hostPort(h), err)
			return nil
		}
		d.addPaxos(hostPort(h), variant)
		return nil
	})
}

// addPaxos fails a Paxos variant other than v2. Measured on one node, swaps of one row: v2
// 1,531/s of 64 writers at a time and 1,182/s of 256; v1, the default of Cassandra,
// 455/s and 249/s, with answers later than a request may take.
func (d *doctor) addPaxos(node, variant string) {
	d.Add("paxos", variant != "v2", "fail",
		"swaps of a busy row time out: set paxos_variant: v2 in cassandra.yaml of every node and restart them one by one",
		"%s: paxos_variant %s", node, cmp.Or(variant, "is missing, as before Cassandra 4.1"))
}

const selectClock = `SELECT toTimestamp(now()) FROM system.local`

func askClock(ctx context.Context, q *gocql.Query) (offset, took time.Duration, err error) {
	offset, took, err = engine.AskClock(func() (at time.Time, err error) {
		err = q.ScanContext(ctx, &at)
		return at, err
	})
	return offset, took, translate(err)
}

// clock compares each node's clock with ours: timers are released by the clock, and the
// order of plain writes follows it where no row says more.
func (d *doctor) clock(ctx context.Context) error {
	return d.eachUp(func(h *gocql.HostInfo) error {
		// The first one sets the connection up and prepares the statement.
		for range 2 {
			var err error
			if d.offset, d.took, err = askClock(ctx, d.one(selectClock).SetHostID(h.HostID())); err != nil {
				return err
			}
		}
		d.AddClock("clock", "fail", hostPort(h)+": ", d.offset, d.took)
		return nil
	})
}
