package app

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/conserve"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// conservation adds up what was accepted, when asked and every so often, and
// repairs.
type conservation struct {
	auditor *conserve.Auditor
	last    atomic.Pointer[api.Conservation] // nil: there was none since the start
}

func (n *Node) buildConservation() {
	var bodies func(context.Context, func([]byte) error) error
	if n.st.bodies != nil {
		bodies = func(ctx context.Context, fn func([]byte) error) error { return n.st.bodies(ctx, triggerQueue, fn) }
	}
	n.conserve.auditor = conserve.New(conserve.Config{
		Log: conserve.OverLog{Admin: n.admin, Reader: n.reader, Gone: n.lostToDamage}, History: n.st.audited, Status: n.st.status, Timers: n.st.timers, Cold: n.st.cold,
		Spill: n.st.spill, Schedules: n.later.schedules, Shards: n.cfg.Timers.Shards, First: notify.FirstTopics(), Settle: n.seams.settle,
		Apart: n.own == nil, Born: time.Now(), Rows: n.st.triggers, Triggers: n.later.mender, Queue: bodies, Held: n.heldTriggers,
		Waiting: n.later.census.Set, Producer: n.producer, Away: n.auditable, Logger: n.log, Hit: killpoint.Hit,
	})
}

// heldTriggers is how many messages of triggers the delay queue holds.
func (n *Node) heldTriggers(ctx context.Context) (int, error) {
	d, err := n.later.queue.Depth(ctx)
	return d.Ready + d.Delayed + d.InFlight, err
}

// Audit adds up what was accepted since then (zero: all that is kept). In a
// process that does not follow the log into the history there is nothing to add
// up by: notify.KindUnavailable.
func (n *Node) Audit(ctx context.Context, since time.Time) (api.Conservation, error) {
	rep, err := n.conserve.auditor.Run(ctx, since)
	if err == nil {
		n.conserve.last.Store(&rep)
	}
	return rep, err
}

func (n *Node) auditable() error {
	if n.own != nil && !n.tasks.Operator {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "audit_unavailable", Msg: "this server's roles do not include what answers this"}
	}
	return nil
}

// auditEvery audits every so often, and warns of drift.
func (n *Node) auditEvery(ctx context.Context) error {
	if n.cfg.Audit.Every == 0 {
		<-ctx.Done()
		return nil
	}
	t := time.NewTicker(n.cfg.Audit.Every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		var since time.Time
		if w := n.cfg.Audit.Window; w > 0 {
			since = time.Now().Add(-w)
		}
		rep, err := n.Audit(ctx, since)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			n.log.Warn("audit", "err", err)
		case rep.Drift > 0:
			n.log.Error("audit found drift: what was accepted is neither ended nor on its way", "drift", rep.Drift, "classes", rep.Classes, "first", rep.Findings[0].ID)
		}
	}
}

// lostToDamage reports whether the embedded log has lost a record of its files.
func (n *Node) lostToDamage(tp log.TopicPartition, offset int64) bool {
	if n.own == nil {
		return false
	}
	for _, x := range n.own.broker.Losses() {
		if x.Topic == tp.Topic && x.Partition == tp.Partition && x.From <= offset && offset < x.To {
			return true
		}
	}
	return false
}
