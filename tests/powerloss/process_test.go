//go:build linux

package powerloss

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
	"github.com/notifyd/notifyd/tests/powerloss/lossfs"
)

// TestProcessKeepsItsPromises checks that every message that notifyd has acknowledged reaches a
// terminal state in spite of power cuts. All data of notifyd (log, store, history, keys) is on a
// disk that loses unsynced data. The ledger of the simulated providers is on an ordinary disk,
// because the test uses it as proof.
func TestProcessKeepsItsPromises(t *testing.T) {
	t.Parallel()
	cuts := trials(t, 4)
	r, later := runProcess(t, cuts, 5*time.Minute)
	if r.Accepted == 0 {
		t.Error("nothing was promised")
	}
	if r.Lost != 0 || r.Terminal != r.Accepted {
		t.Errorf("lost %d; %d of %d are terminal", r.Lost, r.Terminal, r.Accepted)
	}
	if r.Duplicates > r.Bound {
		t.Errorf("%d duplicates, the store knows of %d", r.Duplicates, r.Bound)
	}
	if r.Reordered != 0 || r.NoID != 0 {
		t.Errorf("%d reordered, %d calls without an id", r.Reordered, r.NoID)
	}
	if !later.Good() {
		t.Errorf("triggers and scheduled pushes: %+v", later)
	}
	total.add(cuts, int(r.Accepted), int(r.Lost), r.Duplicates, r.Bound)
}

// TestProcessWithoutFsyncIsCaught runs notifyd with a log that does not sync, and expects a loss.
// So it proves that TestProcessKeepsItsPromises can fail.
func TestProcessWithoutFsyncIsCaught(t *testing.T) {
	t.Parallel()
	r, _ := runProcess(t, 1, 10*time.Second, "--set", "log.sync=false")
	if r.Lost == 0 {
		t.Errorf("no loss was noticed: %+v", r)
	}
}

func runProcess(t *testing.T, cuts int, drain time.Duration, args ...string) (rig.Result, rig.LaterResult) {
	disk, mnt := mount(t, lossfs.WithFile)
	rng := seed(t)
	ctx := t.Context()
	dir := t.TempDir()
	out := t.Output()
	v, err := rig.New(ctx, rig.Config{Bin: notifyd(t), Dir: dir, Data: filepath.Join(mnt, "dev"), Args: args, Out: out})
	t.Cleanup(func() {
		v.End() // before the disk is unmounted
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(dir, "notifyd.log"))
			fmt.Fprintf(out, "the end of notifyd's log:\n%s\n", b[max(0, len(b)-4000):])
		}
	})
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(err)
	do(v.Faults(ctx))
	do(v.Start(ctx, ""))
	sent := v.Load(ctx, 200, 0, rng.Uint64())
	for k := range cuts {
		point := ""
		if k > 0 {
			if k%2 == 1 {
				point = rig.Point(rng)
			}
			do(v.Start(ctx, point))
		}
		how, err := v.Die(ctx, point, time.Duration(300+rng.IntN(1500))*time.Millisecond)
		do(err)
		loss := disk.Cut(torn(k, rng))
		fmt.Fprintf(out, "cut %d dropped %d pages and %d names, %s\n", k+1, loss.Pages, loss.Names, how)
	}
	do(v.Start(ctx, ""))
	promises, err := sent()
	do(err)
	r, err := v.Check(ctx, promises, drain)
	do(err)
	later, err := v.CheckLater(ctx, promises, drain)
	do(err)
	do(v.Stop())
	do(v.Rows(ctx, &r))
	fmt.Fprintf(out, "process cuts=%d %+v %+v\n", cuts, r, later)
	return r, later
}

var buildOnce = sync.OnceValues(func() (string, error) {
	return rig.Build(background, "../..", binDir, nil)
})

// notifyd returns the path of the notifyd binary. It builds the binary once for all tests.
func notifyd(t *testing.T) string {
	t.Helper()
	bin, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}
