package history

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/notify"
)

// powerLoss writes, seals and merges. It copies the disk as a loss of power would leave it
// before some change of the file system, and starts from the copy, with a log trimmed to the
// offsets that were reported as sealed.
func powerLoss(seed uint64, broken func(op string) bool) error {
	r := rng(seed)
	mem := newMem()
	m := newModel(4)
	var mu sync.Mutex // hook: the sealer and the appender
	var s *Store
	var crashed *vfs.MemFS
	var sealed map[Part]int64
	left := 1 + r.IntN(120)
	ffs := &faultFS{FS: mem}
	percent := []int{0, 50, 100}[r.IntN(3)]
	ffs.hook = func(op, name string) error {
		mu.Lock()
		defer mu.Unlock()
		if left--; left == 0 && s != nil {
			sealed = s.Sealed()
			crashed = mem.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: r})
		}
		if broken(op) {
			return errSkip
		}
		return nil
	}
	cfg := Config{Dir: "/h", FS: skipFS{ffs}, SegmentReceivers: 12, BufferBytes: 200, MergeCount: 3}
	opened, stop, err := runStore(cfg)
	if err != nil {
		return err
	}
	defer stop()
	mu.Lock()
	s = opened
	mu.Unlock()
	wr := rng(seed + 1)
	for i := 0; ; i++ {
		mu.Lock()
		done := crashed != nil
		mu.Unlock()
		if done {
			break
		}
		if err := s.Append(context.Background(), m.write(wr)); err != nil {
			return err
		}
		if i%20 == 19 {
			if _, err := s.mergeOnce(context.Background()); err != nil {
				return err
			}
		}
	}
	if err := stop(); err != nil {
		return err
	}
	again, stop2, err := runStore(Config{Dir: "/h", FS: memFS{crashed}, SegmentReceivers: 12, BufferBytes: 200, MergeCount: 3})
	if err != nil {
		return err
	}
	defer stop2()
	for tp, off := range sealed {
		if got := again.Resume()[tp]; got < off {
			return fmt.Errorf("%v: %d was said to be sealed, the start resumes at %d", tp, off, got)
		}
	}
	if err := m.feed(again); err != nil {
		return err
	}
	return m.check(again, 3)
}

// errSkip makes skipFS answer well without doing anything: a broken build.
var errSkip = errors.New("skipped")

type skipFS struct{ *faultFS }

type skipFile struct{ File }

func (f skipFS) Create(name string) (File, error) {
	file, err := f.faultFS.Create(name)
	return skipFile{file}, err
}
func (f skipFS) SyncDir(dir string) error {
	if err := f.faultFS.SyncDir(dir); !errors.Is(err, errSkip) {
		return err
	}
	return nil
}
func (f skipFile) SyncData() error {
	if err := f.File.SyncData(); !errors.Is(err, errSkip) {
		return err
	}
	return nil
}

func TestPowerLoss(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		if err := powerLoss(seed, func(string) bool { return false }); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// The test above must see it when a sync is left out.
func TestPowerLossCatchesMissingSyncs(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"sync", "syncdir"} {
		caught := 0
		for seed := range uint64(60) {
			if powerLoss(seed, func(o string) bool { return o == op }) != nil {
				caught++
			}
		}
		if caught == 0 {
			t.Errorf("a build without %s passes", op)
		}
		t.Logf("without %s: %d of 60 fail", op, caught)
	}
}

// Only OFFSETS holds the offsets of partitions without chunks. Whenever the power fails,
// everything that was reported as sealed, and may thus be trimmed from the log, is there.
func TestOffsetsSurvivePowerLoss(t *testing.T) {
	t.Parallel()
	mem := newMem()
	var s *Store
	type cut struct {
		disk   *vfs.MemFS
		sealed map[Part]int64
		op     string
	}
	var cuts []cut
	take := func(op string) {
		cuts = append(cuts, cut{mem.fs.CrashClone(vfs.CrashCloneCfg{}), s.Sealed(), op})
	}
	ffs := &faultFS{FS: mem, hook: func(op, _ string) error {
		if s != nil {
			take(op)
		}
		return nil
	}}
	opened, err := Open(Config{Dir: "/h", FS: ffs, SegmentAge: time.Nanosecond}) // not run: the test seals
	must(t, err)
	s = opened
	const rounds = 4
	for i := range int64(rounds) {
		must(t, s.Append(t.Context(), Record{Topic: topic, Offset: i, Value: []byte("junk"), Time: now}))
		for range 2 { // the first look only starts the clock
			must(t, s.sealEmpty())
		}
	}
	take("end")
	if got := s.Sealed()[Part{topic, 0}]; got != rounds {
		t.Fatalf("sealed up to %d, want %d", got, rounds)
	}
	for _, c := range cuts {
		again, stop, err := runStore(Config{Dir: "/h", FS: memFS{c.disk}})
		if err != nil {
			t.Fatalf("before %s: %v", c.op, err)
		}
		for tp, off := range c.sealed {
			if got := again.Resume()[tp]; got < off {
				t.Errorf("power lost before %s: %v was sealed up to %d, the start resumes at %d", c.op, tp, off, got)
			}
		}
		must(t, stop())
	}
	must(t, s.Close())
}

