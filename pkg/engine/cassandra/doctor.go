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

// Doctor checks whether the writes that a cluster acknowledges are safe. It changes
// nothing. Problems of the cluster are findings. Doctor returns an error only if cfg is
// wrong.
func Doctor(ctx context.Context, cfg Config) (engine.Findings, error) {
	cfg, err := cfg.withDefaults()
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
			repair = "correct the certificate files of cassandra.tls"
		case cfg.TLS.Enabled:
			repair += "; check that the certificates belong to this cluster"
		}
		d.Add("reachable", true, "fail", repair, "no node of %s can be used: %v", where, err)
		return d.Findings, nil
	}
	defer session.Close()
	d.migrator = migrator{session, cfg}
	d.Add("reachable", false, "", "", "connected to a node of %s", where)
	if err := d.cfg.learnDC(centres(session)); err != nil {
		d.Add("data centre", true, "fail", "set cassandra.datacenter", "%v", err)
	}
	for _, look := range []func(context.Context) error{d.version, d.schema, d.replication, d.commitLog, d.paxos, d.clock} {
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
	nodes    []*gocql.HostInfo // nodes of the local data centre
	replicas int               // number of replicas in the local data centre

	offset, roundTrip time.Duration // result of askClock for the last node
}

// eachUp calls fn with each node of the local data centre that is up.
func (d *doctor) eachUp(fn func(h *gocql.HostInfo) error) error {
	for _, h := range d.nodes {
		if !h.IsUp() {
			continue
		}
		if err := fn(h); err != nil {
			return err
		}
	}
	return nil
}

func (d *doctor) queryOne(cql string, args ...any) *gocql.Query {
	return d.session.Query(cql, args...).Consistency(gocql.One).Idempotent(true)
}

