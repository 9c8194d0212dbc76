package cassandra

import (
	"sync/atomic"
	"time"
)

// clock returns the timestamps of plain writes, in microseconds since 1970. Cassandra keeps
// the write with the greatest timestamp. clock is a hybrid logical clock: it returns no
// timestamp twice, and each timestamp is greater than all timestamps that it has observed
// in rows. So a process that reads a row and then replaces it always wins, even if the
// clocks of the machines differ. If one process writes a row twice, the later write wins.
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

// observe makes all later timestamps greater than rowTimestamp, the timestamp of a row that
// was read.
func (c *clock) observe(rowTimestamp int64) {
	for {
		last := c.last.Load()
		if rowTimestamp <= last || c.last.CompareAndSwap(last, rowTimestamp) {
			return
		}
	}
}
