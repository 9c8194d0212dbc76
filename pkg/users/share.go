package users

import (
	"maps"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// topicPartition is partition n of a channel's topics, which have the given number of partitions.
type topicPartition struct {
	ch         notify.Channel
	partitions int
	n          int32
}

// share is an immutable set of topicPartitions. If the partition of a user on a channel is in the
// share, the process keeps the user's data for this channel. A nil share has all users.
type share struct {
	parts   map[topicPartition]bool
	layouts [len(notify.Channels) + 1][]partitionLayout // by channel
}

// partitionLayout has the partitions of one channel for one partition count. While the number of
// partitions of a channel grows, a channel has several layouts.
type partitionLayout struct {
	by  notify.Partitioner
	has []bool
}

func newShare(parts map[topicPartition]bool) *share {
	s := &share{parts: make(map[topicPartition]bool, len(parts))}
	maps.Copy(s.parts, parts)
	at := map[topicPartition]int{} // index in layouts, by channel and partition count
	for p := range parts {
		key := topicPartition{ch: p.ch, partitions: p.partitions}
		i, ok := at[key]
		if !ok {
			i = len(s.layouts[p.ch])
			at[key] = i
			s.layouts[p.ch] = append(s.layouts[p.ch], partitionLayout{notify.NewPartitioner(p.partitions), make([]bool, p.partitions)})
		}
		s.layouts[p.ch][i].has[p.n] = true
	}
	return s
}

// has reports whether the share includes the user for the channel.
func (s *share) has(ch notify.Channel, user []byte) bool {
	for i := range s.layouts[ch] {
		if l := &s.layouts[ch][i]; l.has[l.by.Partition(user)] {
			return true
		}
	}
	return false
}

// channelSet is a set of channels, one bit each.
type channelSet uint8

const allChannels channelSet = 1<<8 - 1

func (c channelSet) has(ch notify.Channel) bool { return c>>ch&1 != 0 }

// channelsOf returns the channels for which the share includes the user.
func (s *share) channelsOf(user []byte) (c channelSet) {
	if s == nil {
		return allChannels
	}
	for _, ch := range notify.Channels {
		if s.has(ch, user) {
			c |= 1 << ch
		}
	}
	return c
}

// profileParts returns the parts of the profile store that can contain users of the share.
func (s *share) profileParts() (out []int) {
	for i := range engine.ProfileParts {
		for p := range s.parts {
			// The hash of a user modulo ProfileParts is i, the part of the store. The same hash
			// modulo partitions is n, the partition. A user with both i and n can exist only if i
			// and n are equal modulo the greatest common divisor of the two moduli.
			if d := gcd(engine.ProfileParts, p.partitions); i%d == int(p.n)%d {
				out = append(out, i)
				break
			}
		}
	}
	return out
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// partsWithout returns the partitions of s that are not in o.
func (s *share) partsWithout(o *share) map[topicPartition]bool {
	out := maps.Clone(s.parts)
	maps.DeleteFunc(out, func(p topicPartition, _ bool) bool { return o.parts[p] })
	return out
}

// withParts returns a share with the partitions of s and the given partitions.
func (s *share) withParts(parts map[topicPartition]bool) *share {
	all := maps.Clone(s.parts)
	maps.Copy(all, parts)
	return newShare(all)
}

// intersect returns a share with the partitions that are in both s and o.
func (s *share) intersect(o *share) *share {
	both := maps.Clone(s.parts)
	maps.DeleteFunc(both, func(p topicPartition, _ bool) bool { return !o.parts[p] })
	return newShare(both)
}

// maxGuests is the largest number of guests, in the maps young and old together.
const maxGuests = 1 << 15

// guests are users whose profiles were fetched by id. Another process owns their share, or the
// share was still loading. When the map young is full, it becomes old, and the users in the
// previous old map are dropped. In both maps the value of a user is false while the profile is
// being fetched. After that it is true, and the table has the profile, if the user has one.
// Snapshot.guestMu guards both maps.
type guests struct{ young, old map[string]bool }

// lookUp reports whether a user is a guest (ok) and whether the guest's profile is known.
func (g *guests) lookUp(user []byte) (known, ok bool) {
	if known, ok = g.young[string(user)]; ok {
		return known, true
	}
	known, ok = g.old[string(user)]
	return known, ok
}

// add makes a user a guest and returns the users that stopped being guests.
func (g *guests) add(user string, known bool) (gone []string) {
	if g.young == nil || len(g.young) >= maxGuests/2 {
		for old := range g.old {
			if _, ok := g.young[old]; !ok {
				gone = append(gone, old)
			}
		}
		g.old, g.young = g.young, make(map[string]bool)
	}
	g.young[user] = known
	return slices.DeleteFunc(gone, func(u string) bool { return u == user })
}
