package cassandra

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// maxOffset is how far a node's clock may be from ours: timers are released by
// the clock, and the order of plain writes follows it where no row says more.
const maxOffset = 500 * time.Millisecond

// Levels of a finding.
const (
	LevelOK   = "ok"
	LevelWarn = "warn" // goes on, with less than it should have
	LevelFail = "fail" // what is acknowledged may be lost, or nothing is
)

// Doctor looks whether a cluster can keep what it is trusted with. It changes
// nothing. What is wrong is in the findings; an error is one of the arguments.
func Doctor(ctx context.Context, cfg Config) ([]engine.Finding, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
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
		return []engine.Finding{{Check: "reachable", Level: LevelFail, Detail: where + ": " + err.Error(), Repair: repair}}, nil
	}
	defer session.Close()
	d := &doctor{migrator: migrator{session, cfg}}
	d.add("reachable", LevelOK, where, "")
	if err := d.cfg.learnDC(centres(session)); err != nil {
		d.add("data centre", LevelFail, err.Error(), "set datacenter")
	}
	for _, look := range []func(context.Context) error{d.version, d.schema, d.copies, d.commitLog, d.paxos, d.clock} {
		if err := look(ctx); err != nil {
			d.add("reachable", LevelFail, err.Error(), "look at the log of the nodes")
			break
		}
	}
	return d.out, nil
}

type doctor struct {
	migrator
	out      []engine.Finding
	nodes    []*gocql.HostInfo // of the data centre
	replicas int

	offset, within time.Duration // of the node's clock that was looked at last
}

func (d *doctor) add(check, level, detail, repair string) {
	if level == LevelOK {
		repair = ""
	}
	d.out = append(d.out, engine.Finding{Check: check, Level: level, Detail: detail, Repair: repair})
}

// verdictOf is ok, or what it is otherwise.
func verdictOf(ok bool, otherwise string) string {
	if ok {
		return LevelOK
	}
	return otherwise
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
	d.add("version", verdictOf(a > 4 || a == 4 && b >= 1, LevelWarn), "Cassandra "+version, "upgrade to 4.1 or later: compare and swap costs more round trips before")
	return nil
}

