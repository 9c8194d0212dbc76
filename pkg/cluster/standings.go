package cluster

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
)

const (
	standingGroup = "standing"             // heartbeats of processes that hold back a lane
	standingBeat  = 2 * time.Second        // between two beats, and between two looks
	standingLeast = 250 * time.Millisecond // the same, when there is news
	standingTTL   = 10 * time.Second
)

// Standings tells other processes what is out of the ordinary in this one: which lanes it
// holds back, and which tails it shows. Each
// process has circuit breakers of its own. While all routes of a lane are shut in a
// process that works the lane, that process beats, and what it beats with is why.
// While all is well it only asks whether others beat.
type Standings struct {
	beats engine.Heartbeats
	owner string
	tails *Tails        // nil: there are none
	news  chan struct{} // the next beat is due now

	mu   sync.Mutex
	told map[string]lanesHeld // of other processes, as of the last look
}

// lanesHeld is why lanes are held back, by lane. A process beats with its own, as JSON, and
// with the wishes of its tails beside them, whose names no lane has.
type lanesHeld map[string]server.Standing

// NewStandings returns the standings as the process owner sees them.
func NewStandings(beats engine.Heartbeats, owner string) *Standings {
	return &Standings{beats: beats, owner: owner, news: make(chan struct{}, 1)}
}

// tellNow makes Share beat as soon as it may.
func (s *Standings) tellNow() {
	select {
	case s.news <- struct{}{}:
	default:
	}
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
		notify.Sleep(ctx, standingLeast)
		wait := time.NewTimer(standingBeat - standingLeast)
		select {
		case <-wait.C:
		case <-s.news:
		case <-ctx.Done():
		}
		wait.Stop()
	}
	if said {
		call, stop := context.WithTimeout(context.WithoutCancel(ctx), standingBeat)
		defer stop()
		_ = s.beats.Leave(call, standingGroup, s.owner) // else its time runs out
	}
	return nil
}

// tell beats once with the lanes that this process holds back and the tails that it shows.
// It returns whether there are any. If there were some before (said) and there are none
// now, it leaves.
func (s *Standings) tell(ctx context.Context, said bool, lanes []notify.Lane, own func(notify.Lane) (server.Standing, bool)) bool {
	held := map[string]any{}
	for _, l := range lanes {
		if st, ok := own(l); ok {
			held[l.String()] = st
		}
	}
	for name, w := range s.tails.wishes() {
		held[name] = w
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
	began := time.Now()
	alive, version, err := s.beats.Alive(ctx, standingGroup, known)
	if err != nil {
		return known
	}
	s.tails.current(began)
	if version == known {
		return known
	}
	told, wishes := map[string]lanesHeld{}, map[tailID]tailWish{}
	for _, h := range alive {
		var said map[string]json.RawMessage
		if json.Unmarshal([]byte(h.Value), &said) != nil {
			continue
		}
		held := lanesHeld{}
		for name, raw := range said {
			var st server.Standing
			var w tailWish
			switch {
			case strings.HasPrefix(name, tailPrefix):
				if json.Unmarshal(raw, &w) == nil {
					wishes[tailID{h.Owner, name}] = w
				}
			case h.Owner != s.owner && json.Unmarshal(raw, &st) == nil:
				held[name] = st
			}
		}
		told[h.Owner] = held
	}
	s.tails.wished(wishes)
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
