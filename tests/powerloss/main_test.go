//go:build linux

package powerloss

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/tests/powerloss/lossfs"
)

// Environment variables that make the test binary run as a child process, which a test kills.
const (
	childEnv   = "POWERLOSS_BROKER"
	historyEnv = "POWERLOSS_HISTORY"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		fmt.Fprintln(os.Stderr, "broker:", beBroker(dir, os.Getenv(childEnv+"_DURABILITY")))
		os.Exit(1)
	}
	if dir := os.Getenv(historyEnv); dir != "" {
		fmt.Fprintln(os.Stderr, "history:", beHistory(dir))
		os.Exit(1)
	}
	var err error
	if binDir, err = os.MkdirTemp("", "notifyd-powerloss-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(binDir)
		if os.Getenv("POWERLOSS_SUMMARY") == "1" {
			fmt.Println(&total)
		}
		os.Exit(code)
	}))
}

var (
	background = context.Background()
	binDir     string // folder of the notifyd under test
	total      totals
)

// totals has sums over all tests in which no data may be lost.
type totals struct {
	mu                        sync.Mutex
	trials, cuts, acked, lost int
	duplicates, bound         int64
}

func (s *totals) add(cuts, acked, lost int, duplicates, bound int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trials = max(s.trials, cuts)
	s.cuts, s.acked, s.lost = s.cuts+cuts, s.acked+acked, s.lost+lost
	s.duplicates, s.bound = s.duplicates+duplicates, s.bound+bound
}

func (s *totals) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("powerloss trials=%d cuts=%d acknowledged=%d lost=%d duplicates=%d bound=%d",
		s.trials, s.cuts, s.acked, s.lost, s.duplicates, s.bound)
}

// mount mounts a new disk under a new folder. If this is not possible, it skips the test, or fails
// the test with NOTIFY_REQUIRE_FUSE=1.
func mount(t *testing.T, names lossfs.Names) (*lossfs.Disk, string) {
	t.Helper()
	if err := lossfs.Available(); err != nil {
		if os.Getenv("NOTIFY_REQUIRE_FUSE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	d := lossfs.New(names)
	dir, unmount := mountDisk(t, d)
	t.Cleanup(unmount)
	return d, dir
}

func mountDisk(t *testing.T, d *lossfs.Disk) (dir string, unmount func()) {
	t.Helper()
	dir = t.TempDir()
	u, err := d.Mount(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, func() {
		if err := u(); err != nil {
			t.Error(err)
		}
	}
}

func trials(t *testing.T, standard int) int {
	t.Helper()
	s := os.Getenv("POWERLOSS_TRIALS")
	if s == "" {
		return standard
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("POWERLOSS_TRIALS=%q", s)
	}
	return n
}

func seed(t *testing.T) *rand.Rand {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if v := os.Getenv("POWERLOSS_SEED"); v != "" {
		var err error
		if s, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("POWERLOSS_SEED=%d", s)
	return rand.New(rand.NewPCG(s, 0))
}

// torn returns the argument for Disk.Cut. For every second cut it returns rng, so that the cut
// keeps a random part of the unsynced data. For the other cuts it returns nil, so that the cut
// drops all unsynced data. Each kind of cut finds errors that the other kind hides.
func torn(trial int, rng *rand.Rand) *rand.Rand {
	if trial%2 == 0 {
		return nil
	}
	return rng
}
