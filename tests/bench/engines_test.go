package main

import (
	"context"
	"errors"
	"testing"
	"time"
)

// What the tools of Kafka 4.1.0 print.
func TestPeersOutput(t *testing.T) {
	t.Parallel()
	rate, err := sentRate(`1201234 records sent, 240198.8 records/sec (45.81 MB/sec), 402.1 ms avg latency, 910.0 ms max latency.
2500000 records sent, 310982.7 records/sec (59.31 MB/sec), 386.23 ms avg latency, 930.00 ms max latency, 380 ms 50th, 700 ms 95th, 850 ms 99th, 921 ms 99.9th.
`)
	if err != nil || rate != 310982.7 {
		t.Errorf("sent %v, %v", rate, err)
	}
	if _, err := sentRate("org.apache.kafka.common.errors.TimeoutException"); err == nil {
		t.Error("an output without a rate is believed")
	}
	const read = "2026-11-22 13:01:00:001, 2026-11-22 13:01:04:011, 190.7349, 47.5648, 1000000, 249376.5586, 3110, 900, 211.9277, 1111111.1111\n"
	if rate, err := fetchRate(read, 1_000_000); err != nil || rate != 1111111.1111 {
		t.Errorf("read %v, %v", rate, err)
	}
	if _, err := fetchRate(read, 1_000_001); err == nil {
		t.Error("fewer records than asked for are believed")
	}
	if _, err := fetchRate("", 1); err == nil {
		t.Error("no output is believed")
	}
}

func TestFlood(t *testing.T) {
	t.Parallel()
	left := make(chan struct{}, 10)
	for range cap(left) {
		left <- struct{}{}
	}
	began := time.Now()
	rate, err := flood(t.Context(), 3, time.Hour, func(context.Context, int) (int, error) {
		select {
		case <-left:
			return 7, nil
		default:
			return 0, errNoMore
		}
	})
	if took := time.Since(began).Seconds(); err != nil || rate < 70/took {
		t.Errorf("%v/s in %v s, %v", rate, took, err)
	}
	bad := errors.New("refused")
	if _, err := flood(t.Context(), 3, time.Hour, func(context.Context, int) (int, error) { return 1, bad }); !errors.Is(err, bad) {
		t.Errorf("a failure is %v", err)
	}
	if err := manyOf(100, 4, func(i int) error {
		if i == 50 {
			return bad
		}
		return nil
	}); !errors.Is(err, bad) {
		t.Errorf("a failure of one is %v", err)
	}
}
