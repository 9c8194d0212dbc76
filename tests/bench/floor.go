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

// profileBytes is the memory that the snapshot of preferences needs for each user (pkg/users).
const profileBytes = 69

// floor measures the lowest cost of a receiver of P6 on this machine in this run. For each request,
// the floor scans the body once as JSON. For each receiver, it reads one random place in a table
// with as many profiles as the chain has. It writes as many bytes as the chain to two files, and
// fsyncs them, as the chain does with log and history. The chain also does HTTP, validation, order,
// claims, outcomes and the calls to the provider. The floor and the chain run in turns.
type floor struct {
	dir   string
	users uint64
	table []byte

	body      []byte  // body of a request of the chain
	receivers int     // number of receivers in that request
	written   float64 // bytes that the chain wrote to disks for each receiver
	nanos     float64 // processor time in ns per receiver in the best turn
}

// newFloor returns a floor whose table has as many profiles as there are users. The table is
// outside of the Go heap, because a larger heap would make the garbage collector run less often
// during the chain. The caller must call end.
func newFloor(dir string, users int) *floor {
	table := rig.Must(syscall.Mmap(-1, 0, users*profileBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE))
	for i := range table {
		// Write every page. Otherwise all pages would share one page of zeros.
		table[i] = byte(i)
	}
	return &floor{dir: dir, users: uint64(users), table: table}
}

func (f *floor) end() { rig.Ok(syscall.Munmap(f.table)) }

// keepRequest stores the body and the receiver count of r. The floor repeats this request.
func (f *floor) keepRequest(r *load.Request) { f.body, f.receivers = bytes.Clone(r.Body), r.Size }

// runTurn runs the floor on every processor for about the given time (length). If this turn was the
// best so far, it stores the cost of the turn in the field nanos.
func (f *floor) runTurn(ctx context.Context, length time.Duration) {
	if f.receivers == 0 {
		panic(errors.New("the floor has no request to repeat, because the chain has sent none"))
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

// work does the work of the floor for the kept request, again and again until the deadline. It
// returns the number of receivers. The names of its two files begin with the given prefix.
func (f *floor) work(prefix string, deadline time.Time) (receivers int64) {
	var files [2]*os.File // stand for log and history
	for i, name := range []string{"log", "history"} {
		files[i] = rig.Must(os.Create(prefix + name))
	}
	defer func() {
		for _, file := range files {
			_ = errors.Join(file.Close(), os.Remove(file.Name())) // the files are not needed any more
		}
	}()
	half := int(f.written / 2 * float64(f.receivers))
	out := make([]byte, half)
	var sum byte
	seed := maphash.MakeSeed()
	for turn := 0; time.Now().Before(deadline); turn++ {
		strings, valid := scan(f.body, func(s []byte) {
			sum ^= f.table[maphash.Bytes(seed, s)%f.users*profileBytes]
		})
		if !valid {
			panic(errors.New("the body of the chain's request is not valid JSON"))
		}
		if strings < f.receivers {
			panic(fmt.Errorf("the chain's request has %d receivers, but its JSON has only %d strings", f.receivers, strings))
		}
		copy(out, f.body)
		out[0] = sum
		for _, file := range files {
			// After 64 writes, overwrite the file from its start. That costs as much as appending.
			rig.Must(file.WriteAt(out, int64(turn%64*half)))
			rig.Ok(file.Sync())
		}
		receivers += int64(f.receivers)
	}
	return receivers
}

// scan calls visit with every string of a JSON text and returns the number of strings. The result
// ok is false if a string has no end, or contains a byte that JSON does not allow.
func scan(text []byte, visit func([]byte)) (strings int, ok bool) {
	from := -1
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '"' && from < 0:
			from = i + 1
		case c == '"':
			visit(text[from:i])
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

// sampled is a target that passes all requests on to another target. Before it passes on its first
// request, it calls the function in the field first with that request.
type sampled struct {
	load.Target
	once  sync.Once
	first func(*load.Request)
}

func (s *sampled) Send(ctx context.Context, r *load.Request) (load.Ack, error) {
	s.once.Do(func() { s.first(r) })
	return s.Target.Send(ctx, r)
}

// writtenBytes returns the number of bytes that this process has written to disks so far. It
// returns 0 if /proc/self/io cannot be read.
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
