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
	standingGroup = "standing"             // heartbeats of processes that hold back a lane or show a tail
	standingBeat  = 2 * time.Second        // between two beats, and between two reads
	standingLeast = 250 * time.Millisecond // the same after requestBeat
	standingTTL   = 10 * time.Second
)

// Standings tells the other processes which lanes this process holds back and which tails it
// shows. Each process has circuit breakers of its own. While the breakers of all routes of a
// lane are open in a process that works the lane, that process sends heartbeats with the
// reason. A process that has nothing to tell sends none, and only reads those of the others.
type Standings struct {
	beats    engine.Heartbeats
	owner    string
	tails    *Tails        // nil: this process has no tails; set before Share runs
	beatSoon chan struct{} // capacity 1; a value makes Share beat at once

	mu         sync.Mutex           // guards othersHeld
	othersHeld map[string]lanesHeld // by owner, as of the last read; replaced, never changed
}

// lanesHeld says why lanes are held back, by lane. It is the JSON value of a process's
// heartbeat, which also has the wishes of its tails, under names that no lane has.
type lanesHeld map[string]server.Standing

// NewStandings returns the standings as the process owner sees them.
func NewStandings(beats engine.Heartbeats, owner string) *Standings {
	return &Standings{beats: beats, owner: owner, beatSoon: make(chan struct{}, 1)}
}

// requestBeat makes Share beat now, or standingLeast after its last beat.
func (s *Standings) requestBeat() {
	select {
	case s.beatSoon <- struct{}{}:
	default:
	}
}

// Share beats for the lanes that this process works and reads the heartbeats of the others,
// until ctx ends. own says whether and why this process holds a lane back. While Redis is
// away each process keeps what it read last.
func (s *Standings) Share(ctx context.Context, lanes []notify.Lane, own func(notify.Lane) (server.Standing, bool)) error {
	said, version := false, int64(0)
	for ctx.Err() == nil {
		call, stop := context.WithTimeout(ctx, standingBeat)
		said = s.beat(call, said, lanes, own)
		version = s.readOthers(call, version)
		stop()
		notify.Sleep(ctx, standingLeast)
		wait := time.NewTimer(standingBeat - standingLeast)
		select {
		case <-wait.C:
		case <-s.beatSoon:
		case <-ctx.Done():
		}
		wait.Stop()
	}
	if said {
		call, stop := context.WithTimeout(context.WithoutCancel(ctx), standingBeat)
		defer stop()
		_ = s.beats.Leave(call, standingGroup, s.owner) // if this fails, the heartbeat expires
	}
	return nil
}

// beat sends one heartbeat with the lanes that this process holds back and the tails that it
// shows. It returns whether there are any. If there are none but the last beat had some
// (said), it leaves the group.
func (s *Standings) beat(ctx context.Context, said bool, lanes []notify.Lane, own func(notify.Lane) (server.Standing, bool)) bool {
	held := map[string]any{}
	for _, l := range lanes {
		if st, ok := own(l); ok {
			held[l.String()] = st
		}
	}
	for name, w := range s.tails.ownWishes() {
		held[name] = w
	}
	if b, err := json.Marshal(held); err == nil && len(held) > 0 { // it fails for times after the year 9999
		_, _ = s.beats.Beat(ctx, standingGroup, s.owner, string(b), standingTTL) // the next beat tries again
		return true
	}
	if said {
		_ = s.beats.Leave(ctx, standingGroup, s.owner) // if this fails, the heartbeat expires
	}
	return false
}

// readOthers reads the heartbeats of the others if they have changed since known, the group's
// version at the read before. It returns the version that it read.
func (s *Standings) readOthers(ctx context.Context, known int64) int64 {
	began := time.Now()
	alive, version, err := s.beats.Alive(ctx, standingGroup, known)
	if err != nil {
		return known
	}
	s.tails.noteWishesRead(began)
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
	s.tails.setOthersWishes(wishes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.othersHeld = told
	return version
}

// Of returns why another process holds a lane back at now. One such process is enough: while
// a provider is away, processes that have not called it do not know. If there are several,
// Of returns the standing of the process that tries again first.
func (s *Standings) Of(l notify.Lane, now time.Time) (first server.Standing, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.othersHeld {
		st, held := one[l.String()]
		if held && st.Until.After(now) && (!ok || st.Until.Before(first.Until)) {
			first, ok = st, true
		}
	}
	return first, ok
}
