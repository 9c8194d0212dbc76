package cassandra

import (
	"sync/atomic"
	"time"
)

// clock gives the timestamps of plain writes, in microseconds since 1970. It is
// a hybrid logical clock: it never gives one twice, and never one below those it
// has seen in rows. So who reads a row and then replaces it wins, whatever the
// machines' clocks say; and of two writes of one process the later one does.
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

// see tells of a timestamp that was read.
func (c *clock) see(us int64) {
	for {
		last := c.last.Load()
		if us <= last || c.last.CompareAndSwap(last, us) {
			return
		}
	}
}
