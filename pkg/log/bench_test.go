package log

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/notifyd/notifyd/pkg/notify"
)

func diskBroker(b *testing.B, partitions int32, opts ...kfake.Opt) Conn {
	c, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.NumBrokers(1), kfake.DataDir(b.TempDir()), kfake.SeedTopics(partitions, "topic"),
		kfake.BrokerConfigs(map[string]string{"message.max.bytes": strconv.Itoa(9 << 20), "log.segment.bytes": strconv.Itoa(32 << 20)}),
	}, opts...)...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	return Conn{Brokers: c.ListenAddrs()}
}

// BenchmarkAppend: the embedded broker on disk, with 6 partitions. Each caller waits for its own
// append of n records. The figures come from 2 cores that had a load of 5 to 8 from other programs,
// so they are lower bounds:
//
//	                     fsync              page cache
//	200 B, 256 x 1       19-27K records/s   40-43K records/s
//	200 B, 8 x 1000      183-217K           573-592K
//	50 KB, 8 x 6         63-77 MB/s         109-153 MB/s
func BenchmarkAppend(b *testing.B) {
	for _, mode := range []string{"fsync", "page-cache"} {
		for _, c := range []struct{ size, n, callers int }{{200, 1, 256}, {200, 1000, 8}, {50_000, 6, 8}} {
			b.Run(fmt.Sprintf("%s/%dB/%dx%d", mode, c.size, c.callers, c.n), func(b *testing.B) {
				var opts []kfake.Opt
				if mode == "fsync" {
					opts = append(opts, kfake.SyncWrites())
				}
				p := newProducer(b, ProducerConfig{Conn: diskBroker(b, 6, opts...)})
				recs := make([]Record, c.n)
				for i := range recs {
					recs[i] = Record{Topic: "topic", Partition: -1, Key: fmt.Appendf(nil, "user-%d", i), Value: make([]byte, c.size)}
				}
				if err := p.Append(b.Context(), recs); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.ResetTimer()
				work := make(chan struct{})
				var wg sync.WaitGroup
				for range c.callers {
					wg.Go(func() {
						for range work {
							if err := p.Append(b.Context(), recs); err != nil {
								b.Error(err)
							}
						}
					})
				}
				for range b.N {
					work <- struct{}{}
				}
				close(work)
				wg.Wait()
				n := float64(b.N * c.n)
				b.ReportMetric(n/b.Elapsed().Seconds(), "records/s")
				b.ReportMetric(n*float64(c.size)/1e6/b.Elapsed().Seconds(), "MB/s")
			})
		}
	}
}

// BenchmarkAppendSmall: what direct saves. The figures are the processor time of client and broker
// together, with the page cache and 64 callers that each wait for their own append. They are
// medians of three runs in turns, on 2 cores that had a load of 27 from other programs:
//
//	        library    direct
//	1000    697        309 ns a record
//	1       9,460      7,220 ns
func BenchmarkAppendSmall(b *testing.B) {
	for _, n := range []int{1000, 1} {
		for _, way := range []struct {
			name string
			n    Brokers
		}{{"library", ManyBrokers}, {"direct", OneBroker}} {
			b.Run(fmt.Sprintf("64x%d/%s", n, way.name), func(b *testing.B) {
				const partitions = 6
				p := newProducer(b, ProducerConfig{Conn: diskBroker(b, partitions), Brokers: way.n})
				var before syscall.Rusage
				work := make(chan struct{})
				var wg sync.WaitGroup
				for range 64 {
					recs := make([]Record, n)
					for i := range recs {
						recs[i] = Record{Topic: "topic", Key: fmt.Appendf(nil, "u%08d", i), Value: make([]byte, 90)}
						recs[i].Partition = notify.Partition(recs[i].Key, partitions)
					}
					if err := p.Append(b.Context(), recs); err != nil {
						b.Fatal(err)
					}
					wg.Go(func() {
						for range work {
							if err := p.Append(b.Context(), recs); err != nil {
								b.Error(err)
							}
						}
					})
				}
				if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					work <- struct{}{}
				}
				close(work)
				wg.Wait()
				var after syscall.Rusage
				if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
					b.Fatal(err)
				}
				cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
				b.ReportMetric(float64(cpu)/float64(b.N*n), "cpu-ns/record")
			})
		}
	}
}

// BenchmarkGroup: records of 200 and 50,000 bytes are read through a group, and each is marked as
// done: 440-740K records/s, 160-230 MB/s under the same load.
func BenchmarkGroup(b *testing.B) {
	for _, c := range []struct{ size, total int }{{200, 1_000_000}, {50_000, 6000}} {
		b.Run(fmt.Sprintf("%dB", c.size), func(b *testing.B) {
			conn := diskBroker(b, 6)
			p := newProducer(b, ProducerConfig{Conn: conn})
			recs := make([]Record, c.total/200)
			for i := range recs {
				recs[i] = Record{Topic: "topic", Partition: int32(i % 6), Value: make([]byte, c.size)}
			}
			for range 200 {
				if err := p.Append(b.Context(), recs); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				done := make(chan int, 1000)
				m := start(b, GroupConfig{Conn: conn, Group: strconv.Itoa(i), Topics: []string{"topic"}}, handlerFunc(
					func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
						for _, m := range msgs {
							m.Done()
						}
						done <- len(msgs)
						return nil
					}))
				for n := 0; n < len(recs)*200; {
					n += <-done
				}
				b.StopTimer()
				if err := m.wait(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			n := float64(b.N * len(recs) * 200)
			b.ReportMetric(n/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(n*float64(c.size)/1e6/b.Elapsed().Seconds(), "MB/s")
		})
	}
}
