package users

import (
	"maps"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// part is a partition of a channel's topics: the users of partition n among so many.
type part struct {
	ch         notify.Channel
	partitions int
	n          int32
}

// share is a set of parts; it never changes. Of a user in it a process holds what the
// channels of the user's parts need. A nil share has all users.
type share struct {
	parts map[part]bool
	of    [len(notify.Channels) + 1][]layout // by channel
}

// layout has the parts of one channel and one number of partitions. There is more than
// one number while the partitions of a channel grow.
type layout struct {
	by  notify.Partitioner
	has []bool
}

func newShare(parts map[part]bool) *share {
	s := &share{parts: make(map[part]bool, len(parts))}
	maps.Copy(s.parts, parts)
	at := map[part]int{} // of a channel and a number of partitions
	for p := range parts {
		key := part{ch: p.ch, partitions: p.partitions}
		i, ok := at[key]
		if !ok {
			i = len(s.of[p.ch])
			at[key] = i
			s.of[p.ch] = append(s.of[p.ch], layout{notify.NewPartitioner(p.partitions), make([]bool, p.partitions)})
		}
		s.of[p.ch][i].has[p.n] = true
	}
	return s
}

// has reports whether the share has what the channel needs of a user.
func (s *share) has(ch notify.Channel, user []byte) bool {
	for i := range s.of[ch] {
		if l := &s.of[ch][i]; l.has[l.by.Partition(user)] {
			return true
		}
	}
	return false
}

// channels is a set of channels, a bit each.
type channels uint8

const allChannels channels = 1<<8 - 1

func (c channels) has(ch notify.Channel) bool { return c>>ch&1 != 0 }

// channels are those of which the share has the user.
func (s *share) channels(user []byte) (c channels) {
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

// profileParts are the parts of the store that have the users of a share.
func (s *share) profileParts() (out []int) {
	for i := range engine.ProfileParts {
		for p := range s.parts {
			// The hashes of a user give i modulo ProfileParts and n modulo partitions:
			// such a user exists if both agree modulo what divides the two.
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

// without returns the parts of s that are not in o.
func (s *share) without(o *share) map[part]bool {
	out := maps.Clone(s.parts)
	maps.DeleteFunc(out, func(p part, _ bool) bool { return o.parts[p] })
	return out
}

// and returns the share that has the parts of both.
func (s *share) and(more map[part]bool) *share {
	all := maps.Clone(s.parts)
	maps.Copy(all, more)
	return newShare(all)
}

// only returns the share that has the parts of s that are in o.
func (s *share) only(o *share) *share {
	both := maps.Clone(s.parts)
	maps.DeleteFunc(both, func(p part, _ bool) bool { return !o.parts[p] })
	return newShare(both)
}

// maxGuests bounds how many users of other shares are held, in two generations.
const maxGuests = 1 << 15

// guests are users whose profiles were fetched by id, because another process holds
// their share or because it was being loaded: young ones, and old ones, which go when
// there are as many young ones. The value says whether the profile is in the table, or
// that there is none; until then it is being fetched. Service.guestMu guards them.
type guests struct{ young, old map[string]bool }

// held reports whether the profile of a guest is known; ok says whether it is a guest.
func (g *guests) held(user []byte) (known, ok bool) {
	if known, ok = g.young[string(user)]; ok {
		return known, true
	}
	known, ok = g.old[string(user)]
	return known, ok
}

// put makes a user a guest and returns the users that had to go.
func (g *guests) put(user string, known bool) (gone []string) {
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