// A full disk refuses, and works again when there is room; a failed sync is
// final.
func TestWriteAndSyncErrors(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	fail := map[string]error{}
	writes := 0
	ffs := &faultFS{FS: newMem(), hook: func(op, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		err := fail[op]
		// The disk gets room again by itself. If the sealer meets the full disk, Append does not
		// fail but waits for the sealer.
		if op == "write" && err != nil {
			if writes++; writes%3 == 0 {
				fail[op] = nil
			}
		}
		return err
	}}
	set := func(op string, err error) {
		mu.Lock()
		defer mu.Unlock()
		fail[op] = err
	}
	s, stop, err := runStore(Config{Dir: "/h", FS: ffs, SegmentReceivers: 8, BufferBytes: 100})
	must(t, err)
	m := newModel(3)
	r := rng(9)
	full := errors.New("no space left on device")
	refused := 0
	for i := range 200 {
		if i%50 == 10 {
			set("write", full)
		}
		rec := m.write(r)
		err := s.Append(t.Context(), rec)
		for tries := 0; err != nil; tries++ {
			if tries > 10 || notify.KindOf(err) != notify.KindUnavailable || !errors.Is(err, full) {
				t.Fatal(err)
			}
			refused++
			if cerr := m.checkFound(s); cerr != nil {
				t.Fatal(cerr)
			}
			set("write", nil)
			err = s.Append(t.Context(), rec)
		}
	}
	set("write", nil)
	if refused == 0 {
		t.Fatal("a full disk was never noticed")
	}
	must(t, m.check(s, 3))

	set("sync", errors.New("input/output error"))
	for range 10_000 { // a tail of 8 receivers is sealed, and so synced, within a few
		if err = s.Append(t.Context(), m.write(r)); err != nil {
			break
		}
	}
	if notify.KindOf(err) != notify.KindUnavailable {
		t.Fatal(err)
	}
	set("sync", nil)
	if err := s.Append(t.Context(), m.write(r)); err == nil {
		t.Fatal("went on after a failed sync")
	}
	if err := stop(); notify.KindOf(err) != notify.KindUnavailable {
		t.Fatalf("run returned %v", err)
	}
}

// checkFound searches for everything that was fed completely: all but the last record.
func (m *logModel) checkFound(s *Store) error {
	for p, recs := range m.recs {
		next := s.partOf(Part{topic, int32(p)}).appendedTo.Load()
		var env notify.Envelope
		for _, rec := range recs[:next] {
			if notify.DecodeEnvelope(rec.Value, &env) != nil || env.Derived() {
				continue
			}
			rd, r := notify.ReadReceivers(env.Receivers), notify.Receiver{}
			for rd.Next(&r) {
				if f, err := s.Find(context.Background(), env.ID(r.Index)); err != nil || string(f.User) != string(r.User) {
					return fmt.Errorf("%v: %w", env.ID(r.Index), err)
				}
			}
		}
	}
	return nil
}

// If a crash comes between a merge and the removal of the merged segments, the next start
// removes them.
func TestMergeCutBeforeCleanUp(t *testing.T) {
	t.Parallel()
	ffs := &faultFS{FS: newMem(), hook: func(op, _ string) error {
		if op == "remove" {
			return errors.New("cut")
		}
		return nil
	}}
	m, r := newModel(3), rng(5)
	s, stop, err := runStore(Config{Dir: "/h", FS: ffs, MergeCount: 4})
	must(t, err)
	for range 4 {
		for {
			rec := m.write(r)
			must(t, s.Append(t.Context(), rec))
			if rec.Partition == 0 && s.Stats().Tail > 0 {
				break
			}
		}
		sealNow(t, s)
	}
	before := s.Stats().Segments
	if _, err := s.mergeOnce(t.Context()); err == nil {
		t.Fatal("the removal was not cut")
	}
	must(t, stop())
	again, stop, err := runStore(Config{Dir: "/h", FS: ffs.FS})
	must(t, err)
	if got := again.Stats().Segments; got != before-3 {
		t.Errorf("%d segments after the start, of %d with 4 merged into one", got, before)
	}
	must(t, m.check(again, 2))
	must(t, stop())
}
