package main

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cpu returns the processor time that this process has used so far, in user and system mode.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails only for an invalid pointer
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// rss returns the resident memory of this process in MiB, or 0 if /proc cannot be read.
func rss() float64 {
	b, err := os.ReadFile("/proc/self/statm")
	f := strings.Fields(string(b))
	if err != nil || len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseFloat(f[1], 64)
	return pages * float64(os.Getpagesize()) / (1 << 20)
}

// span is a measurement of time and processor time. The method bench.span begins it, and the method
// cores ends it.
type span struct {
	began time.Time
	cpu   time.Duration
	stop  func()
}

// span begins a measurement. With -profile it also writes profiles, in files whose names begin with
// the given name. The caller must call the method cores.
func (b *bench) span(name string) *span {
	s := &span{stop: func() {}}
	if b.profile != "" {
		s.stop = b.profiles(name)
	}
	s.began, s.cpu = time.Now(), cpu()
	return s
}

// cores ends the measurement. It returns how many cores this process used on average, and how long
// the measurement took.
func (s *span) cores() (cores float64, took time.Duration) {
	took = time.Since(s.began)
	cores = float64(cpu()-s.cpu) / float64(took)
	s.stop()
	return cores, took
}

func (b *bench) profiles(name string) (stop func()) {
	if os.MkdirAll(b.profile, 0o755) != nil {
		return func() {}
	}
	f, err := os.Create(filepath.Join(b.profile, name+".cpu"))
	if err != nil {
		return func() {}
	}
	runtime.SetBlockProfileRate(int(time.Millisecond))
	runtime.SetMutexProfileFraction(100)
	_ = pprof.StartCPUProfile(f) // fails if a CPU profile is already running
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
		for _, kind := range []string{"allocs", "block", "mutex"} {
			if f, err := os.Create(filepath.Join(b.profile, name+"."+kind)); err == nil {
				_ = pprof.Lookup(kind).WriteTo(f, 0)
				_ = f.Close()
			}
		}
		runtime.SetBlockProfileRate(0)
		runtime.SetMutexProfileFraction(0)
	}
}
