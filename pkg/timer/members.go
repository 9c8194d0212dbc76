package timer

import (
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// group is the name of the group whose members are the engines.
const group = "timers"

// membership exchanges heartbeats with the other engines. From the list of live engines it computes
// which engine should own each shard.
type membership struct {
	*Engine

	// Engine.mu guards the fields below. They are computed from the latest heartbeats.
	beatAt    time.Duration // Engine.clock at this engine's latest heartbeat
	alive     []string      // owner names of the live engines, sorted
	unhealthy bool          // Events.Unhealthy was called, and no heartbeat has succeeded since
	// standbyFor is true for each shard whose lease this engine must try to acquire. It is nil
	// while the members are not known.
	standbyFor     []bool
	lastStandbyFor []bool            // the last standbyFor that was not nil; nil: no such list yet
	standbyChanged chan struct{}     // closed and replaced when standbyFor changes
	handOvers      map[uint16]string // shards to hand over, and their new owners
}

// runHeartbeats sends a heartbeat every Beat, and decides which of this engine's shards another
// engine should own. If this engine's clock is off, it leaves the group, because it must not get
// any shard.
func (m *membership) runHeartbeats(ctx context.Context) {
	m.mu.Lock()
	m.beatAt = m.clock()
	m.mu.Unlock()
	// The list before has the members at the previous heartbeat, because a new member counts only
	// from its second heartbeat on.
	var before []string
	var members []string // the members read last
	known := int64(0)    // version of the group at which the list members was read
	unseen := 1          // consecutive heartbeats that did not show this engine as a member
	stoodFor := 0        // number of shards at the last call of setStandbys
	for wait := time.Duration(0); notify.Sleep(ctx, wait); wait = m.cfg.Beat {
		call, stop := context.WithTimeout(ctx, m.cfg.Beat/2)
		off, began := m.clockOff(), m.clock()
		version, err := int64(0), error(nil)
		if off {
			err = m.cfg.Heartbeats.Leave(call, group, m.cfg.Owner)
		} else {
			version, err = m.cfg.Heartbeats.Beat(call, group, m.cfg.Owner, "", 2*m.cfg.Beat)
		}
		if err == nil {
			m.noteBeat(began)
		}
		if err == nil && (off || version != known) {
			var hs []engine.Heartbeat
			if hs, version, err = m.cfg.Heartbeats.Alive(call, group, known); err == nil && version != known {
				known, members = version, nil
				for _, h := range hs {
					members = append(members, h.Owner)
				}
			}
		}
		stop()
		alive := members
		if err != nil {
			alive = nil // the current members are not known
		}
		if err != nil && ctx.Err() == nil {
			m.complaints.report("cannot exchange heartbeats of timer engines", err)
		}
		m.checkHealth()
		m.mu.Lock()
		m.alive = alive
		m.mu.Unlock()
		switch {
		case off || err != nil || !slices.Contains(alive, m.cfg.Owner):
			unseen++
		case unseen > 0 || !slices.Equal(alive, before) || stoodFor != m.shards():
			stoodFor = m.setStandbys(alive)
			unseen = 0
		}
		if unseen == 3 {
			m.setStandbys(nil)
		}
		if !off {
			m.planHandOvers(slices.DeleteFunc(slices.Clone(alive), func(owner string) bool {
				_, was := slices.BinarySearch(before, owner) // Alive returns the members sorted
				return !was
			}))
		}
		before = alive
	}
	call, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer stop()
	if err := m.cfg.Heartbeats.Leave(call, group, m.cfg.Owner); err != nil {
		m.complaints.log10s("cannot leave the group of timer engines; the heartbeat of this engine expires by itself", err)
	}
}

func (m *membership) noteBeat(at time.Duration) {
	m.mu.Lock()
	m.beatAt = at
	sick := m.unhealthy
	m.unhealthy = false
	m.mu.Unlock()
	if sick {
		m.cfg.Events.Healthy()
	}
}

// checkHealth calls Unhealthy once when three heartbeats were missed.
func (m *membership) checkHealth() {
	m.mu.Lock()
	age := m.clock() - m.beatAt
	tell := age >= 3*m.cfg.Beat && !m.unhealthy
	if tell {
		m.unhealthy = true
	}
	m.mu.Unlock()
	if tell {
		m.cfg.Events.Unhealthy(age)
	}
}

// planHandOvers chooses shards of this engine that, by rendezvous hashing, should belong to another
// member. It chooses at most an eighth of this engine's shards, rounded up, at a time, because the
// new owner of a shard must read the shard's open minutes again.
func (m *membership) planHandOvers(members []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.handOvers)
	if !slices.Contains(members, m.cfg.Owner) {
		return // the other engines do not see this engine, so it cannot know which shards they own
	}
	may := (m.owned + 7) / 8
	for n, t := range m.tenures {
		// Keep a shard that was taken over recently. Its earlier owner may have died and may still
		// count as a member.
		if t == nil || may == 0 || m.clock()-t.tookOverAt < 3*m.cfg.Beat {
			continue
		}
		if to := preferredMember(members, uint16(n)); to != m.cfg.Owner {
			m.handOvers[uint16(n)] = to
			wakeUp(t.heirSet)
			may--
		}
	}
}

