package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// profileBytes is what the snapshot of preferences keeps a user (pkg/users).
const profileBytes = 69

// floor is the least that a receiver of P6 costs on this machine at this hour: the
// bytes of its request are scanned once as JSON, a table of as many profiles is read at
// one place that is random, and as many bytes as the chain wrote are appended to two
// files that are fsynced, as log and history are. HTTP, validation, order, claims,
// outcomes and the provider are what P6 adds. It takes turns with the chain.
type floor struct {
	dir   string
	users uint64
	table []byte

	body      []byte  // of a request of the run
	receivers int     // of that request
	written   float64 // bytes a receiver, by the chain
	nanos     float64 // processor time a receiver; of the best turn
}

// newFloor keeps its table outside of the heap: a larger heap would make the garbage
// collector run less often during the chain. The caller ends it.
func newFloor(dir string, users int) *floor {
	table := rig.Must(syscall.Mmap(-1, 0, users*profileBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE))
	for i := range table {
		table[i] = byte(i) // pages that were never written read as one page of zeros
	}
	return &floor{dir: dir, users: uint64(users), table: table}
}

func (f *floor) end() { rig.Ok(syscall.Munmap(f.table)) }

// keep makes it the floor of requests like r.
func (f *floor) keep(r *load.Request) { f.body, f.receivers = bytes.Clone(r.Body), r.Size }

// turn runs the floor for a while on every processor.
func (f *floor) turn(ctx context.Context, length time.Duration) {
	if f.receivers == 0 {
		panic(errors.New("the floor knows no request of the chain"))
	}
	var total atomic.Int64
	began, used := time.Now(), cpu()
	rig.Together(ctx, runtime.GOMAXPROCS(0), func(_ context.Context, i int) {
		total.Add(f.work(filepath.Join(f.dir, fmt.Sprintf("floor-%d-", i)), began.Add(length)))
	})
	if nanos := float64(cpu()-used) / float64(total.Load()); f.nanos == 0 || nanos < f.nanos {
		f.nanos = nanos
	}
}

// work does the floor of one request after the other and returns how many receivers
// these had.
func (f *floor) work(prefix string, until time.Time) (receivers int64) {
	var files [2]*os.File // log and history
	for i, name := range []string{"log", "history"} {
		files[i] = rig.Must(os.Create(prefix + name))
	}
	defer func() {
		for _, file := range files {
			_ = errors.Join(file.Close(), os.Remove(file.Name())) // scratch
		}
	}()
	half := int(f.written / 2 * float64(f.receivers))
	out := make([]byte, half)
	var sum byte
	seed := maphash.MakeSeed()
	for turn := 0; time.Now().Before(until); turn++ {
		strings, at := scan(f.body, func(s []byte) {
			sum ^= f.table[maphash.Bytes(seed, s)%f.users*profileBytes]
		})
		if !at {
			panic(errors.New("the request of the chain is no JSON"))
		}
		if strings < f.receivers {
			panic(fmt.Errorf("%d strings in a request of %d receivers", strings, f.receivers))
		}
		copy(out, f.body)
		out[0] = sum
		for _, file := range files {
			// From the start again: overwritten bytes cost the same write.
			rig.Must(file.WriteAt(out, int64(turn%64*half)))
			rig.Ok(file.Sync())
		}
		receivers += int64(f.receivers)
	}
	return receivers
}

// scan calls each with every string of a JSON text and counts them. ok is false where a
// string does not end or has a byte that JSON does not allow in one.
func scan(text []byte, each func([]byte)) (strings int, ok bool) {
	from := -1
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '"' && from < 0:
			from = i + 1
		case c == '"':
			each(text[from:i])
			strings++
			from = -1
		case from < 0:
		case c == '\\':
			i++
		case c < 0x20:
			return strings, false
		}
	}
	return strings, from < 0
}

// sampled is a target that shows the first request sent to it.
type sampled struct {
	load.Target
	once  sync.Once
	first func(*load.Request)
}

func (s *sampled) Send(ctx context.Context, r *load.Request) (load.Ack, error) {
	s.once.Do(func() { s.first(r) })
	return s.Target.Send(ctx, r)
}

// writtenBytes is what this process has caused to be written to disks so far; 0 where
// /proc does not say.
func writtenBytes() float64 {
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), "\nwrite_bytes: ")
	line, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.ParseFloat(line, 64)
	return n
}
