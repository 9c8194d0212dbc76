package load

import (
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sampler reads how the generator's process and machine are doing. What /proc
// does not say is 0.
type sampler struct {
	at      time.Time
	cpu     time.Duration // of this process
	gcCPU   float64       // seconds
	machine machineTimes
	pauses  []uint64 // counts of the pause histogram
	samples []metrics.Sample
}

type machineTimes struct{ total, idle, steal float64 } // ticks

func newSampler() *sampler {
	s := &sampler{samples: []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/sched/pauses/total/gc:seconds"}}}
	s.sample()
	return s
}

func processCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for a bad pointer only
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sample returns the health since the last sample.
func (s *sampler) sample() Health {
	now, cpu, machine := time.Now(), processCPU(), readMachine()
	metrics.Read(s.samples)
	h := Health{CPUs: float64(processors()), Goroutines: runtime.NumGoroutine(), RSS: readRSS(), Sockets: countSockets()}
	gc := s.samples[0].Value.Float64()
	if d := now.Sub(s.at).Seconds(); d > 0 && !s.at.IsZero() {
		h.CPU = (cpu - s.cpu).Seconds() / d
		h.GCCPU = (gc - s.gcCPU) / d
	}
	if total := machine.total - s.machine.total; total > 0 && s.machine.total > 0 {
		h.Steal = (machine.steal - s.machine.steal) / total
		h.MachineCPU = float64(runtime.NumCPU()) * (1 - (machine.idle-s.machine.idle)/total)
	}
	hist := s.samples[1].Value.Float64Histogram()
	for i := len(hist.Counts) - 1; i >= 0; i-- {
		if i < len(s.pauses) && hist.Counts[i] > s.pauses[i] {
			h.GCPause = time.Duration(hist.Buckets[i] * 1e9) // its lower bound
			break
		}
	}
	s.pauses = append(s.pauses[:0], hist.Counts...)
	s.at, s.cpu, s.gcCPU, s.machine = now, cpu, gc, machine
	return h
}

func readMachine() (t machineTimes) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line)[1:] {
		v, _ := strconv.ParseFloat(f, 64)
		if i < 8 { // guest times are part of user's
			t.total += v
		}
		switch i {
		case 3, 4:
			t.idle += v
		case 7:
			t.steal = v
		}
	}
	return t
}

func readRSS() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	f := strings.Fields(string(b))
	if err != nil || len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// countSockets looks at so many files of the process at most.
const maxFiles = 4096

func countSockets() (n int) {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0
	}
	defer d.Close()
	names, _ := d.Readdirnames(maxFiles) // what was read counts
	for _, name := range names {
		if to, err := os.Readlink("/proc/self/fd/" + name); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// readEnvironment describes the machine.
func readEnvironment() Environment {
	e := Environment{
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		CPUs: runtime.NumCPU(), MaxProcs: runtime.GOMAXPROCS(0), Collector: or(os.Getenv("GOGC"), "100"),
	}
	e.Host, _ = os.Hostname() // without one it stays empty
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		e.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(b), "model name"); ok {
			line, _, _ := strings.Cut(rest, "\n")
			e.CPU = strings.TrimSpace(strings.TrimLeft(line, "\t: "))
		}
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		if f := strings.Fields(string(b)); len(f) > 1 {
			kb, _ := strconv.ParseInt(f[1], 10, 64)
			e.Memory = kb << 10
		}
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		one, _, _ := strings.Cut(string(b), " ")
		e.Load, _ = strconv.ParseFloat(one, 64)
	}
	return e
}

// processors is how many of the machine's this process may use at once.
func processors() int { return min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) }
