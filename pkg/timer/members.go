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

// membership is what the last beats have shown. It is guarded by Engine.mu.
type membership struct {
	beaten time.Duration // Engine.clock of our latest beat
	alive  []engine.Heartbeat
	sick   bool // Unhealthy was told
}

// beat says every Beat that this engine is there, and decides which of its
// shards others should have. An engine whose clock is off leaves: it must not be
// given any.
func (e *Engine) beat(ctx context.Context) {
	e.mu.Lock()
	e.members.beaten = e.clock()
	e.mu.Unlock()
	var before []string // members of the look before: a newcomer is believed the second time
	for wait := time.Duration(0); notify.Sleep(ctx, wait); wait = e.cfg.Beat {
		call, stop := context.WithTimeout(ctx, e.cfg.Beat/2)
		off, began := e.clockOff(), e.clock()
		var err error
		if off {
			err = e.cfg.Heartbeats.Leave(call, group, e.cfg.Owner)
		} else {
			err = e.cfg.Heartbeats.Beat(call, group, e.cfg.Owner, 3*e.cfg.Beat)
		}
		var alive []engine.Heartbeat
		if err == nil {
			e.beaten(began)
			alive, err = e.cfg.Heartbeats.Alive(call, group)
		}
		stop()
		if err != nil && ctx.Err() == nil {
			e.troubl.say("cannot exchange heartbeats of timer engines", err)
		}
		e.checkHealth()
		var fresh []string
		for _, h := range alive {
			if h.Age < 2*e.cfg.Beat {
				fresh = append(fresh, h.Owner)
			}
		}
		e.mu.Lock()
		e.members.alive = alive
		e.mu.Unlock()
		if !off {
			e.share(slices.DeleteFunc(slices.Clone(fresh), func(owner string) bool { return !slices.Contains(before, owner) }))
		}
		before = fresh
	}
	call, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer stop()
	if err := e.cfg.Heartbeats.Leave(call, group, e.cfg.Owner); err != nil {
		e.troubl.say("cannot leave the timer engines", err)
	}
}

func (e *Engine) beaten(at time.Duration) {
	e.mu.Lock()
	e.members.beaten = at
	sick := e.members.sick
	e.members.sick = false
	e.mu.Unlock()
	if sick {
		e.cfg.Events.Healthy()
	}
}

// checkHealth tells once when three beats were missed.
func (e *Engine) checkHealth() {
	e.mu.Lock()
	age := e.clock() - e.members.beaten
	tell := age >= 3*e.cfg.Beat && !e.members.sick
	if tell {
		e.members.sick = true
	}
	e.mu.Unlock()
	if tell {
		e.cfg.Events.Unhealthy(age)
	}
}

// share picks shards of ours that rendezvous hashing over the members gives to
// others. An eighth of what we have goes at a time: each one that moves has its
// open minutes read again.
func (e *Engine) share(members []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.moves)
	if !slices.Contains(members, e.cfg.Owner) {
		return // nobody sees us: we do not know what the others have
	}
	may := (e.owned + 7) / 8
	for n, t := range e.tenures {
		// One that has just been got may have been a dead engine's, which counts
		// as a member for a while.
		if t == nil || may == 0 || e.clock()-t.begun < 3*e.cfg.Beat {
			continue
		}
		if to := preferred(members, uint16(n)); to != e.cfg.Owner {
			e.moves[uint16(n)] = to
			signal(t.moved)
			may--
		}
	}
}

// heir is the engine a shard is to be handed over to; "": none.
func (e *Engine) heir(n uint16) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.moves[n]
}

// preferred is the member with the highest hash for a shard: a member that comes
// or goes moves its own shards only.
func preferred(members []string, shard uint16) (best string) {
	var top uint64
	for _, m := range members {
		h := notify.HashUser(append([]byte{byte(shard >> 8), byte(shard)}, m...))
		if best == "" || h > top || h == top && m < best {
			best, top = m, h
		}
	}
	return best
}
