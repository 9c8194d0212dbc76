package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// TestPeersOutput parses output of the tools of Kafka 4.1.0.
func TestPeersOutput(t *testing.T) {
	t.Parallel()
	rate := sentRate(`1201234 records sent, 240198.8 records/sec (45.81 MB/sec), 402.1 ms avg latency, 910.0 ms max latency.
2500000 records sent, 310982.7 records/sec (59.31 MB/sec), 386.23 ms avg latency, 930.00 ms max latency, 380 ms 50th, 700 ms 95th, 850 ms 99th, 921 ms 99.9th.
`)
	if rate != 310982.7 {
		t.Errorf("sent %v", rate)
	}
	const read = "2026-11-22 13:01:00:001, 2026-11-22 13:01:04:011, 190.7349, 47.5648, 1000000, 249376.5586, 3110, 900, 211.9277, 1111111.1111\n"
	if rate := fetchRate(read, 1_000_000); rate != 1111111.1111 {
		t.Errorf("read %v", rate)
	}
	for what, f := range map[string]func(){
		"an output without a rate":     func() { sentRate("org.apache.kafka.common.errors.TimeoutException") },
		"fewer records than asked for": func() { fetchRate(read, 1_000_001) },
		"no output":                    func() { fetchRate("", 1) },
	} {
		if rig.Try(f) == nil {
			t.Errorf("%s: believed", what)
		}
	}
}

func TestFlood(t *testing.T) {
	t.Parallel()
	left := make(chan struct{}, 10)
	for range cap(left) {
		left <- struct{}{}
	}
	began := time.Now()
	rate := flood(t.Context(), 3, time.Hour, func(context.Context, int) int {
		select {
		case <-left:
			return 7
		default:
			return -1
		}
	})
	if took := time.Since(began).Seconds(); rate < 70/took {
		t.Errorf("%v/s in %v s", rate, took)
	}
	bad := errors.New("refused")
	if err := rig.Try(func() { flood(t.Context(), 3, time.Hour, func(context.Context, int) int { panic(bad) }) }); !errors.Is(err, bad) {
		t.Errorf("a failure is %v", err)
	}
	var sum atomic.Int64
	manyOf(t.Context(), 100, 4, func(i int) { sum.Add(int64(i)) })
	if n := sum.Load(); n != 4950 {
		t.Errorf("the sum of the numbers below 100 is %d", n)
	}
	if err := rig.Try(func() {
		manyOf(t.Context(), 100, 4, func(i int) {
			if i == 50 {
				panic(bad)
			}
		})
	}); !errors.Is(err, bad) {
		t.Errorf("a failure of one is %v", err)
	}
}
