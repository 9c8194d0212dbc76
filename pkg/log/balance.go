package log

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// byOwner is a balancer for consumer groups. The owner of a member is its process (GroupConfig.Owner).
// Who gets a partition depends only on the owners of the members, on the partition's number and on
// the numbers of partitions of its topic. So a process gets the same partition numbers in all groups
// whose members belong to the same processes, if the topics have the same numbers of partitions.
// This saves memory: the workers of a channel (both lanes, and retries) need the profiles of the
// users of their partitions, and the process then keeps each of these profiles only once.
//
// When members join or leave, few partitions move. When partitions are added, no partition moves.
type byOwner struct {
	owner string
	// counts returns the earlier and the present numbers of partitions of a topic, ascending.
	counts func(wire string) []int
}

// ProtocolName implements kgo.GroupBalancer. A member of an earlier release does not know this
// protocol. While the group has such a member, it balances with cooperative-sticky instead.
func (byOwner) ProtocolName() string { return "notifyd-by-owner" }

// IsCooperative implements kgo.GroupBalancer.
func (byOwner) IsCooperative() bool { return true }

// JoinGroupMetadata implements kgo.GroupBalancer.
func (b byOwner) JoinGroupMetadata(topics []string, current map[string][]int32, generation int32) []byte {
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Version, meta.Topics, meta.Generation, meta.UserData = 3, topics, generation, []byte(b.owner)
	for topic, partitions := range current {
		owned := kmsg.NewConsumerMemberMetadataOwnedPartition()
		owned.Topic, owned.Partitions = topic, partitions
		meta.OwnedPartitions = append(meta.OwnedPartitions, owned)
	}
	slices.SortFunc(meta.OwnedPartitions, func(x, y kmsg.ConsumerMemberMetadataOwnedPartition) int { return cmp.Compare(x.Topic, y.Topic) })
	return meta.AppendTo(nil)
}

// ParseSyncAssignment implements kgo.GroupBalancer.
func (byOwner) ParseSyncAssignment(assignment []byte) (map[string][]int32, error) {
	return kgo.ParseConsumerSyncAssignment(assignment)
}

// MemberBalancer implements kgo.GroupBalancer.
func (b byOwner) MemberBalancer(members []kmsg.JoinGroupResponseMember) (kgo.GroupMemberBalancer, map[string]struct{}, error) {
	cb, err := kgo.NewConsumerBalancer(b, members)
	if err != nil {
		return nil, nil, fmt.Errorf("log: assigning partitions to the members of the group: %w", err)
	}
	topics := cb.MemberTopics()
	return cb, topics, nil
}

// Balance implements kgo.ConsumerBalancerBalance.
func (b byOwner) Balance(cb *kgo.ConsumerBalancer, topics map[string]int32) kgo.IntoSyncAssignment {
	plan := cb.NewPlan()
	for topic, n := range topics {
		var members []*kmsg.JoinGroupResponseMember
		var owners []string
		cb.EachMember(func(m *kmsg.JoinGroupResponseMember, meta *kmsg.ConsumerMemberMetadata) {
			if slices.Contains(meta.Topics, topic) {
				// Add the member id, because one owner may have two members.
				members, owners = append(members, m), append(owners, string(meta.UserData)+"\x00"+m.MemberID)
			}
		})
		if len(members) == 0 {
			continue
		}
		for p, i := range assignPartitions(owners, int(n), b.counts(topic)) {
			plan.AddPartition(members[i], topic, int32(p))
		}
	}
	plan.AdjustCooperative(cb)
	return plan
}

// profileClasses is the number of parts into which the store divides the profiles. It must equal
// engine.ProfileParts. Let d be the greatest common divisor of profileClasses and the number of
// partitions. The users of partition p are in those profile parts i for which i mod d equals p mod
// d.
const profileClasses = 36

// assignPartitions returns the index of the owner of each of n partitions. The numbers of
// partitions of any two owners differ by at most 1. A partition goes to the owner with the highest
// score for that partition (rendezvous hashing), among the owners that may get one more.
// Partitions whose users are in the same profile parts of the store have the same scores, so an
// owner reads few parts. The parameter counts holds the earlier, smaller numbers of partitions of
// the topic. A partition that existed when the topic had such a number keeps its owner.
func assignPartitions(owners []string, n int, counts []int) []int {
	has, out := make([]int, len(owners)), make([]int, 0, n)
	earlier, _ := slices.BinarySearch(counts, n)
	if earlier > 0 {
		out = assignPartitions(owners, counts[earlier-1], counts[:earlier-1])
		for _, i := range out {
			has[i]++
		}
	}
	kept := len(out)
	out = append(out, make([]int, n-kept)...)
	least := n / len(owners)
	extra := n - least*len(owners)
	for _, h := range has {
		extra -= max(0, h-least)
	}
	class := n
	for b := profileClasses; b != 0; {
		class, b = b, class%b
	}
	by := make([]int, len(owners))
	for c := range class {
		for i := range by {
			by[i] = i
		}
		slices.SortFunc(by, func(x, y int) int {
			return cmp.Or(cmp.Compare(ownerScore(owners[y], c), ownerScore(owners[x], c)), cmp.Compare(owners[x], owners[y]))
		})
		for p := c; p < n; p += class {
			if p < kept {
				continue
			}
			i := by[slices.IndexFunc(by, func(i int) bool { return has[i] < least || has[i] == least && extra > 0 })]
			if has[i] == least {
				extra--
			}
			has[i]++
			out[p] = i
		}
	}
	return out
}

// ownerScore returns the score of an owner for a class of partitions, which is a hash of both. It
// ignores the member id that Balance adds to the owner.
func ownerScore(owner string, class int) uint64 {
	h := fnv.New64a()
	for i := range len(owner) {
		if owner[i] == 0 {
			owner = owner[:i]
			break
		}
	}
	_, _ = fmt.Fprintf(h, "%s/%d", owner, class)
	x := h.Sum64() // the high bits differ little for short texts, so the bits are mixed below
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
