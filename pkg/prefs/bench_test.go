package prefs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

const benchUsers = 5_000_000

// crowd is a store of n users that are made while they are scanned: 3% opted
// out of something, 1% have quiet hours, and each has the addresses given.
type crowd struct {
	*store
	n       int
	address func(i int) map[string][]string
}

func userName(b []byte, i int) []byte { return fmt.Appendf(b, "user%07d", i) }

func (c *crowd) Scan(_ context.Context, fn func(*engine.Profile) error) error {
	var p engine.Profile
	for i := range c.n {
		p = engine.Profile{User: string(userName(nil, i)), Version: 1}
		switch i % 100 {
		case 7, 42, 77:
			p.OptOut = []string{"marketing"}
		case 3:
			p.QuietHours, p.TimeZone = &engine.QuietHours{From: "22:00", To: "07:00"}, "Europe/Berlin"
		}
		if c.address != nil {
			p.Addresses = c.address(i)
		}
		if err := fn(&p); err != nil {
			return err
		}
	}
	return nil
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// names are users in random order, with their hashes, as a worker meets them.
func names(n int) (users [][]byte, hashes []uint64) {
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		u := userName(nil, r.IntN(benchUsers))
		users, hashes = append(users, u), append(hashes, notify.HashUser(u))
	}
	return users, hashes
}

// 5M users, of whom 4% set something.
func BenchmarkDecide(b *testing.B) {
	s := loaded(b, &crowd{store: newStore(), n: benchUsers})
	users, hashes := names(1 << 17)
	plain := make([]int, 0, len(users)) // users without an exception
	for i := range users {
		if _, ok := s.snap.rules.table.get(hashes[i], users[i]); !ok {
			plain = append(plain, i)
		}
	}
	run := func(name string, order []int) {
		b.Run(name, func(b *testing.B) {
			stopped, n := 0, 0
			for b.Loop() {
				for _, i := range order {
					if v := s.snap.Decide(hashes[i], users[i], notify.Push, notify.Marketing, noon); v.Action != Send {
						stopped++
					}
				}
				n += len(order)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/user")
			b.ReportMetric(float64(stopped)/float64(n), "stopped")
		})
	}
	all := make([]int, len(users))
	for i := range all {
		all[i] = i
	}
	run("no-exception", plain)
	run("mixed", all)
}

// 5M users with one address of 64 bytes.
func BenchmarkAddresses(b *testing.B) {
	before := heap()
	at := time.Now()
	s := loaded(b, &crowd{store: newStore(), n: benchUsers, address: func(i int) map[string][]string {
		return map[string][]string{"push": {fmt.Sprintf("fcm:%060d", i)}}
	}})
	took := time.Since(at)
	perUser := float64(heap()-before) / benchUsers
	users, hashes := names(1 << 17)
	var dst []notify.Target
	run := func(name string, fn func(from int)) {
		b.Run(name, func(b *testing.B) {
			n, sum := 0, 0
			for b.Loop() {
				for from := 0; from < len(users); from += 64 {
					fn(from)
					for i := range dst {
						sum += int(dst[i].Address[63])
					}
				}
				n += len(users)
			}
			if sum == 0 || len(dst) != 64 {
				b.Fatal("nothing found")
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/user")
			b.ReportMetric(perUser, "B/user")
			b.ReportMetric(took.Seconds(), "load-s")
		})
	}
	one := func(from int) {
		dst = dst[:0]
		for i := from; i < from+64; i++ {
			dst = s.snap.AddressesHash(dst, hashes[i], users[i], notify.Push)
		}
	}
	run("one-by-one", one)
	run("touched", func(from int) {
		s.snap.Touch(hashes[from : from+64])
		one(from)
	})
}

func BenchmarkPut(b *testing.B) {
	s := loaded(b, &crowd{store: newStore(), n: 200_000})
	i := 0
	for b.Loop() {
		i++
		_, err := s.Put(b.Context(), engine.Profile{User: string(userName(nil, i%200_000)), OptOut: []string{"push"}})
		must(b, err)
	}
}

func BenchmarkCancelled(b *testing.B) {
	c, err := NewCancels(&cancelStore{}, Config{})
	must(b, err)
	envs := make([]*notify.Envelope, 1024)
	for i := range envs {
		envs[i] = &notify.Envelope{Chunk: notify.Chunk{Base: notify.NewBase(noon)}, Fan: true, Campaign: "cmp_" + notify.NewBase(noon).String()}
	}
	run := func(name string) {
		b.Run(name, func(b *testing.B) {
			i := 0
			for b.Loop() {
				if i++; c.Cancelled(envs[i%1024], uint32(i)) {
					b.Fatal("cancelled")
				}
			}
		})
	}
	run("empty")
	for range 1000 {
		must(b, c.Put(b.Context(), notify.ID{Base: notify.NewBase(noon), Index: 3, Fan: true}.String(), "c", noon))
	}
	run("1000")
}
