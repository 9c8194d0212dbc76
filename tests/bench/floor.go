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
	"syscall"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
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
func newFloor(dir string, users int) (*floor, error) {
	table, err := syscall.Mmap(-1, 0, users*profileBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("the floor's table: %w", err)
	}
	for i := range table {
		table[i] = byte(i) // pages that were never written read as one page of zeros
	}
	return &floor{dir: dir, users: uint64(users), table: table}, nil
}

func (f *floor) end() error { return syscall.Munmap(f.table) }

// turn runs the floor for a while on every processor.
func (f *floor) turn(length time.Duration) error {
	if f.receivers == 0 {
		return errors.New("the floor knows no request of the chain")
	}
	var total int64
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	began, used := time.Now(), cpu()
	for i := range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			n, err := f.work(filepath.Join(f.dir, fmt.Sprintf("floor-%d-", i)), began.Add(length))
			mu.Lock()
			defer mu.Unlock()
			total += n
			errs = append(errs, err)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if nanos := float64(cpu()-used) / float64(total); f.nanos == 0 || nanos < f.nanos {
		f.nanos = nanos
	}
	return nil
}

// work does the floor of one request after the other and returns how many receivers
// these had.
func (f *floor) work(prefix string, until time.Time) (receivers int64, err error) {
	var files [2]*os.File // log and history
	for i, name := range []string{"log", "history"} {
		if files[i], err = os.Create(prefix + name); err != nil {
			return 0, err
		}
	}
	defer func() {
		for _, file := range files {
			err = errors.Join(err, file.Close(), os.Remove(file.Name()))
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
			return 0, errors.New("the request of the chain is no JSON")
		}
		if strings < f.receivers {
			return 0, fmt.Errorf("%d strings in a request of %d receivers", strings, f.receivers)
		}
		copy(out, f.body)
		out[0] = sum
		for _, file := range files {
			// From the start again: overwritten bytes cost the same write.
			if _, err := file.WriteAt(out, int64(turn%64*half)); err != nil {
				return 0, err
			}
			if err := file.Sync(); err != nil {
				return 0, err
			}
		}
		receivers += int64(f.receivers)
	}
	return receivers, nil
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

// sampled is a target of the chain; the floor keeps the first request sent to it.
type sampled struct {
	load.Target
	once sync.Once
	f    *floor
}

func (s *sampled) Send(ctx context.Context, r *load.Request) (load.Ack, error) {
	s.once.Do(func() { s.f.body, s.f.receivers = bytes.Clone(r.Body), r.Size })
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
