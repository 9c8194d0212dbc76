package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/engine/redis"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/store"
)

var (
	descSeen      = desc("seen_filter_keys_total", "Keys of outcome rows that workers looked up or claimed, by what the seen-filter made of them.", "result")
	descSeenOff   = desc("seen_filter_off", "1 while the seen-filter is not asked, for it does not answer, else 0.")
	descLimitFail = desc("shared_limits_failures_total", "Questions to the shared limits that were not answered in time.")
	descLimitOwn  = desc("shared_limits_alone_total", "Takes of tokens that this process decided alone.")
	descLimitOff  = desc("shared_limits_off", "1 while the shared limits are not asked, for they do not answer, else 0.")
	descRequests  = desc("server_requests_total", "Requests made of a server. Cassandra: swap, serial_read, read, write (one partition), logged_batch, scattered_batch (unlogged, several partitions, scattered_row of them), and row and byte, what the last three kinds of request have sent; Redis: command, round_trip; Kafka: produce, fetch, commit, heartbeat and other, and produce_batch and fetch_batch, the batches of records in the first two.", "server", "kind")
	descClock     = desc("clock_offset_seconds", "How far the clock is ahead of the servers'; below 0: behind. 0 with embedded engines.")
)

// collectShared collects the metrics of the seen-filter, the shared limits, the requests to servers and
// the clock. With embedded engines all these metrics are 0.
func (c *nodeCollector) collectShared(ch chan<- prometheus.Metric, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	var seen store.SeenStats
	var limits limit.SharedStats
	requests := func() map[requestKind]int64 { return requestCounts(nil, redis.Counts{}, log.Counts{}) }
	if s := c.n.servers; s != nil {
		if s.seen != nil {
			seen = s.seen.Stats()
		}
		if s.requests != nil {
			requests = s.requests
		}
		if s.limits != nil {
			limits = s.limits.Stats(time.Now())
		}
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for result, keys := range map[string]uint64{
		"unknown": seen.Believed, "read": seen.Read, "false": seen.False, "blind": seen.Blind, "added": seen.Added, "missed": seen.Missed,
	} {
		count(descSeen, keys, result)
	}
	gauge(descSeenOff, boolGauge(seen.Off))
	count(descLimitFail, limits.Failed)
	count(descLimitOwn, limits.LocalOnly)
	gauge(descLimitOff, boolGauge(limits.Suspended))
	for r, n := range requests() {
		count(descRequests, uint64(n), r.server, r.kind)
	}
	gauge(descClock, c.n.clock.Offset().Seconds())
}

// requestKind holds the values of the labels of descRequests.
type requestKind struct{ server, kind string }

// requestCounts returns the numbers of requests to Cassandra (of all stores together), Redis and Kafka.
func requestCounts(cs []*cassandra.Store, rd redis.Counts, k log.Counts) map[requestKind]int64 {
	var sum cassandra.Counts
	for _, s := range cs {
		c := s.Counts()
		sum.Swaps, sum.SerialReads, sum.Reads = sum.Swaps+c.Swaps, sum.SerialReads+c.SerialReads, sum.Reads+c.Reads
		sum.Writes, sum.Logged = sum.Writes+c.Writes, sum.Logged+c.Logged
		sum.Rows, sum.Bytes = sum.Rows+c.Rows, sum.Bytes+c.Bytes
		sum.Scattered, sum.Apart = sum.Scattered+c.Scattered, sum.Apart+c.Apart
	}
	return map[requestKind]int64{
		{"cassandra", "swap"}: sum.Swaps, {"cassandra", "serial_read"}: sum.SerialReads, {"cassandra", "read"}: sum.Reads,
		{"cassandra", "write"}: sum.Writes, {"cassandra", "row"}: sum.Rows, {"cassandra", "byte"}: sum.Bytes, {"cassandra", "logged_batch"}: sum.Logged,
		{"cassandra", "scattered_batch"}: sum.Scattered, {"cassandra", "scattered_row"}: sum.Apart,
		{"redis", "command"}: rd.Commands, {"redis", "round_trip"}: rd.RoundTrips,
		{"kafka", "produce"}: k.Produce, {"kafka", "produce_batch"}: k.ProduceBatches, {"kafka", "fetch"}: k.Fetch, {"kafka", "fetch_batch"}: k.FetchBatches,
		{"kafka", "commit"}: k.Commit, {"kafka", "heartbeat"}: k.Heartbeat, {"kafka", "other"}: k.Other,
	}
}

func boolGauge(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
