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

// openDistributed opens the engines that are servers, which many processes
// share. What they hold was made by Migrate.
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

// notMigrated is the error of engines that Migrate has not prepared.
func notMigrated(what string) error {
	return &notify.Error{Kind: notify.KindConflict, Code: "not_migrated", Msg: what + " is not there; notifyd migrate up makes it"}
}

// useServers makes the engines that were opened those of the stages.
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
	// A delay is counted, and the minute of a timer is chosen, by this clock.
	st.laterGate = n.clock.Err
	st.ready = func() error {
		if !n.tasks.Scheduler {
			return nil // what is due now needs no clock that agrees, and another process takes the rest
		}
		// Engines that are away come back, and each has its own fallback meanwhile. A
		// clock that is off does not right itself.
		return n.clock.Err()
	}
	return nil
}

// storeIDMeta names the installation, made by Migrate.
const storeIDMeta = "store_id"
