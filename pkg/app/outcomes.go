package app

import (
	"context"
	"encoding/json"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/metrics"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/outcomehook"
)

// buildOutcomes makes the group that tells callers of ends other than failures.
func (n *Node) buildOutcomes() error {
	follower, err := outcomehook.NewFollower(outcomehook.FollowConfig{
		Callers: n.st.callers, Triggers: n.later.triggers, State: n.stateOf, Log: n.producer, Logger: n.log,
		Told: func(k int) { n.metrics.OutcomesTold.Add(float64(k)) }, Refused: func(code string) { metrics.Add(n.metrics.OutcomesRefused, 1, code) },
	})
	if err != nil {
		return err
	}
	return n.addGroup(log.GroupConfig{Group: outcomehook.FollowGroup, MaxPollRecords: 1000}, follower)
}

// stateOf is what all rows of a notification say together.
func (n *Node) stateOf(ctx context.Context, id notify.ID) (notify.Outcome, error) {
	found, err := n.st.history.Find(ctx, id)
	if err != nil {
		return notify.Outcome{}, err
	}
	rows, err := n.st.status.Chunk(ctx, found.Envelope.Chunk)
	if err != nil {
		return notify.Outcome{}, err
	}
	return notify.Fold(rows, id.Index, found.Pos), nil
}

// endedByReceipt tells of receipts, to the callers that asked for every end. A
// failure goes the way of failures.
func (n *Node) endedByReceipt(ctx context.Context, ids []notify.ID, rows []notify.Row) error {
	if !n.asked.Any() {
		return nil
	}
	var recs []log.Record
	for i := range rows {
		x := &rows[i].Default
		if x.State == notify.Failed {
			continue
		}
		found, err := n.st.history.Find(ctx, ids[i])
		switch kind := notify.KindOf(err); {
		case kind == notify.KindNotFound, kind == notify.KindGone:
			continue
		case err != nil:
			return err
		}
		e := &found.Envelope
		if !n.asked.Tells(e.Caller) {
			continue
		}
		b, err := json.Marshal(notify.Ended{
			Version: notify.EndedVersion, Caller: e.Caller, Campaign: e.Campaign, Channel: e.Channel.String(), Category: e.Category.String(),
			Template: e.Content.Template, Trace: e.Trace, At: rows[i].Updated,
			Receivers: []notify.EndedReceiver{{
				ID: ids[i].String(), Epoch: int(rows[i].Key.Epoch), User: string(found.User), Provider: x.Provider, Attempts: int(rows[i].Key.Attempt) + 1, Look: true, Receipt: true,
			}},
		})
		if err != nil {
			return err
		}
		recs = append(recs, log.Record{Topic: notify.TopicOutcomes, Partition: 0, Key: []byte(e.Caller), Value: b})
	}
	if len(recs) == 0 {
		return nil
	}
	return n.producer.Append(ctx, recs)
}
