package app

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// openDistributed connects to the servers that are the engines. Many processes share the servers.
// Migrate must have made the topics, tables and rows of the servers.
func (n opener) openDistributed(ctx context.Context) error {
	if err := n.listen(ctx); err != nil {
		return err
	}
	n.servers, n.clock = &servers{}, &cluster.Clock{Log: n.log}
	n.owner = n.cfg.instance() + "-" + strings.ToLower(notify.NewBase(time.Now()).String())
	open := openServers
	if n.seams.servers != nil {
		open = n.seams.servers
	}
	n.progress("connecting to the engines")
	if err := open(ctx, n.Node); err != nil {
		return err
	}
	return n.useServers(ctx)
}

// notMigrated returns the error for a topic, table or row that Migrate has not made yet.
func notMigrated(what string) error {
	return &notify.Error{Kind: notify.KindConflict, Code: "not_migrated", Msg: what + " is missing; notifyd migrate up makes it"}
}

// useServers sets the fields of n.st that openServers does not set. It checks that Migrate has prepared
// the servers.
func (n opener) useServers(ctx context.Context) (err error) {
	st := &n.st
	n.servers.standings = cluster.NewStandings(st.beats, n.owner)
	if err := n.openAdmin(); err != nil {
		return err
	}
	if err := checkTopicPrefix(ctx, st.meta, &n.cfg); err != nil {
		return err
	}
	want := topics(&n.cfg)
	names := make([]string, 0, len(want))
	for t := range want {
		names = append(names, t)
	}
	slices.Sort(names)
	n.progress("reading the topics")
	have, err := n.admin.Partitions(ctx, names...)
	if err != nil {
		if bad := misconfigured(n.cfg.kafkaSettings(), err); bad != nil {
			return bad
		}
		return fmt.Errorf("kafka.brokers: %w", err)
	}
	for _, t := range names {
		if have[t] == 0 {
			return notMigrated("the topic " + t)
		}
	}
	id, err := st.meta.GetMeta(ctx, storeIDMeta)
	if err != nil {
		return err
	}
	if len(id) == 0 {
		return notMigrated("the store's id")
	}
	st.id = string(id)
	parts, err := openPartitions(ctx, st.meta, n.admin)
	if err != nil {
		return err
	}
	usePartitions(n.Node, parts)
	st.jobLease = st.lease
	h := &history.Remembered{Historian: n.servers.historian, Admin: n.admin, Retention: n.cfg.History.Retention}
	st.history, st.audited, st.firstCopy = h, h, h.CopyOf
	if n.servers.probe, err = log.NewProbe(log.ProbeConfig{Conn: st.conn}); err != nil {
		return err
	}
	// While the clock of this process is wrong, accept no scheduled work. Due times and the minutes
	// of timers are computed with this clock.
	st.laterGate = n.clock.Err
	st.ready = func() error {
		if !n.tasks.Scheduler {
			return nil // immediate work needs no exact clock, and another process does scheduled work
		}
		// A server that is unavailable does not make the process unready, because the process has a
		// fallback until the server is available again. A wrong clock does make it unready, because
		// the clock does not correct itself.
		return n.clock.Err()
	}
	return nil
}

// storeIDMeta is the name of the row of engine.Meta with the id of the installation. Migrate writes the
// row.
const storeIDMeta = "store_id"
