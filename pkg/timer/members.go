package timer

import (
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// group is the name engines are members under.
const group = "timers"

// membership exchanges heartbeats with the other engines, and decides which shards
// they should have.
type membership struct {
	*Engine

	// Guarded by Engine.mu: what the last beats have shown.
	beatAt time.Duration     // Engine.clock of our latest beat
	alive  []string          // owners
	sick   bool              // Unhealthy was told
	stands []bool            // by shard: this engine is to look for its lease; nil: it knows no members
	stood  []bool            // stands when it was known last; nil: it never was
	change chan struct{}     // closed when stands is another
	moves  map[uint16]string // shards to hand over, with their new owners
}

// beat says every Beat that this engine is there, and decides which of its
// shards others should have. An engine whose clock is off leaves: it must not be
// given any.
func (m *membership) beat(ctx context.Context) {
	m.mu.Lock()
	m.beatAt = m.clock()
	m.mu.Unlock()
	var before []string  // members of the look before: a newcomer is believed the second time
	var members []string // as they were read last
	known := int64(0)    // the version of the group that members is of
	unseen := 1          // looks in a row that did not show this engine among the members
	stoodFor := 0        // shards that the last stand was about
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
			m.beaten(began)
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
			alive = nil // who is there now is not known
		}
		if err != nil && ctx.Err() == nil {
			m.troubl.say("cannot exchange heartbeats of timer engines", err)
		}
		m.checkHealth()
		m.mu.Lock()
		m.alive = alive
		m.mu.Unlock()
		switch {
		case off || err != nil || !slices.Contains(alive, m.cfg.Owner):
			unseen++
		case unseen > 0 || !slices.Equal(alive, before) || stoodFor != m.shards():
			stoodFor = m.stand(alive)
			unseen = 0
		}
		if unseen == 3 {
			m.stand(nil)
		}
		if !off {
			m.share(slices.DeleteFunc(slices.Clone(alive), func(owner string) bool {
				_, was := slices.BinarySearch(before, owner) // Alive has ordered them
				return !was
			}))
		}
		before = alive
	}
	call, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer stop()
	if err := m.cfg.Heartbeats.Leave(call, group, m.cfg.Owner); err != nil {
		m.troubl.say("cannot leave the timer engines", err)
	}
}

func (m *membership) beaten(at time.Duration) {
	m.mu.Lock()
	m.beatAt = at
	sick := m.sick
	m.sick = false
	m.mu.Unlock()
	if sick {
		m.cfg.Events.Healthy()
	}
}

// checkHealth tells once when three beats were missed.
func (m *membership) checkHealth() {
	m.mu.Lock()
	age := m.clock() - m.beatAt
	tell := age >= 3*m.cfg.Beat && !m.sick
	if tell {
		m.sick = true
	}
	m.mu.Unlock()
	if tell {
		m.cfg.Events.Unhealthy(age)
	}
}

// share picks shards of ours that rendezvous hashing over the members gives to
// others. An eighth of what we have goes at a time: each one that moves has its
// open minutes read again.
func (m *membership) share(members []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.moves)
	if !slices.Contains(members, m.cfg.Owner) {
		return // nobody sees us: we do not know what the others have
	}
	may := (m.owned + 7) / 8
	for n, t := range m.tenures {
		// One that has just been got may have been a dead engine's, which counts
		// as a member for a while.
		if t == nil || may == 0 || m.clock()-t.begun < 3*m.cfg.Beat {
			continue
		}
		if to := preferred(members, uint16(n)); to != m.cfg.Owner {
			m.moves[uint16(n)] = to
			signal(t.moved)
			may--
		}
	}
}

// standbys is how many engines look for the lease of a shard: its owner's successors.
// All others leave it alone, so that the lease's server is asked as often by a thousand
// engines as by three.
const standbys = 3

// stand stores for which shards this engine is one of the standbys. With members nil, when
// the members are not known, it stands by for all shards. It returns how many shards there
// were.
func (m *membership) stand(members []string) int {
	var stands []bool
	if members != nil {
		stands = make([]bool, m.shards())
		for n := range stands {
			stands[n] = ranked(members, uint16(n), m.cfg.Owner) < standbys
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stands = stands; stands != nil {
		m.stood = stands
	}
	close(m.change)
	m.change = make(chan struct{})
	return len(stands)
}

// standsFor reports whether this engine is to look for the lease of a shard. change is
// closed when that may be different.
func (m *membership) standsFor(n uint16) (is bool, change <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A shard that was added has as standbys all, until the next look at the members.
	return int(n) >= len(m.stands) || m.stands[n], m.change
}

// watchesLocked reports whether this engine is to look how far a shard is that it does
// not own: its standbys do, or else the store would be asked processes times shards. While
// the members are not known, those who were the standbys do.
func (m *membership) watchesLocked(n uint16) bool { return int(n) >= len(m.stood) || m.stood[n] }

// heir is the engine a shard is to be handed over to; "": none.
func (m *membership) heir(n uint16) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moves[n]
}

// preferred is the member with the highest weight for a shard: a member that comes
// or goes moves its own shards only.
func preferred(members []string, shard uint16) (best string) {
	var top uint64
	for _, m := range members {
		if w := weight(m, shard); best == "" || w > top || w == top && m < best {
			best, top = m, w
		}
	}
	return best
}

// ranked is how many members come before one of them for a shard.
func ranked(members []string, shard uint16, one string) (n int) {
	mine := weight(one, shard)
	for _, m := range members {
		if w := weight(m, shard); w > mine || w == mine && m < one {
			n++
		}
	}
	return n
}

// weight is a member's for a shard, of rendezvous hashing.
func weight(member string, shard uint16) uint64 {
	return notify.HashUser(append([]byte{byte(shard >> 8), byte(shard)}, member...))
}
