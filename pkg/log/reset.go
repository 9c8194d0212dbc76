package log

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/notifyd/notifyd/pkg/notify"
)

// TopicIDs returns the id that the brokers gave to each topic that exists. A topic that was deleted and
// created again has another id. Offsets of the deleted topic have no meaning in the new topic.
func (a *Admin) TopicIDs(ctx context.Context, topics ...string) (map[string]string, error) {
	out := make(map[string]string, len(topics))
	err := a.eachTopic(ctx, topics, func(name string, d *kadm.TopicDetail) { out[name] = d.ID.String() })
	return out, err
}

// Members returns the number of members of each group. Groups without members are missing in the
// result.
func (a *Admin) Members(ctx context.Context, groups ...string) (map[string]int, error) {
	described, err := a.adm.DescribeGroups(ctx, a.cfg.Conn.wireNames(groups)...)
	if err != nil {
		return nil, translate(err)
	}
	out := map[string]int{}
	for name, g := range described {
		switch {
		case errors.Is(g.Err, kerr.GroupIDNotFound):
		case g.Err != nil:
			return nil, translate(g.Err)
		case len(g.Members) > 0:
			out[a.cfg.Conn.productName(name)] = len(g.Members)
		}
	}
	return out, nil
}

// SetCommitted sets the committed offsets of a group for the given partitions. Other partitions
// keep their offsets. The group must have no members. If it has members, SetCommitted returns an
// error of KindConflict with the code "cluster_running", and the offsets of some partitions may
// already be set.
func (a *Admin) SetCommitted(ctx context.Context, group string, offsets map[TopicPartition]int64) error {
	commit := make(kadm.Offsets)
	for tp, at := range offsets {
		commit.AddOffset(a.cfg.Conn.wireName(tp.Topic), tp.Partition, at, -1)
	}
	resps, err := a.adm.CommitOffsets(ctx, a.cfg.Conn.wireName(group), commit)
	if err == nil {
		err = resps.Error()
	}
	if errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.RebalanceInProgress) || errors.Is(err, kerr.IllegalGeneration) {
		return &notify.Error{Kind: notify.KindConflict, Code: "cluster_running", Msg: fmt.Sprintf("the consumer group %s has members: stop every notifyd process first", group), Err: err}
	}
	return translate(err)
}
