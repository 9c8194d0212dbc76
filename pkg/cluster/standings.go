package cluster

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
)

const (
	standingGroup = "standing"      // heartbeats of processes that hold back a lane
	standingBeat  = 2 * time.Second // between two beats, and between two looks
	standingTTL   = 10 * time.Second
)

// Standings tells processes that call no provider which lanes are held back. Each
// process has circuit breakers of its own. While all routes of a lane are shut in a
// process that works the lane, that process beats, and what it beats with is why.
// While all is well it only asks whether others beat.
type Standings struct {
	beats engine.Heartbeats
	owner string

	mu   sync.Mutex
	told map[string]lanesHeld // of other processes, as of the last look
}

// lanesHeld is what one process beats with: why a lane is held back, by lane.
type lanesHeld map[string]server.Standing

// NewStandings returns the standings as the process owner sees them.
func NewStandings(beats engine.Heartbeats, owner string) *Standings {
	return &Standings{beats: beats, owner: owner}
}

// Share tells the others of the lanes that this process works, and looks at what
// the others tell, until ctx ends. While Redis is away each process keeps what it
// was told last.
func (s *Standings) Share(ctx context.Context, lanes []notify.Lane, own func(notify.Lane) (server.Standing, bool)) error {
	said, version := false, int64(0)
	for ctx.Err() == nil {
		call, stop := context.WithTimeout(ctx, standingBeat)
		said = s.tell(call, said, lanes, own)
		version = s.look(call, version)
		stop()
		notify.Sleep(ctx, standingBeat)
	}
	if said {
		call, stop := context.WithTimeout(context.WithoutCancel(ctx), standingBeat)
		defer stop()
		_ = s.beats.Leave(call, standingGroup, s.owner) // else its time runs out
	}
	return nil
}

// tell beats once with the lanes that this process holds back. It returns whether there
// are any. If there were some before (said) and there are none now, it leaves.
func (s *Standings) tell(ctx context.Context, said bool, lanes []notify.Lane, own func(notify.Lane) (server.Standing, bool)) bool {
	held := lanesHeld{}
	for _, l := range lanes {
		if st, ok := own(l); ok {
			held[l.String()] = st
		}
	}
	if b, err := json.Marshal(held); err == nil && len(held) > 0 { // it fails for times after the year 9999
		_, _ = s.beats.Beat(ctx, standingGroup, s.owner, string(b), standingTTL) // the next beat tries again
		return true
	}
	if said {
		_ = s.beats.Leave(ctx, standingGroup, s.owner) // else its time runs out
	}
	return false
}

// look reads what the others tell if it has changed since known, the group's version of
// the look before. It returns the version that was read.
func (s *Standings) look(ctx context.Context, known int64) int64 {
	alive, version, err := s.beats.Alive(ctx, standingGroup, known)
	if err != nil || version == known {
		return known
	}
	told := map[string]lanesHeld{}
	for _, h := range alive {
		var held lanesHeld
		if h.Owner != s.owner && json.Unmarshal([]byte(h.Value), &held) == nil {
			told[h.Owner] = held
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = told
	return version
}

// Of returns why another process holds a lane back at now. One process is enough:
// while a provider is away, processes that have called nothing do not know it. Of
// several it returns the one that tries again first.
func (s *Standings) Of(l notify.Lane, now time.Time) (first server.Standing, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.told {
		st, held := one[l.String()]
		if held && st.Until.After(now) && (!ok || st.Until.Before(first.Until)) {
			first, ok = st, true
		}
	}
	return first, ok
}
