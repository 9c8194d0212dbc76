package store

import "github.com/notifyd/notifyd/pkg/engine"

// What tests outside the package need of it.
const (
	RoughFrom = firstUncountedFrom
	SplitFrom = splitFrom
)

// SplitTriggers makes each trigger that is created a split row.
func (c *Contracts) SplitTriggers() { c.triggers.splitFrom = 1 }

// QueueEntries returns how many messages a queue holds in memory.
func QueueEntries(e engine.Queue) int {
	q := e.(*queue)
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.index.liveCount() + len(q.index.slots) - len(q.index.free)
}
