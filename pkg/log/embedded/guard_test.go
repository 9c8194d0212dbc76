package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/notifyd/notifyd/pkg/notify"
)

func code(err error) string {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Kind == notify.KindUnavailable {
		return e.Code
	}
	return ""
}

func TestTrimStopsAtTheSafeOffset(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := open(t, Config{Dir: dir, Topics: map[string]int{"topic": 2}, SegmentBytes: 3000})
	b.fill(t, "topic", 0, 0, 30, 1000)
	b.fill(t, "topic", 1, 0, 30, 1000)
	before, err := dirSize(dir)
	if err != nil {
		t.Fatal(err)
	}
	trim := func(to int64) {
		t.Helper()
		if err := b.TrimOnce(map[string]map[int32]int64{"topic": {0: to}}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(from, n int64) {
		t.Helper()
		got := b.read(t, "topic", 0)
		if len(got) != int(n) || got[0] != from {
			t.Fatalf("log holds %v, want %d from %d", got, n, from)
		}
	}
	trim(0)
	expect(0, 30)
	trim(17)
	expect(17, 13)
	trim(9) // never back
	expect(17, 13)
	if after, err := dirSize(dir); err != nil || before-after < 12_000 {
		t.Fatalf("%d bytes, were %d: %v", after, before, err)
	}
	trim(30) // all of it is safe, but the last record carries the end
	expect(29, 1)
	trim(1000)
	expect(29, 1)
	if got := b.read(t, "topic", 1); len(got) != 30 {
		t.Fatalf("the other partition lost records: %v", got)
	}
}

// The broker rebuilds a partition's end from its files. Were all of them
// trimmed, the partition would begin at 0 again after a kill, and a group that
// had committed 30 would not see the next 30 records.
func TestEndSurvivesTrimAndKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := open(t, Config{Dir: dir, Topics: map[string]int{"topic": 1}, SegmentBytes: 1000})
	b.fill(t, "topic", 0, 0, 30, 1000)
	if err := b.TrimOnce(map[string]map[int32]int64{"topic": {0: 30}}); err != nil {
		t.Fatal(err)
	}
	b = open(t, Config{Dir: crash(t, dir), StoreID: b.StoreID()})
	b.fill(t, "topic", 0, 30, 1, 100)
	if got := b.read(t, "topic", 0); got[len(got)-1] != 30 {
		t.Fatalf("log holds %v, want 30 last", got)
	}
}

func TestCapAnswersLogFullUntilTrimmed(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir(), Topics: map[string]int{"topic": 1}, SegmentBytes: 10_000, CapBytes: 100_000})
	g := b.Guard()
	if err := g.Err(); err != nil {
		t.Fatal(err)
	}
	n, bulk := 0, 0 // bulk lanes leave the last eighth to others
	for ; g.Err() == nil && n < 200; n++ {
		if g.Bulk() == nil {
			bulk++
		}
		b.fill(t, "topic", 0, n, 1, 1000)
		g.Appended(1000)
	}
	if code(g.Err()) != "log_full" || n < 80 || n > 100 {
		t.Fatalf("%v after %d records of 1000 bytes", g.Err(), n)
	}
	if code(g.Bulk()) != "log_full" || n-bulk < 10 || n-bulk > 15 {
		t.Fatalf("%v: bulk lanes got %d of %d records", g.Bulk(), bulk, n)
	}
	if err := b.measure(); err != nil || code(g.Err()) != "" && g.Usage().LogBytes < 100_000 {
		t.Fatalf("measured %+v: %v", g.Usage(), err)
	}
	for most := n + 200; g.Err() == nil; n++ { // overheads made the estimate high or low
		if n == most {
			t.Fatalf("not full after %d records of 1000 bytes: %+v", n, g.Usage())
		}
		b.fill(t, "topic", 0, n, 1, 1000)
		if err := b.measure(); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.TrimOnce(map[string]map[int32]int64{"topic": {0: int64(n)}}); err != nil {
		t.Fatal(err)
	}
	if err := b.measure(); err != nil || g.Err() != nil {
		t.Fatalf("after trimming: %v, %v, %+v", err, g.Err(), g.Usage())
	}
}

// Every partition keeps its open segment: together they must leave room below
// the cap, or a log whose records are all consumed would be full for ever.
func TestOpenSegmentsFitTheCap(t *testing.T) {
	t.Parallel()
	const partitions, size = 40, 20 << 20
	b := open(t, Config{Dir: t.TempDir(), Topics: map[string]int{"topic": partitions}, CapBytes: size, Durability: PageCache})
	for p := range int32(partitions) {
		b.fill(t, "topic", p, 0, 12, 50_000)
	}
	safe := map[string]map[int32]int64{"topic": {}}
	for p := range int32(partitions) {
		safe["topic"][p] = 12
	}
	if err := b.measure(); err != nil || code(b.Guard().Err()) != "log_full" {
		t.Fatalf("%v, %+v", err, b.Guard().Usage())
	}
	if err := b.TrimOnce(safe); err != nil {
		t.Fatal(err)
	}
	if err := b.measure(); err != nil || b.Guard().Err() != nil {
		t.Fatalf("%v, %+v", err, b.Guard().Usage())
	}
}

