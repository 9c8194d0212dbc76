package log

import (
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Counts holds the numbers of requests that the clients of a Conn sent to the brokers.
type Counts struct {
	Produce        int64 // produce requests
	ProduceBatches int64 // record batches in these requests: one for each partition of a request
	Fetch          int64 // fetch requests, including those that returned no record
	FetchBatches   int64 // record batches read
	Commit         int64 // requests that commit offsets
	Heartbeat      int64
	Other          int64
}

// Counter counts the requests of all clients that have it as their Conn.Counter. The zero value is
// ready to use. The methods whose names begin with On are hooks of the client library.
type Counter struct {
	produce, produceBatches, fetch, fetchBatches, commit, heartbeat, other atomic.Int64
}

// Counts returns the counts since the start. For a nil Counter all counts are 0.
func (c *Counter) Counts() Counts {
	if c == nil {
		return Counts{}
	}
	return Counts{
		Produce: c.produce.Load(), ProduceBatches: c.produceBatches.Load(), Fetch: c.fetch.Load(), FetchBatches: c.fetchBatches.Load(),
		Commit: c.commit.Load(), Heartbeat: c.heartbeat.Load(), Other: c.other.Load(),
	}
}

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (c *Counter) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	n := &c.other
	switch kmsg.Key(key) {
	case kmsg.Produce:
		n = &c.produce
	case kmsg.Fetch:
		n = &c.fetch
	case kmsg.OffsetCommit:
		n = &c.commit
	case kmsg.Heartbeat:
		n = &c.heartbeat
	}
	n.Add(1)
}

// OnProduceBatchWritten implements kgo.HookProduceBatchWritten.
func (c *Counter) OnProduceBatchWritten(kgo.BrokerMetadata, string, int32, kgo.ProduceBatchMetrics) {
	c.produceBatches.Add(1)
}

// OnFetchBatchRead implements kgo.HookFetchBatchRead.
func (c *Counter) OnFetchBatchRead(kgo.BrokerMetadata, string, int32, kgo.FetchBatchMetrics) {
	c.fetchBatches.Add(1)
}
