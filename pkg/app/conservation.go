package app

import (
	"context"
	"errors"
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
		Log: logToAudit{n}, History: n.st.audited, Status: n.st.status, Timers: n.st.timers, Cold: n.st.cold,
		Spill: n.st.spill, Schedules: n.later.schedules, Shards: n.cfg.Timers.Shards, First: firstTopics(), Settle: n.seams.settle,
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

// logToAudit is the log of the topics that workers read.
type logToAudit struct{ n *Node }

func (l logToAudit) Bounds(ctx context.Context) (map[log.TopicPartition]conserve.Bounds, error) {
	var topics []string
	committed := map[log.TopicPartition]int64{}
	for _, lane := range notify.Lanes() {
		topics = append(topics, lane.Topic(), lane.DLQTopic())
		for _, group := range []string{lane.Group(), lane.RetryGroup()} {
			at, err := l.n.admin.Committed(ctx, group)
			if err != nil {
				return nil, err
			}
			for tp, offset := range at {
				committed[tp] = offset
			}
		}
	}
	// The start before the end: else a partition could seem to end before it starts.
	starts, err := l.n.admin.StartOffsets(ctx, topics...)
	if err != nil {
		return nil, err
	}
	ends, err := l.n.admin.EndOffsets(ctx, topics...)
	if err != nil {
		return nil, err
	}
	out := make(map[log.TopicPartition]conserve.Bounds, len(ends))
	for tp, end := range ends {
		out[tp] = conserve.Bounds{Start: starts[tp], Committed: committed[tp], End: end}
	}
	return out, nil
}

// errRead ends a read that has what it wanted.
var errRead = errors.New("read to the end")

func (l logToAudit) Read(ctx context.Context, from, to map[log.TopicPartition]int64, fn func(log.TopicPartition, *log.Record) error) error {
	left := map[log.TopicPartition]bool{}
	at := map[log.TopicPartition]int64{}
	for tp, first := range from {
		if first < to[tp] {
			at[tp], left[tp] = first, true
		}
	}
	if len(left) == 0 {
		return nil
	}
	err := l.n.reader.Run(ctx, at, func(tp log.TopicPartition, recs []log.Record) error {
		if !left[tp] {
			return nil // of after the end
		}
		for i := range recs {
			if recs[i].Offset < to[tp] {
				if err := fn(tp, &recs[i]); err != nil {
					return err
				}
			}
			if recs[i].Offset >= to[tp]-1 {
				delete(left, tp)
				break
			}
		}
		if len(left) == 0 {
			return errRead
		}
		return nil
	})
	switch {
	case errors.Is(err, errRead):
		return nil
	case err == nil:
		return context.Cause(ctx) // Run ended because ctx did
	}
	return err
}

func (l logToAudit) Lost(tp log.TopicPartition, offset int64) bool {
	if l.n.own == nil {
		return false
	}
	for _, x := range l.n.own.broker.Losses() {
		if x.Topic == tp.Topic && x.Partition == tp.Partition && x.From <= offset && offset < x.To {
			return true
		}
	}
	return false
}
