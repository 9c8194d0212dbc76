package pebble

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

func benchStore(b *testing.B) *Store {
	b.Helper()
	s := mustOpen(b, Config{Dir: b.TempDir()})
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

// concurrently runs fn in n goroutines until the benchmark's work is shared out.
func concurrently(b *testing.B, n int, fn func(i uint64)) {
	b.Helper()
	var next atomic.Uint64
	b.SetParallelism(max(1, n/2)) // times GOMAXPROCS, 2 here
	if n == 1 {
		for b.Loop() {
			fn(next.Add(1))
		}
		return
	}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			fn(next.Add(1))
		}
	})
}

func numbered(r notify.Row, n uint64) notify.Row {
	r.Key.Chunk.Base = benchBase(n)
	return r
}

// benchBase is time-ordered, as real bases are: 100 a millisecond.
func benchBase(n uint64) notify.Base {
	b := notify.NewBase(time.UnixMilli(1_795_000_000_000 + int64(n/100)))
	b[14], b[15] = byte(n>>8), byte(n)
	return b
}

// On 2 shared cores and a virtual disk, the calmest of six runs (others had half
// of it, both columns alike); Pebble alone is BenchmarkPebbleAlone of that run.
//
//	                               rows/s    Pebble alone
//	single, 1 writer                4,413           4,486
//	single, 64 writers            107,360     77,000-121,000
//	100 rows a call, 2 writers    362,613
//	1,000 rows a call, 1 writer   861,653
//	chunk of 8,300, 1 writer        4,435
//	chunk of 8,300, 64 writers     84,160
//	timers, 1 / 64 writers          4,507 / 97,020
//	timers, 1,000 a call          614,182
//	keys reserved, 1 / 64 writers   4,615 / 75,090
func BenchmarkPutRow(b *testing.B) {
	for _, c := range []struct {
		name    string
		writers int
		row     notify.Row
		rows    int // a call
	}{
		{"single/1writer", 1, single(), 1}, {"single/64writers", 64, single(), 1},
		{"single/2writers/100rows", 2, single(), 100}, {"single/1writer/1000rows", 1, single(), 1000},
		{"chunk100/1writer", 1, chunk(100), 1}, {"chunk100/64writers", 64, chunk(100), 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := benchStore(b)
			b.ReportAllocs()
			concurrently(b, c.writers, func(n uint64) {
				rows := make([]notify.Row, c.rows)
				for i := range rows {
					rows[i] = numbered(c.row, n*uint64(c.rows)+uint64(i))
				}
				if err := s.Status().Put(b.Context(), rows); err != nil {
					b.Error(err)
				}
			})
			b.ReportMetric(float64(b.N*c.rows)/b.Elapsed().Seconds(), "rows/s")
			m := s.Metrics()
			b.ReportMetric(float64(m.Writes)/float64(m.Groups), "calls/group")
		})
	}
}

// BenchmarkPebbleAlone is the reference: the same bytes by db.Set, whose own
// commit pipeline shares fsyncs.
func BenchmarkPebbleAlone(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(map[int]string{1: "1writer", 64: "64writers"}[writers], func(b *testing.B) {
			s := benchStore(b)
			b.ReportAllocs()
			concurrently(b, writers, func(n uint64) {
				r := numbered(single(), n)
				k := binary.BigEndian.AppendUint64([]byte("srow"), n)
				if err := s.db.Set(k, store.AppendRow(nil, &r), pebbledb.Sync); err != nil {
					b.Error(err)
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

func BenchmarkGet(b *testing.B) {
	const stored = 1_000_000
	s := benchStore(b)
	rows := make([]notify.Row, 1000)
	keys := make([]notify.RowKey, 0, stored)
	for n := 0; n < stored; n += len(rows) {
		for i := range rows {
			rows[i] = numbered(single(), uint64(n+i))
			keys = append(keys, rows[i].Key)
		}
		if err := s.Status().Put(b.Context(), rows); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.db.Flush(); err != nil {
		b.Fatal(err)
	}
	one := make([]notify.RowKey, 1)
	for _, c := range []struct {
		name string
		key  func(n int) notify.RowKey
	}{
		{"hit", func(n int) notify.RowKey { return keys[n*7919%stored] }},
		{"miss/fresh", func(n int) notify.RowKey { return numbered(single(), uint64(stored+n)).Key }},
		{"miss/within", func(n int) notify.RowKey {
			k := keys[n*7919%stored]
			k.Epoch = 1
			return k
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				one[0] = c.key(n)
				if _, err := s.Status().Get(b.Context(), one); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("miss/600keys", func(b *testing.B) {
		many := make([]notify.RowKey, 600)
		for i := range many {
			many[i] = numbered(single(), uint64(stored+i)).Key
		}
		for b.Loop() {
			if _, err := s.Status().Get(b.Context(), many); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkTimersPut(b *testing.B) {
	for _, c := range []struct {
		name        string
		writers, ts int
	}{{"1writer/1timer", 1, 1}, {"64writers/1timer", 64, 1}, {"1writer/1000timers", 1, 1000}} {
		b.Run(c.name, func(b *testing.B) {
			s := benchStore(b)
			b.ReportAllocs()
			payload := make([]byte, 200)
			concurrently(b, c.writers, func(n uint64) {
				ts := make([]engine.Timer, c.ts)
				for i := range ts {
					base := benchBase(n*uint64(c.ts) + uint64(i))
					ts[i] = engine.Timer{FireAt: 1_795_000_000_000 + int64(n%600_000), ID: base[:], Target: "notifications-push", Payload: payload}
				}
				if err := s.Timers().Put(b.Context(), notify.SpreadOver(64), ts); err != nil {
					b.Error(err)
				}
			})
			b.ReportMetric(float64(b.N*c.ts)/b.Elapsed().Seconds(), "timers/s")
		})
	}
}

func BenchmarkReserve(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(map[int]string{1: "1writer", 64: "64writers"}[writers], func(b *testing.B) {
			s := benchStore(b)
			b.ReportAllocs()
			concurrently(b, writers, func(n uint64) {
				base := benchBase(n)
				r := engine.Reservation{Key: engine.IdemKey{Caller: "shop", Route: "POST /v1/notifications", Key: base.String()}, Base: base, Expires: 1 << 40}
				if _, won, err := s.Idem().Reserve(b.Context(), r, 0); err != nil || !won {
					b.Error(won, err)
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "keys/s")
		})
	}
}
