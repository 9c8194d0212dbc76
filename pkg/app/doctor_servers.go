package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/log"
)

// lookAtServers checks the servers that this process uses as its engines.
func (d *doctor) lookAtServers(ctx context.Context) {
	n := d.n
	if len(n.servers.checks) > 0 { // empty in tests without servers
		d.lookAtKafka(ctx)
		d.lookAtCassandra(ctx)
	}
	for _, check := range n.servers.checks {
		d.Findings = append(d.Findings, check(ctx)...)
	}
}

// lookAtKafka checks the brokers and the topics.
func (d *doctor) lookAtKafka(ctx context.Context) {
	n := d.n
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	want := topics(&n.cfg)
	names := make([]string, 0, len(want))
	for t := range want {
		names = append(names, t)
	}
	cl, err := n.admin.Describe(ctx, names...)
	if err != nil {
		d.Add("kafka", true, "fail", "start the brokers, or correct kafka.brokers", "no broker of %v answers: %v", n.cfg.Kafka.Brokers, err)
		return
	}
	versions := map[string]bool{}
	for _, b := range cl.Brokers {
		versions[b.Version] = true
	}
	d.Add("kafka", false, "", "", "%d brokers, %d topics, versions %v", len(cl.Brokers), len(cl.Topics), slices.Sorted(maps.Keys(versions)))
	for _, f := range cl.Check(log.AdminConfig{Conn: n.st.conn, Replication: n.cfg.Kafka.Replication, MinInSync: n.cfg.Kafka.MinInSync, Keep: n.cfg.Kafka.Keep}, want) {
		level := "warn"
		if f.Wrong {
			level = "fail"
		}
		d.Add(strings.TrimSpace("kafka "+f.Topic), true, level, f.Repair, "%s", f.Msg)
	}
}

// lookAtCassandra checks each configured cluster. It checks a cluster only once if several settings
// name it.
func (d *doctor) lookAtCassandra(ctx context.Context) {
	n := d.n
	seen := map[string]bool{}
	for _, part := range []cassandra.Cluster{{}, n.cfg.Cassandra.Status, n.cfg.Cassandra.Timers, n.cfg.Cassandra.Triggers} {
		cc, err := n.cfg.cassandra(part, n.log)
		where := fmt.Sprint(cc.Hosts, cc.Keyspace)
		if seen[where] {
			continue
		}
		seen[where] = true
		var found []engine.Finding
		if err == nil {
			found, err = cassandra.Doctor(ctx, cc)
		}
		if err != nil {
			d.Add("cassandra", true, "fail", "correct the section cassandra of the configuration", "%v", err)
		}
		for _, f := range found {
			f.Check, f.Detail = "cassandra "+f.Check, cc.Keyspace+": "+f.Detail
			d.Findings = append(d.Findings, f)
		}
	}
}

// lookAtSecrets checks how callers' signing secrets are stored.
func (d *doctor) lookAtSecrets(ctx context.Context) {
	n := d.n
	r, err := n.sealed.Report(ctx)
	if err != nil {
		d.Add("secrets", true, "warn", "look at the store: callers are read from it", "callers cannot be read: %v", err)
		return
	}
	keys := n.sealed.Keys()
	switch who := unopenedCallers(r); {
	case who != "":
		d.Add("secrets", true, "fail", n.sealed.Repair(), "signing secrets cannot be opened, so callbacks wait: %s", who)
	case len(r.Clear) > 0 && keys == nil:
		d.Add("secrets", true, "warn", "give every process the same secrets.key_file, upgrade all of them first, then rotate: notifyctl caller rotate-secret CALLER",
			"the signing secrets of %s are stored in clear, and are in every backup of PostgreSQL", someNames(r.Clear))
	case len(r.Clear)+len(r.Old) > 0:
		d.Add("secrets", true, "warn", "notifyctl caller rotate-secret CALLER, or any other change of the caller, seals them",
			"the signing secrets of %s are not sealed with the newest key of %s", someNames(slices.Concat(r.Clear, r.Old)), keys.File())
	case keys != nil && n.embedded != nil && isWithin(keys.File(), n.cfg.DataDir):
		d.Add("secrets", true, "warn", "move the file to where the configuration is, name it in secrets.key_file, and restart",
			"%s is in the data folder: a copy of the folder holds the key with what it seals (notifyctl backup leaves it out)", keys.File())
	default:
		d.Add("secrets", false, "", "", "%d signing secrets%s", r.Secrets, sealedBy(keys))
	}
}