// standbys is the number of engines that try to acquire the lease of a shard. They are the possible
// successors of its owner. Because other engines do not try, even a thousand engines put no more
// load on the lease service than three.
const standbys = 3

// setStandbys computes for which shards this engine is a standby, and stores this list. If members
// is nil, the members are not known, and this engine is a standby for all shards. setStandbys
// returns the number of shards in the new list, or 0 if there is no list.
func (m *membership) setStandbys(members []string) int {
	var stands []bool
	if members != nil {
		stands = make([]bool, m.shards())
		for n := range stands {
			stands[n] = rankOf(members, uint16(n), m.cfg.Owner) < standbys
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.standbyFor = stands; stands != nil {
		m.lastStandbyFor = stands
	}
	close(m.standbyChanged)
	m.standbyChanged = make(chan struct{})
	return len(stands)
}

// isStandby reports whether this engine must try to acquire the lease of a shard. It also returns a
// channel that is closed when this answer may have changed.
func (m *membership) isStandby(n uint16) (stands bool, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// For a new shard every engine is a standby until the next setStandbys.
	return int(n) >= len(m.standbyFor) || m.standbyFor[n], m.standbyChanged
}

// watchesLocked returns true if this engine must watch the watermark of a shard that another engine
// owns. Only the standbys of a shard do this. Otherwise the store would get one read for each pair
// of engine and shard. While the members are not known, the last known standbys watch. The caller
// holds mu.
func (m *membership) watchesLocked(n uint16) bool {
	return int(n) >= len(m.lastStandbyFor) || m.lastStandbyFor[n]
}

// heirOf returns the engine to which this engine must hand over a shard, or "" if it must keep the
// shard.
func (m *membership) heirOf(n uint16) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.handOvers[n]
}

// preferredMember returns the member with the highest rendezvous weight for a shard. When a member
// joins or leaves, the preferred member changes only for those shards for which this member has the
// highest weight.
func preferredMember(members []string, shard uint16) (best string) {
	var top uint64
	for _, m := range members {
		if w := rendezvousWeight(m, shard); best == "" || w > top || w == top && m < best {
			best, top = m, w
		}
	}
	return best
}

// rankOf returns how many of the members have a higher rendezvous weight for a shard than the given
// member. A smaller name counts as higher if two weights are equal.
func rankOf(members []string, shard uint16, member string) (n int) {
	mine := rendezvousWeight(member, shard)
	for _, m := range members {
		if w := rendezvousWeight(m, shard); w > mine || w == mine && m < member {
			n++
		}
	}
	return n
}

// rendezvousWeight returns the weight of a member for a shard in rendezvous hashing.
func rendezvousWeight(member string, shard uint16) uint64 {
	return notify.HashUser(append([]byte{byte(shard >> 8), byte(shard)}, member...))
}