func (d *doctor) schema(ctx context.Context) error {
	ok, err := d.exists(ctx)
	if err != nil {
		return err
	}
	const repair = "run notifyd migrate up"
	if !ok {
		d.add("schema", LevelFail, "there is no keyspace "+d.cfg.Keyspace, repair)
		return nil
	}
	all, err := migrations()
	if err != nil {
		return err
	}
	if err := d.fill(ctx, all); err != nil {
		if notify.KindOf(err) == notify.KindConflict {
			d.add("schema", LevelFail, err.Error(), "run the newer release")
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
	d.add("schema", verdictOf(done == len(all), LevelFail), fmt.Sprintf("keyspace %s: %d of %d steps are applied", d.cfg.Keyspace, done, len(all)), repair)
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
		d.add("replication", LevelFail, "there is no data centre "+d.cfg.LocalDC, "correct local_dc")
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
	detail := fmt.Sprintf("%d replicas on %d nodes", d.replicas, len(d.nodes))
	change := "ALTER KEYSPACE " + d.cfg.Keyspace + " WITH replication, then nodetool repair"
	switch {
	case d.replicas == 0:
		d.add("replication", LevelFail, detail, "the keyspace has no replicas in this data centre: "+change)
	case d.replicas > len(d.nodes):
		d.add("replication", LevelFail, detail, "add nodes, or "+change)
	case len(d.nodes) > 1 && d.replicas < 3:
		d.add("replication", LevelFail, detail, "with less than 3 replicas a node that is lost takes data with it: "+change)
	case d.replicas == 1:
		d.add("replication", LevelWarn, detail, "a disk that is lost takes everything with it: make backups, or use 3 nodes")
	default:
		d.add("replication", LevelOK, detail, "")
	}
	need := d.replicas/2 + 1
	d.add("consistency", verdictOf(up >= need, LevelFail), fmt.Sprintf("%s needs %d of %d replicas; %d of %d nodes are up", d.cfg.Consistency, need, d.replicas, up, len(d.nodes)), "start the nodes that are down")
	return nil
}

// commitLog looks how each node syncs what it acknowledges. Periodic lost
// acknowledged writes when a node without others was killed; several replicas
// make up for it.
func (d *doctor) commitLog(ctx context.Context) error {
	for _, h := range d.nodes {
		if !h.IsUp() {
			continue
		}
		var mode string
		err := d.one(`SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'`).SetHostID(h.HostID()).ScanContext(ctx, &mode)
		if err != nil {
			d.add("commit log", LevelWarn, fmt.Sprintf("%s does not say: %v", hostPort(h), translate(err)), "see to it that commitlog_sync is batch or group where a node stands alone")
			continue
		}
		d.out = append(d.out, syncFinding(hostPort(h), mode, d.replicas))
	}
	return nil
}

func syncFinding(node, mode string, replicas int) engine.Finding {
	f := engine.Finding{Check: "commit log", Level: LevelOK, Detail: node + ": commitlog_sync " + mode}
	if replicas <= 1 && mode != "batch" && mode != "group" {
		f.Level = LevelFail
		f.Repair = "one replica that is killed loses what it acknowledged last: set commitlog_sync: batch (or group) in cassandra.yaml and restart the node"
	}
	return f
}

// paxos looks which variant of Paxos each node runs. All of a cluster must run the
// same one.
func (d *doctor) paxos(ctx context.Context) error {
	for _, h := range d.nodes {
		if !h.IsUp() {
			continue
		}
		var variant string
		err := d.one(`SELECT value FROM system_views.settings WHERE name = 'paxos_variant'`).SetHostID(h.HostID()).ScanContext(ctx, &variant)
		if err != nil && !errors.Is(err, gocql.ErrNotFound) {
			d.add("paxos", LevelWarn, fmt.Sprintf("%s does not say: %v", hostPort(h), translate(err)), "see to it that paxos_variant is v2")
			continue
		}
		d.out = append(d.out, paxosFinding(hostPort(h), variant))
	}
	return nil
}

// paxosFinding fails a Paxos variant other than v2. Measured on one node, swaps of one row: v2
// 1,531/s of 64 writers at a time and 1,182/s of 256; v1, the default of Cassandra,
// 455/s and 249/s, with answers later than a request may take.
func paxosFinding(node, variant string) engine.Finding {
	f := engine.Finding{Check: "paxos", Level: LevelOK, Detail: node + ": paxos_variant " + variant}
	if variant != "v2" {
		if variant == "" {
			f.Detail = node + ": there is no paxos_variant before Cassandra 4.1"
		}
		f.Level = LevelFail
		f.Repair = "swaps of a busy row time out: set paxos_variant: v2 in cassandra.yaml of every node and restart them one by one"
	}
	return f
}

// ClockOffset returns how far the clock of the node that answers is ahead of this
// process's. It is wrong by at most half of how long the question took, which it returns
// too, and a millisecond.
func (s *Store) ClockOffset(ctx context.Context) (offset, took time.Duration, err error) {
	var at time.Time
	began := time.Now()
	err = s.session.Query(`SELECT toTimestamp(now()) FROM system.local`).Consistency(gocql.One).Idempotent(true).ScanContext(ctx, &at)
	if took = time.Since(began); err != nil {
		return 0, took, translate(err)
	}
	return at.Sub(began.Add(took / 2)), took, nil
}

// clock compares each node's clock with ours.
func (d *doctor) clock(ctx context.Context) error {
	for _, h := range d.nodes {
		if !h.IsUp() {
			continue
		}
		var theirs time.Time
		// The first one sets the connection up and prepares the statement.
		for range 2 {
			before := time.Now()
			if err := d.one(`SELECT toTimestamp(now()) FROM system.local`).SetHostID(h.HostID()).ScanContext(ctx, &theirs); err != nil {
				return translate(err)
			}
			took := time.Since(before)
			d.offset = theirs.Sub(before.Add(took / 2))
			d.within = took / 2
		}
		far := max(d.offset, -d.offset) > maxOffset+d.within
		d.add("clock", verdictOf(!far, LevelFail), fmt.Sprintf("%s: %s from ours (+-%s)", hostPort(h), d.offset.Round(time.Millisecond), d.within.Round(time.Millisecond)),
			"let an NTP client set the clocks of this machine and of the node")
	}
	return nil
}
