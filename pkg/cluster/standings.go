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
	standingGroup = "standing"             // heartbeats of processes that stop a lane or show a tail
	standingBeat  = 2 * time.Second        // between two beats, and between two reads
	standingLeast = 250 * time.Millisecond // shortest time between two beats, after requestBeat
	standingTTL   = 10 * time.Second
)

// LaneStops tells the other processes which lanes are stopped in this process, because each
// process has its own circuit breakers. A process that works on a lane stops it while the breakers
// of all its routes are open, and then sends heartbeats with the reason. The heartbeats also
// contain the tails that this process shows. A process without stopped lanes and tails only reads
// the heartbeats of others.
type LaneStops struct {
	beats    engine.Heartbeats
	owner    string
	tails    *Tails        // nil: this process has no tails; set before Share runs
	beatSoon chan struct{} // capacity 1; a value makes Share beat at once

	mu         sync.Mutex           // guards othersHeld
	othersHeld map[string]lanesHeld // by owner, from the last read; replaced, never changed
}

// lanesHeld contains, by lane, why the lane is stopped. It is part of the JSON value of a
// process's heartbeat. The value also contains the process's tails, under names that begin with
// tailPrefix.
type lanesHeld map[string]server.LaneStop

// NewStandings returns the LaneStops of this process, whose unique name is owner.
func NewStandings(beats engine.Heartbeats, owner string) *LaneStops {
	return &LaneStops{beats: beats, owner: owner, beatSoon: make(chan struct{}, 1)}
}

// requestBeat makes Share send a heartbeat soon. Share sends it now, or standingLeast after the
// last heartbeat if that is later.
func (s *LaneStops) requestBeat() {
	select {
	case s.beatSoon <- struct{}{}:
	default:
	}
}

// Share sends heartbeats for the lanes of this process and reads the heartbeats of the other
// processes, until ctx ends. The function own returns the reason and true if a lane is stopped in
// this process. While Redis is unreachable, each process keeps the values of its last read.
func (s *LaneStops) Share(ctx context.Context, lanes []notify.Lane, own func(notify.Lane) (server.LaneStop, bool)) error {
	sent, version := false, int64(0)
	for ctx.Err() == nil {
		call, stop := context.WithTimeout(ctx, standingBeat)
		sent = s.beat(call, sent, lanes, own)
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
	if sent {
		call, stop := context.WithTimeout(context.WithoutCancel(ctx), standingBeat)
		defer stop()
		_ = s.beats.Leave(call, standingGroup, s.owner) // if this fails, the heartbeat expires
	}
	return nil
}

// beat sends one heartbeat if this process has a stopped lane or shows a tail. It returns true if
// it sent a heartbeat. The parameter sentLast is the result of the previous call of beat. If
// sentLast is true and there is nothing to send now, beat leaves the group, so that the old
// heartbeat disappears.
func (s *LaneStops) beat(ctx context.Context, sentLast bool, lanes []notify.Lane, own func(notify.Lane) (server.LaneStop, bool)) bool {
	held := map[string]any{}
	for _, l := range lanes {
		if st, ok := own(l); ok {
			held[l.String()] = st
		}
	}
	for name, w := range s.tails.ownWishes() {
		held[name] = w
	}
	if b, err := json.Marshal(held); err == nil && len(held) > 0 { // Marshal fails only for times after the year 9999
		_, _ = s.beats.Beat(ctx, standingGroup, s.owner, string(b), standingTTL) // if it fails, the next beat tries again
		return true
	}
	if sentLast {
		_ = s.beats.Leave(ctx, standingGroup, s.owner) // if this fails, the heartbeat expires
	}
	return false
}

// readOthers reads the heartbeats of the other processes if they have changed. The parameter known
// is the group's version at the previous read. readOthers returns the version that it has read.
func (s *LaneStops) readOthers(ctx context.Context, known int64) int64 {
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
			var st server.LaneStop
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

// Find returns why a lane is stopped in another process at the time now. If several processes have
// stopped the lane, Find returns the stop that ends first. The lane counts as stopped if it is
// stopped in one process, because only a process that has called a provider notices that the
// provider is down.
func (s *LaneStops) Find(l notify.Lane, now time.Time) (earliest server.LaneStop, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.othersHeld {
		st, held := one[l.String()]
		if held && st.Until.After(now) && (!ok || st.Until.Before(earliest.Until)) {
			earliest, ok = st, true
		}
	}
	return earliest, ok
}
