package cassandra

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkEveryReceiver stores the history of fan-outs, without and with a row by user for
// each receiver (cassandra.every_receiver). An operation is a receiver; chunks have 2,000.
func BenchmarkEveryReceiver(b *testing.B) {
	for _, every := range []bool{false, true} {
		b.Run(fmt.Sprint(every), func(b *testing.B) {
			s := withHistory(b, every)
			const chunk = 2000
			before := s.Counts()
			b.ResetTimer()
			for at := 0; at < b.N; at += chunk {
				var rs []receiver
				for i := at; i < min(at+chunk, b.N); i++ {
					rs = append(rs, receiver{uint32(i), fmt.Sprintf("user-%08d", i)})
				}
				e := envelope(time.Now(), "shop", rs...)
				if err := s.AppendHistory(b.Context(), historyRecord(int64(at), e)); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			c, n := s.Counts(), float64(b.N)
			b.ReportMetric(n/b.Elapsed().Seconds(), "receivers/s")
			b.ReportMetric(float64(c.Writes+c.Scattered-before.Writes-before.Scattered)/n, "statements/receiver")
			b.ReportMetric(float64(c.Rows-before.Rows)/n, "rows/receiver")
			b.ReportMetric(float64(c.Bytes-before.Bytes)/n, "B-sent/receiver")
		})
	}
}