func (d *doctor) version(ctx context.Context) error {
	var version string
	if err := d.queryOne(`SELECT release_version FROM system.local`).ScanContext(ctx, &version); err != nil {
		return translate(err)
	}
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, _ := strconv.Atoi(major)
	b, _ := strconv.Atoi(minor)
	d.Add("version", a < 4 || a == 4 && b < 1, "warn", "upgrade to 4.1 or later: in earlier versions compare and swap needs more round trips", "Cassandra %s", version)
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
	if _, err := d.readApplied(ctx, all); err != nil {
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

// replication checks the number of nodes and replicas, and whether enough nodes are up for
// the configured consistency.
func (d *doctor) replication(ctx context.Context) error {
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
		d.Add("replication", true, "fail", "correct cassandra.datacenter", "there is no data centre %s", d.cfg.LocalDC)
		return nil
	}
	var replication map[string]string
	err := d.queryOne(`SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?`, strings.ToLower(d.cfg.Keyspace)).ScanContext(ctx, &replication)
	switch {
	case errors.Is(err, gocql.ErrNotFound):
		return nil // the finding of the method schema says that the keyspace is missing
	case err != nil:
		return translate(err)
	}
	for name, value := range replication {
		n, err := strconv.Atoi(value)
		if err == nil && (name == "replication_factor" || d.cfg.LocalDC == "" || name == d.cfg.LocalDC) {
			d.replicas += n
		}
	}
	level, repair := "fail", "run ALTER KEYSPACE "+d.cfg.Keyspace+" WITH replication, then nodetool repair"
	switch {
	case d.replicas == 0:
		repair = "the keyspace has no replicas in this data centre: " + repair
	case d.replicas > len(d.nodes):
		repair = "add nodes, or " + repair
	case len(d.nodes) > 1 && d.replicas < 3:
		repair = "with fewer than 3 replicas, data is lost when a node is lost: " + repair
	case d.replicas == 1:
		level, repair = "warn", "the loss of the disk loses everything: make backups, or use 3 nodes"
	default:
		level = ""
	}
	d.Add("replication", level != "", level, repair, "%d replicas on %d nodes", d.replicas, len(d.nodes))
	d.consistency(up)
	return nil
}

// consistency adds a finding of level "fail" if too few nodes are up for reads and writes.
// If enough nodes are up but a node is down, the level is "warn", because one more failure
// may be too much.
func (d *doctor) consistency(up int) {
	need, level := d.replicas/2+1, "warn"
	if up < need {
		level = "fail"
	}
	d.Add("consistency", up < len(d.nodes), level, "start the nodes that are down",
		"%s needs %d of %d replicas; %d of %d nodes are up", d.cfg.Consistency, need, d.replicas, up, len(d.nodes))
}

// setting returns the value of a setting of a node. It returns "" if the node does not have
// the setting.
func (d *doctor) setting(ctx context.Context, h *gocql.HostInfo, name string) (value string, err error) {
	err = d.queryOne(`SELECT value FROM system_views.settings WHERE name = ?`, name).SetHostID(h.HostID()).ScanContext(ctx, &value)
	if errors.Is(err, gocql.ErrNotFound) {
		return "", nil
	}
	return value, translate(err)
}

// commitLog checks how each node syncs its commit log. In a test, a single node with
// commitlog_sync periodic was killed and lost acknowledged writes. With several replicas
// another node has these writes.
func (d *doctor) commitLog(ctx context.Context) error {
	return d.eachUp(func(h *gocql.HostInfo) error {
		mode, err := d.setting(ctx, h, "commitlog_sync")
		if err != nil {
			d.Add("commit log", true, "warn", "make sure that commitlog_sync is batch or group if there is only one node", "%s does not show the setting: %v", hostPort(h), err)
			return nil
		}
		d.addSync(hostPort(h), mode, d.replicas)
		return nil
	})
}

func (d *doctor) addSync(node, mode string, replicas int) {
	d.Add("commit log", replicas <= 1 && mode != "batch" && mode != "group", "fail",
		"a single replica that is killed loses the writes that it acknowledged last: set commitlog_sync: batch (or group) in cassandra.yaml and restart the node",
		"%s: commitlog_sync %s", node, mode)
}

// paxos checks the variant of Paxos of each node. All nodes of a cluster must use the same
// variant.
func (d *doctor) paxos(ctx context.Context) error {
	return d.eachUp(func(h *gocql.HostInfo) error {
		variant, err := d.setting(ctx, h, "paxos_variant")
		if err != nil {
			d.Add("paxos", true, "warn", "make sure that paxos_variant is v2", "%s does not show the setting: %v", hostPort(h), err)
			return nil
		}
		d.addPaxos(hostPort(h), variant)
		return nil
	})
}

// addPaxos adds a finding of level "fail" if the Paxos variant is not v2. Swaps of one row
// were measured on one node. With v2, 64 concurrent writers made 1,531 swaps/s and 256
// writers made 1,182/s. With v1, the default of Cassandra, 64 writers made 455/s and 256
// writers made 249/s, and some answers took longer than the timeout of a request.
func (d *doctor) addPaxos(node, variant string) {
	d.Add("paxos", variant != "v2", "fail",
		"swaps of a busy row time out: set paxos_variant: v2 in cassandra.yaml of every node and restart them one by one",
		"%s: paxos_variant %s", node, cmp.Or(variant, "is missing, as before Cassandra 4.1"))
}

const selectClock = `SELECT toTimestamp(now()) FROM system.local`

func askClock(ctx context.Context, q *gocql.Query) (offset, roundTrip time.Duration, err error) {
	offset, roundTrip, err = engine.AskClock(func() (at time.Time, err error) {
		err = q.ScanContext(ctx, &at)
		return at, err
	})
	return offset, roundTrip, translate(err)
}

// clock compares the clock of each node with the clock of this process. The clocks must
// agree, because they decide when timers are released and give plain writes their
// timestamps.
func (d *doctor) clock(ctx context.Context) error {
	return d.eachUp(func(h *gocql.HostInfo) error {
		// The first query opens the connection and prepares the statement, so only the
		// second query gives a good measurement.
		for range 2 {
			var err error
			if d.offset, d.roundTrip, err = askClock(ctx, d.queryOne(selectClock).SetHostID(h.HostID())); err != nil {
				return err
			}
		}
		d.AddClock("clock", "fail", hostPort(h)+": ", d.offset, d.roundTrip)
		return nil
	})
}
