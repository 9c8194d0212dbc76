package users

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

func (c *crowd) Scan(_ context.Context, _ []int, fn func(*engine.Profile) error) error {
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
		users, hashes = append(users, u), append(hashes, hashKey(u))
	}
	return users, hashes
}

// 5M users with one address of 64 bytes; 4% of them have preferences. The addresses are tokens of
// APNs, which are kept in half the bytes, and others.
func BenchmarkLook(b *testing.B) {
	for _, form := range []string{"apns:%059x", "fcm:%060d"} {
		b.Run(form[:strings.IndexByte(form, ':')], func(b *testing.B) { benchLook(b, form) })
	}
}

func benchLook(b *testing.B, form string) {
	before := heap()
	at := time.Now()
	s := loaded(b, &crowd{store: newStore(), n: benchUsers, address: func(i int) map[string][]string {
		return map[string][]string{"push": {fmt.Sprintf(form, i)}}
	}})
	took := time.Since(at)
	perUser := float64(heap()-before) / benchUsers
	users, hashes := names(1 << 20) // more than the caches hold
	const window = 1024
	var answers [window]Answer
	var targets []notify.Target
	var copied []byte
	run := func(name string, fn func(from int)) {
		b.Run(name, func(b *testing.B) {
			n, stopped, sum := 0, 0, 0
			began := cpuTime()
			for b.Loop() {
				for from := 0; from < len(users); from += window {
					fn(from)
					targets, copied = targets[:0], copied[:0]
					for i := range answers {
						if answers[i].Action != Send {
							stopped++
						}
						targets, copied = answers[i].Targets(targets, copied)
						sum += int(targets[i].Address[63])
					}
				}
				n += len(users)
			}
			if sum == 0 {
				b.Fatal("nothing found")
			}
			b.ReportMetric(float64((cpuTime()-began).Nanoseconds())/float64(n), "cpu-ns/user")
			b.ReportMetric(float64(stopped)/float64(n), "stopped")
			b.ReportMetric(perUser, "B/user")
			b.ReportMetric(took.Seconds(), "load-s")
		})
	}
	run("one-by-one", func(from int) {
		for i := range answers {
			v, _ := s.snap.users.get(hashes[from+i], users[from+i])
			s.snap.decodeAnswer(&answers[i], v, notify.Push, notify.Marketing, noon)
		}
	})
	run("together", func(from int) {
		s.snap.DecideMany(answers[:], users[from:from+window], notify.Push, notify.Marketing, noon)
	})
}

// cpuTime is the processor time of this process, which other work on the machine
// changes less than it does the clock's.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
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
		envs[i] = &notify.Envelope{Chunk: notify.Chunk{Base: notify.NewBase(noon)}, FanOut: true, Campaign: "cmp_" + notify.NewBase(noon).String()}
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
		must(b, c.Put(b.Context(), notify.ID{Base: notify.NewBase(noon), Index: 3, FanOut: true}.String(), "c", noon))
	}
	run("1000")
}