func TestDiskTrouble(t *testing.T) {
	t.Parallel()
	f := func(want string, do func(b *Broker)) {
		t.Helper()
		b := open(t, Config{Dir: t.TempDir()})
		do(b)
		if err := b.Guard().Err(); code(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
		// What goes by itself, and what stays.
		if err := b.measure(); err != nil {
			t.Fatal(err)
		}
		if want == "disk_full" {
			want = ""
		}
		if err := b.Guard().Err(); code(err) != want {
			t.Errorf("then %v, want %q", err, want)
		}
	}
	f("disk_error", func(b *Broker) { b.Guard().probe(badFile{sync: syscall.EIO}) })
	f("disk_error", func(b *Broker) {
		b.Guard().probe(badFile{sync: syscall.EIO})
		b.Guard().probe(badFile{}) // the kernel reports an error once
	})
	f("disk_error", func(b *Broker) { b.Guard().probe(badFile{write: io.ErrShortWrite}) })
	f("disk_full", func(b *Broker) { b.Guard().probe(badFile{write: &os.PathError{Err: syscall.ENOSPC}}) })
	f("disk_error", func(b *Broker) { b.watch.Logf(kfake.LogLevelWarn, "persist batch %s-%d: %v", "t", 1, syscall.EIO) })
	f("disk_full", func(b *Broker) { b.watch.Logf(kfake.LogLevelWarn, "persist batch %s-%d: %v", "t", 1, syscall.ENOSPC) })
	f("", func(b *Broker) { b.watch.Logf(kfake.LogLevelDebug, "saved %v", syscall.EIO) })
	f("disk_error", func(b *Broker) {
		b.watch.Logf(kfake.LogLevelError, "whatever it is called: %v", &os.PathError{Op: "write", Path: "0.dat", Err: os.ErrClosed})
	})
	f("", func(b *Broker) {
		b.watch.Logf(kfake.LogLevelWarn, "an entry that cannot be read: %v", errors.New("bad JSON"))
	})

	b := open(t, Config{Dir: t.TempDir(), MinFreeBytes: 1 << 60})
	if err := b.Guard().Err(); code(err) != "disk_full" {
		t.Errorf("%v, want disk_full", err)
	}
}

type badFile struct{ write, sync error }

func (f badFile) WriteAt(p []byte, _ int64) (int, error) { return len(p), f.write }
func (f badFile) Sync() error                            { return f.sync }

// A failed append of the broker itself must reach the guard: the library must log its
// error as a value.
func TestFailedWriteOfTheBrokerIsSeen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := open(t, Config{Dir: dir, Topics: map[string]int{"topic": 1}})
	folder := filepath.Join(dir, "partitions", "topic-0")
	err := os.MkdirAll(filepath.Dir(folder), 0o700)
	if err == nil {
		err = os.RemoveAll(folder)
	}
	if err == nil {
		err = os.WriteFile(folder, nil, 0o600) // in the way of the partition
	}
	if err != nil {
		t.Fatal(err)
	}
	cl := b.client(t)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	over := make(chan struct{}) // the client tries again until then
	go func() {
		defer close(over)
		_ = cl.ProduceSync(ctx, record("topic", "x"))
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for b.Guard().Err() == nil && ctx.Err() == nil {
		<-tick.C
	}
	stop()
	<-over
	if err := b.Guard().Err(); code(err) != "disk_error" {
		t.Fatalf("%v, want disk_error", err)
	}
}

func TestRunMeasuresAndTrims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := Virtual(map[string]int{"topic": 1})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		b.guard.cap = 50_000
		done := make(chan error, 2)
		ctx, stop := context.WithCancel(t.Context())
		go func() { done <- b.Run(ctx) }()
		go func() {
			done <- b.Trim(ctx, func() map[string]map[int32]int64 { return map[string]map[int32]int64{"topic": {0: 60}} })
		}()
		b.fill(t, "topic", 0, 0, 60, 1000)
		time.Sleep(600 * time.Millisecond)
		if err := b.Guard().Err(); code(err) != "log_full" {
			t.Errorf("%v, want log_full", err)
		}
		time.Sleep(time.Second)
		if err := b.Guard().Err(); err != nil {
			t.Error(err)
		}
		stop()
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
	})
}

// Descriptors that ran out are no failure of the disk: the log goes on when there are
// some again.
func TestMeasuringWithoutDescriptors(t *testing.T) {
	t.Parallel()
	f := func(err error, want string) {
		t.Helper()
		g := newGuard(Config{}.withDefaults())
		disk := g.measureFailed(fmt.Errorf("embedded log: measuring: %w", &os.PathError{Op: "open", Path: "log", Err: err}))
		if got := code(g.Err()); got != want || disk != (want != "") {
			t.Errorf("%v: %q, of the disk: %v; want %q", err, got, disk, want)
		}
	}
	f(syscall.EMFILE, "")
	f(syscall.ENFILE, "")
	f(syscall.ENOMEM, "")
	f(syscall.EIO, "disk_error")
	f(syscall.EROFS, "disk_error")
	f(syscall.EACCES, "disk_error")
}
