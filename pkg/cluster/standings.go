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
// While all is well it sends nothing.
type Standings struct {
	beats engine.Heartbeats
	owner string

	mu   sync.Mutex
	told []heldBack // by other processes, as of the last look
}

// NewStandings returns the standings as the process owner sees them.
func NewStandings(beats engine.Heartbeats, owner string) *Standings {
	return &Standings{beats: beats, owner: owner}
}

// heldBack is what one process beats with.
type heldBack struct {
	Owner string                     `json:"owner"`
	Lanes map[string]server.Standing `json:"lanes"` // by lane
}

// Share tells the others of the lanes that this process works, and looks at what
// the others tell, until ctx ends. While Redis is away each process keeps what it
// was told last.
func (s *Standings) Share(ctx context.Context, lanes []notify.Lane, own func(notify.Lane) (server.Standing, bool)) error {
	said := ""
	for ctx.Err() == nil {
		call, stop := context.WithTimeout(ctx, standingBeat)
		said = s.tell(call, said, lanes, own)
		s.look(call)
		stop()
		notify.Sleep(ctx, standingBeat)
	}
	if said != "" {
		call, stop := context.WithTimeout(context.WithoutCancel(ctx), standingBeat)
		defer stop()
		_ = s.beats.Leave(call, standingGroup, said) // else its time runs out
	}
	return nil
}

// tell beats once with the lanes that this process holds back, and takes said, which
// was told before, back where that has changed. It returns what was told.
func (s *Standings) tell(ctx context.Context, said string, lanes []notify.Lane, own func(notify.Lane) (server.Standing, bool)) string {
	now := heldBack{Owner: s.owner, Lanes: map[string]server.Standing{}}
	for _, l := range lanes {
		if st, ok := own(l); ok {
			now.Lanes[l.String()] = st
		}
	}
	text := ""
	if len(now.Lanes) > 0 {
		if b, err := json.Marshal(now); err == nil { // it fails for times after the year 9999
			text = string(b)
		}
	}
	if text != "" {
		_ = s.beats.Beat(ctx, standingGroup, text, standingTTL) // the next beat tries again
	}
	if said != "" && said != text {
		_ = s.beats.Leave(ctx, standingGroup, said) // else its time runs out
	}
	return text
}

func (s *Standings) look(ctx context.Context) {
	alive, err := s.beats.Alive(ctx, standingGroup)
	if err != nil {
		return
	}
	var told []heldBack
	for _, h := range alive {
		var one heldBack
		if json.Unmarshal([]byte(h.Owner), &one) == nil && one.Owner != s.owner {
			told = append(told, one)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = told
}

// Of returns why another process holds a lane back at now. One process is enough:
// while a provider is away, processes that have called nothing do not know it. Of
// several it returns the one that tries again first.
func (s *Standings) Of(l notify.Lane, now time.Time) (first server.Standing, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.told {
		st, held := one.Lanes[l.String()]
		if held && st.Until.After(now) && (!ok || st.Until.Before(first.Until)) {
			first, ok = st, true
		}
	}
	return first, ok
}
