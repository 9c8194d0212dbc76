package load

import (
	"cmp"
	"os"
	"runtime"
	"runtime/metrics"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// sampler reads figures of the generator's process and of its machine. A figure that /proc does not
// provide is 0.
type sampler struct {
	sampledAt time.Time
	cpu       time.Duration // CPU time of this process until the last sample
	gcCPU     float64       // CPU seconds of garbage collection until the last sample
	machine   machineSeconds
	pauses    []uint64 // counts of the histogram of GC pauses, at the last sample
	samples   []metrics.Sample
}

type machineSeconds struct{ total, idle, steal float64 } // seconds

func newSampler() *sampler {
	s := &sampler{samples: []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/sched/pauses/total/gc:seconds"}}}
	s.sample()
	return s
}

func processCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails only for a bad pointer
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sample returns the health since the previous call of sample.
func (s *sampler) sample() Health {
	now, cpu, machine := time.Now(), processCPU(), readMachine()
	metrics.Read(s.samples)
	h := Health{CPUs: float64(processors()), Goroutines: runtime.NumGoroutine(), RSS: readRSS(), Sockets: countSockets()}
	gc := s.samples[0].Value.Float64()
	if d := now.Sub(s.sampledAt).Seconds(); d > 0 && !s.sampledAt.IsZero() {
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
			h.GCPause = time.Duration(hist.Buckets[i] * 1e9) // lower bound of the bucket
			break
		}
	}
	s.pauses = append(s.pauses[:0], hist.Counts...)
	s.sampledAt, s.cpu, s.gcCPU, s.machine = now, cpu, gc, machine
	return h
}

// proc is /proc. On a machine without /proc every read fails, and the figures are 0.
var proc, _ = procfs.NewDefaultFS()

func readMachine() (t machineSeconds) {
	s, _ := proc.Stat()
	c := s.CPUTotal // User includes the guest times
	t.idle, t.steal = c.Idle+c.Iowait, c.Steal
	t.total = c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + t.idle + t.steal
	return t
}

func readRSS() int64 {
	self, _ := proc.Self()
	s, err := self.Stat()
	if err != nil {
		return 0
	}
	return int64(s.ResidentMemory())
}

// maxFiles is the highest number of open files that countSockets reads.
const maxFiles = 4096

func countSockets() (n int) {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0
	}
	defer d.Close()
	names, _ := d.Readdirnames(maxFiles) // on an error, count the names that were read
	for _, name := range names {
		if to, err := os.Readlink("/proc/self/fd/" + name); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// readEnvironment describes the machine and the Go runtime.
func readEnvironment() Environment {
	e := Environment{
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		CPUs: runtime.NumCPU(), MaxProcs: runtime.GOMAXPROCS(0), Collector: cmp.Or(os.Getenv("GOGC"), "100"),
	}
	e.Host, _ = os.Hostname() // stays empty if the host has no name
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		e.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	e.CPU = cpuModel()
	if m, err := proc.Meminfo(); err == nil && m.MemTotalBytes != nil {
		e.Memory = int64(*m.MemTotalBytes)
	}
	if l, err := proc.LoadAvg(); err == nil {
		e.Load = l.Load1
	}
	return e
}

// processors returns how many CPUs this process may use at once.
func processors() int { return min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) }
