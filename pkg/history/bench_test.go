package history

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// chunkMaker makes chunks of n receivers out of 5M users, cheaply.
type chunkMaker struct {
	n     int
	env   notify.Envelope
	col   notify.ReceiverWriter
	seq   uint64
	user  uint64
	value []byte
}

// next returns the value of the next chunk; it is overwritten by the one after.
func (m *chunkMaker) next() []byte {
	if m.value == nil {
		for i := range m.n {
			m.col.Append(notify.Receiver{Index: uint32(i), User: []byte("user0000000")})
		}
		m.env = *envelope(baseAt(now, 0), 0, 0, "bench", receiver{0, "x"})
		m.env.Count, m.env.Receivers = uint32(m.n), m.col.Bytes()
		m.value = notify.AppendEnvelope(nil, &m.env)
	}
	m.seq++
	b := baseAt(now+int64(m.seq/100), m.seq)
	copy(m.value[4:20], b[:])
	// Users lie 13 bytes apart: delta, flags, 11 bytes. Digits are permuted so
	// that hashes come in no order.
	col := m.value[len(m.value)-13*m.n:]
	for i := range m.n {
		u := (m.user*2654435761 + 12345) % 5_000_000
		m.user++
		d := col[13*i+2+4:][:7]
		for k := 6; k >= 0; k-- {
			d[k] = byte('0' + u%10)
			u /= 10
		}
	}
	return m.value
}

func TestChunkMaker(t *testing.T) {
	t.Parallel()
	m := chunkMaker{n: 3}
	var env notify.Envelope
	must(t, notify.DecodeEnvelope(m.next(), &env))
	if env.Chunk.Base != baseAt(now, 1) || env.Count != 3 {
		t.Fatalf("%+v", env)
	}
}

// nullFS discards what is written, so that only the cost of this package is measured.
type nullFS struct{ FS }

type nullFile struct{ File }

func (n nullFS) Create(name string) (File, error) {
	f, err := n.FS.Create(name)
	return nullFile{f}, err
}
func (nullFile) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }

// Appending over 6 partitions and sealing beside it. ns/receiver is wall time
// of the appender; cpu-ns/receiver is the whole process, index and fdatasync
// included. 8,000 chunks of 8,333 on a machine with a load of 10:
//
//	nullFS   60 ns   41 cpu-ns
//	osFS    106 ns   86 cpu-ns   of it 41 in write
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{8333, 1000, 50, 1} {
		for _, fs := range []FS{nullFS{osFS{}}, osFS{}} {
			benchAppend(b, n, fs)
		}
	}
}

func benchAppend(b *testing.B, n int, fs FS) {
	b.Run(fmt.Sprintf("chunk=%d/%T", n, fs), func(b *testing.B) {
		s, stop := open(b, Config{Dir: b.TempDir(), FS: fs})
		makers := make([][]byte, 64)
		m := chunkMaker{n: n}
		for i := range makers {
			makers[i] = slices.Clone(m.next())
		}
		var off [6]int64
		i := 0
		b.ReportAllocs()
		cpu := cpuTime(b)
		for b.Loop() {
			p := i % 6
			must(b, s.Append(b.Context(), Record{Topic: topic, Partition: int32(p), Offset: off[p], Value: makers[i%64], Time: now}))
			off[p]++
			i++
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(i*n), "ns/receiver")
		b.StopTimer()
		sealNow(b, s)
		b.ReportMetric(float64(cpuTime(b)-cpu)/float64(i*n), "cpu-ns/receiver")
		st := s.Stats()
		b.ReportMetric(float64(st.Bytes)/float64(st.Receivers), "B/receiver")
		stop()
	})
}

// cpuTime returns the CPU time of the process so far, in ns. The machine is shared, so wall time
// says little.
func cpuTime(b *testing.B) int64 {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}

