package redis

import (
	"strconv"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// BenchmarkQueue is a message's way through the queue, a hundred a call, on a
// server of its own: its processor time counts, which is what a Redis runs out of
// first.
func BenchmarkQueue(b *testing.B) {
	srv := startServer(b, "--appendfsync", "no")
	q := srv.connect().Queue("bench", 3)
	used := func() (seconds float64) {
		info := srv.client().Info(bg, "cpu").Val()
		for _, f := range [...]string{"used_cpu_user", "used_cpu_sys"} {
			s, err := strconv.ParseFloat(infoField(info, f), 64)
			if err != nil {
				b.Fatal(err)
			}
			seconds += s
		}
		return seconds
	}
	const each = 100
	ms := make([]engine.Message, each)
	for i := range ms {
		ms[i].Body = make([]byte, 64)
	}
	before, messages := used(), 0
	for b.Loop() {
		if err := q.Enqueue(bg, ms); err != nil {
			b.Fatal(err)
		}
		ds, err := q.Receive(bg, each, time.Minute)
		if err != nil || len(ds) != each {
			b.Fatal(len(ds), err)
		}
		receipts := make([]string, each)
		for i := range ds {
			receipts[i] = ds[i].Receipt
		}
		if err := q.Ack(bg, receipts); err != nil {
			b.Fatal(err)
		}
		messages += each
	}
	b.ReportMetric((used()-before)*1e9/float64(messages), "server-ns/message")
}
