package app

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/metrics"
	"github.com/notifyd/notifyd/pkg/outcomehook"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// buildJobs builds the audit log and the manager of operators' jobs.
func (n builder) buildJobs() (err error) {
	n.audit = &deadletter.AuditLog{Store: n.st.audit}
	n.jobs, err = deadletter.NewManager(deadletter.ManagerConfig{
		Jobs: n.st.jobs, Letters: n.st.letters, Status: n.st.status, History: n.st.history, Log: n.producer,
		Triggers: n.later.mender, Lease: n.st.jobLease, Owner: n.owner, Audit: n.audit,
		Reconcile: n.auditor, Standing: n.callStopText, Unreachable: n.unreachable, ApproveAbove: n.cfg.Jobs.ApproveAbove, Keep: n.cfg.Jobs.Keep, Most: n.cfg.Jobs.Most,
		Logger: n.log, Hit: killpoint.Hit,
	})
	return err
}

// triggerLetter decodes a record of triggers-dlq as a dead letter. The generation of the trigger
// becomes the epoch, so that several failures of one trigger can be distinguished.
func triggerLetter(value []byte) (d engine.DeadLetter, err error) {
	var l trigger.DeadLetter
	if err := json.Unmarshal(value, &l); err != nil {
		return d, err
	}
	if l.Version != 1 {
		return d, fmt.Errorf("the record has schema version %d; this build reads only version 1", l.Version)
	}
	id, err := deadletter.ParseLetterID(l.ID)
	if err != nil {
		return d, err
	}
	return engine.DeadLetter{
		ID: id, Epoch: uint16(min(l.Gen, math.MaxUint16)), Caller: l.Caller, Channel: deadletter.ChannelTrigger, Class: l.Class, Code: l.Reason,
		Attempts: l.Attempts, FirstFailed: l.Failed, LastFailed: l.Failed, Topic: trigger.TopicDLQ, Trace: l.Trace,
		Extra: map[string]any{"callback_url": l.URL, "status": float64(l.Status), "fire_at_ms": float64(l.FireAt)},
	}, nil
}

// buildOutcomes builds the consumer group that notifies callers of all outcomes except failures.
func (n builder) buildOutcomes() error {
	follower, err := outcomehook.NewFollower(outcomehook.FollowConfig{
		Callers: n.st.callers, Triggers: n.later.triggers, State: n.receipts.stateOf, Log: n.producer, Logger: n.log,
		Told: func(k int) { n.metrics.OutcomesTold.Add(float64(k)) }, Refused: func(code string) { metrics.Add(n.metrics.OutcomesRefused, 1, code) },
	})
	if err != nil {
		return err
	}
	return n.addGroup(log.GroupConfig{Group: outcomehook.FollowGroup, FetchWait: quietFetch, MaxPollRecords: 1000}, follower)
}
