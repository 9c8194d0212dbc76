package pebble

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/notifyd/notifyd/pkg/notify"
)

// hang is much longer than any call takes. A call that takes longer has hung.
const hang = time.Minute

// program runs rounds of every writer, one after the other, until one fails.
func program(ctx context.Context, s *Store, p *promises, rounds int) error {
	ws := writers()
	names := make([]string, 0, len(ws))
	for name := range ws {
		names = append(names, name)
	}
	slices.Sort(names)
	for n := range rounds {
		for _, name := range names {
			if err := ws[name](ctx, s, p, n); err != nil {
				return err
			}
		}
		// Enough to fill memtables: flushes, rotations of the log, compactions.
		big := testRow(1_000_000+n, 60_000)
		if err := s.Status().Put(ctx, []notify.Row{big}); err != nil {
			return err
		}
		p.add("big row", func(s *Store) error {
			got, err := s.Status().Get(ctx, []notify.RowKey{big.Key})
			return found(err == nil && got[0].Count == 1, err)
		})
	}
	return nil
}

// failAt runs the program on a disk that fails as inject says, and checks that
// an error never became an acknowledgement. It reports whether the store
// noticed anything.
func failAt(t *testing.T, inject errorfs.Injector, code string) (noticed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	mem := vfs.NewCrashableMem()
	s, err := Open(testConfig(errorfs.Wrap(mem, inject)))
	if err != nil {
		wantUnavailable(t, "open", err, "")
		return true
	}
	var p promises
	err = program(ctx, s, &p, 12)
	if err != nil {
		wantUnavailable(t, "write", err, code)
	}
	select {
	case <-s.Failed():
		noticed = true
		// The store must refuse writes for good, even if the disk works again.
		for name, write := range writers() {
			if err := write(ctx, s, &p, 1000); err == nil {
				t.Fatalf("%s was acknowledged after %v", name, s.Err())
			} else {
				wantUnavailable(t, name, err, code)
			}
		}
	default:
	}
	list := p.soFar()
	if ctx.Err() != nil {
		t.Fatalf("a call hung")
	}
	// Simulate a loss of power, then open the store on a disk that works.
	for _, percent := range []int{0, 50} {
		after := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(1, 2))})
		again := mustOpen(t, testConfig(after))
		if lost := broken(again, list); len(lost) > 0 {
			t.Fatalf("%d of %d promises broken, e.g. %s", len(lost), len(list), lost[0])
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		wantUnavailable(t, "close", err, "")
	}
	return noticed
}

func wantUnavailable(t *testing.T, what string, err error, code string) {
	t.Helper()
	e, ok := errors.AsType[*notify.Error](err)
	if !ok || e.Kind != notify.KindUnavailable || (code != "" && e.Code != code) {
		t.Fatalf("%s: error %v, want KindUnavailable %q", what, err, code)
	}
}

// onOp fails the operation with this number, and in mode forGood those after it
// that write.
func onOp(n int64, after fails, err error) (_ errorfs.Injector, count *atomic.Int64) {
	count = new(atomic.Int64)
	return errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch i := count.Add(1) - 1; {
		case i == n, i > n && after == forGood && op.Kind.ReadOrWrite() == errorfs.OpIsWrite:
			return err
		}
		return nil
	}), count
}

type fails int

const (
	once fails = iota
	forGood
)

// TestEveryFileError: if any operation of the file system fails, also while the store opens
// or reads, an error never becomes an acknowledgement.
func TestEveryFileError(t *testing.T) {
	t.Parallel()
	everyOp(t, once, syscall.EIO, "store")
}

// TestFullDisk: the same for a disk that is full from some operation on; it is
// called by its name.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	everyOp(t, forGood, syscall.ENOSPC, "store_full")
}

func everyOp(t *testing.T, mode fails, err error, code string) {
	t.Helper()
	step := int64(1)
	if testing.Short() || raceEnabled { // ten times slower
		step = 11
	}
	runs, noticed := 0, 0
	for n := int64(0); ; n += step {
		inject, count := onOp(n, mode, err)
		if failAt(t, inject, code) {
			noticed++
		}
		if runs++; count.Load() <= n { // the program was over before
			break
		}
	}
	t.Logf("%d failures, %d closed the store", runs, noticed)
	if noticed < runs/4 {
		t.Fatalf("only %d of %d failures closed the store", noticed, runs)
	}
}

// TestReadsGoOnAfterAFailure: the log cannot be synced any more; what was
// acknowledged can still be read.
func TestReadsGoOnAfterAFailure(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.HasSuffix(op.Path, ".log") {
			return syscall.EIO
		}
		return nil
	})
	s := mustOpen(t, testConfig(errorfs.Wrap(vfs.NewMem(), inject)))
	ctx := t.Context()
	row := testRow(1, 0)
	if err := s.Status().Put(ctx, []notify.Row{row}); err != nil {
		t.Fatal(err)
	}
	broken.Store(true)
	wantUnavailable(t, "put", s.Status().Put(ctx, []notify.Row{testRow(2, 0)}), "store")
	<-s.Failed()
	broken.Store(false) // a later sync that works proves nothing about the one that failed
	wantUnavailable(t, "put after", s.Status().Put(ctx, []notify.Row{testRow(3, 0)}), "store")
	got, err := s.Status().Get(ctx, []notify.RowKey{row.Key})
	if err != nil || got[0].Count != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	wantUnavailable(t, "close", s.Close(), "store")
}
