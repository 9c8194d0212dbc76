package cassandra

import (
	"sync/atomic"
	"time"
)

// clock gives the timestamps of plain writes, in microseconds since 1970. It is a hybrid
// logical clock: it gives no timestamp twice, and none below a timestamp that it has
// observed in a row. So a process that reads a row and then replaces it wins, whatever the
// clocks of the machines say. Of two writes of one process the later one wins.
type clock struct{ last atomic.Int64 }

// now returns the next timestamp.
func (c *clock) now() int64 {
	for {
		last := c.last.Load()
		next := max(time.Now().UnixMicro(), last+1)
		if c.last.CompareAndSwap(last, next) {
			return next
		}
	}
}

// observe makes all later timestamps greater than us, the timestamp of a row.
func (c *clock) observe(us int64) {
	for {
		last := c.last.Load()
		if us <= last || c.last.CompareAndSwap(last, us) {
			return
		}
	}
}