// The parts of it, in CPU time.
func BenchmarkIndex(b *testing.B) {
	hashes := make([]uint64, 1<<20)
	for i := range hashes {
		hashes[i] = notify.HashUser(fmt.Appendf(nil, "user%07d", i))
	}
	m := chunkMaker{n: 8333}
	value := m.next()
	var env notify.Envelope
	must(b, notify.DecodeEnvelope(value, &env))
	run := func(name string, n int, fn func()) {
		b.Run(name, func(b *testing.B) {
			fn()
			cpu := cpuTime(b)
			for b.Loop() {
				fn()
			}
			b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N*n), "cpu-ns/receiver")
		})
	}
	var hs []uint64
	run("hash", 8333, func() { hs, _, _, _ = hashColumn(hs[:0], env.Receivers, env.Count) })
	var c chain
	run("chain", len(hashes), func() {
		c.reset()
		for i := 0; i < len(hashes); i += 8192 {
			c.add(hashes[i : i+8192])
		}
	})
	var body []byte
	run("body", 8333, func() { body = appendBodyRecord(body[:0], &bodyRecord{value: value}) })
	var buf []byte
	run("sort", len(hashes), func() { buf = appendIndex(buf[:0], hashes, dirBits(len(hashes))) })
}

// 50M receivers in about 6,000 chunks, 10 notifications a user, 44 sealed
// segments and 6 half-full tails.
func BenchmarkLookup(b *testing.B) {
	s, _ := open(b, Config{Dir: b.TempDir()})
	m := chunkMaker{n: 8333}
	var off [6]int64
	for i := range 6000 {
		p := i % 6
		must(b, s.Append(context.Background(), Record{Topic: topic, Partition: int32(p), Offset: off[p], Value: m.next(), Time: now}))
		off[p]++
	}
	for {
		s.sealQueue.mu.Lock()
		n := len(s.sealQueue.tails)
		s.sealQueue.mu.Unlock()
		if n == 0 {
			break
		}
		p := s.allParts()[0]
		p.slots <- struct{}{}
		p.slots <- struct{}{}
		<-p.slots
		<-p.slots
	}
	b.Logf("%+v", s.Stats())
	r := rng(3)
	run := func(name string, fn func()) {
		b.Run(name, func(b *testing.B) {
			var hist [64 * 8]int
			n := 0
			for b.Loop() {
				at := time.Now()
				fn()
				us := uint64(time.Since(at).Microseconds()) + 1
				l := bits.Len64(us)
				hist[l*8+int(us<<3>>l)-4]++
				n++
			}
			for i, sum := 0, 0; i < len(hist); i++ {
				if sum += hist[i]; sum*100 >= n*99 {
					l := i / 8
					b.ReportMetric(float64(uint64(i%8+5)<<l>>3), "p99-us")
					break
				}
			}
		})
	}
	run("find", func() {
		seq := 1 + r.Uint64N(6000)
		_, err := s.Find(context.Background(), notify.ID{Base: baseAt(now+int64(seq/100), seq), Index: uint32(r.IntN(8333)), FanOut: true})
		must(b, err)
	})
	run("find-miss", func() {
		seq := 1 + r.Uint64N(6000)
		_, err := s.Find(context.Background(), notify.ID{Base: baseAt(now+int64(seq/100), seq+1<<40), FanOut: true})
		if err == nil {
			b.Fatal("found")
		}
	})
	for _, limit := range []int{1, 10, 20} {
		run(fmt.Sprintf("user-%d", limit), func() {
			u := append([]byte("user"), fmt.Appendf(nil, "%07d", r.Uint64N(5_000_000))...)
			fs, _, err := s.User(context.Background(), engine.HistoryQuery{User: string(u), Limit: limit})
			must(b, err)
			if len(fs) == 0 {
				b.Fatal("nobody")
			}
		})
	}
	run("user-nobody", func() {
		u := binary.AppendUvarint([]byte("nobody"), r.Uint64())
		_, _, err := s.User(context.Background(), engine.HistoryQuery{User: string(u), Limit: 20})
		must(b, err)
	})
}
