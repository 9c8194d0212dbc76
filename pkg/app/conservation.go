package app

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/conserve"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

func newAuditor(n *Node) *conserve.Auditor {
	var bodies func(context.Context, func([]byte) error) error
	if n.st.bodies != nil {
		bodies = func(ctx context.Context, fn func([]byte) error) error { return n.st.bodies(ctx, triggerQueue, fn) }
	}
	held := func(ctx context.Context) (int, error) { // returns how many messages of triggers the delay queue holds
		d, err := n.later.queue.Depth(ctx)
		return d.Ready + d.Delayed + d.InFlight, err
	}
	// An audit needs the history. In an embedded process, only the operator role copies the log
	// into the history. So a process without this role cannot make an audit.
	away := func() error {
		if n.embedded != nil && !n.tasks.Operator {
			return &notify.Error{Kind: notify.KindUnavailable, Code: "audit_unavailable", Msg: "no role of this process answers this request; ask another process"}
		}
		return nil
	}
	lost := func(log.TopicPartition, int64) bool { return false } // servers do not report losses
	if n.embedded != nil {
		lost = n.embedded.isLost
	}
	return conserve.New(conserve.Config{
		Log: conserve.WorkerLog{Admin: n.admin, Reader: n.reader, Gone: lost}, History: n.st.audited, Status: n.st.status, Timers: n.st.timers, Cold: n.st.cold,
		Spill: n.st.spill, Schedules: n.later.schedules, Shards: n.shards.Now, First: notify.FirstTopics(), Settle: n.seams.settle,
		Apart: n.embedded == nil, Born: time.Now(), Rows: n.st.triggers, Triggers: n.later.mender, Queue: bodies, Held: held,
		Waiting: n.later.census.Set, Producer: n.producer, Away: away, Logger: n.log, Hit: killpoint.Hit,
	})
}
