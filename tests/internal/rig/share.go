package rig

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A group gets its share anew every period, and stands still in between once it is used
// up. The kernel gives no less than leastQuota. The period is as short as that allows:
// a process that stands still for longer misses the deadlines of its calls to servers.
const (
	leastQuota  = time.Millisecond
	leastPeriod = 20 * time.Millisecond
)

// Share is a control group that limits its processes to a share of one core, even on an idle
// machine.
type Share struct{ dir string }

// NewShare makes the group of a name. It takes root, or a control group that was delegated
// to the user; version 1 and version 2 are known. It returns an error where the kernel lets
// no group be made. Remove must be called.
func NewShare(name string, cores float64) (*Share, error) {
	period := max(leastPeriod, time.Duration(float64(leastQuota)/cores))
	quota := strconv.FormatInt(int64(math.Ceil(cores*float64(period.Microseconds()))), 10)
	each := strconv.FormatInt(period.Microseconds(), 10)
	first := "/sys/fs/cgroup"
	files := map[string]string{"cpu.max": quota + " " + each}
	if b, err := os.ReadFile(filepath.Join(first, "cgroup.controllers")); err != nil || !strings.Contains(string(b), "cpu") {
		first = "/sys/fs/cgroup/cpu"
		files = map[string]string{"cpu.cfs_period_us": each, "cpu.cfs_quota_us": quota}
	} else {
		// Children have the controller once their parent hands it down.
		_ = os.WriteFile(filepath.Join(first, "cgroup.subtree_control"), []byte("+cpu"), 0o600)
	}
	s := &Share{dir: filepath.Join(first, name)}
	err := os.Mkdir(s.dir, 0o755)
	for file, text := range files {
		if err == nil {
			err = os.WriteFile(filepath.Join(s.dir, file), []byte(text), 0o600)
		}
	}
	if err != nil {
		return s, fmt.Errorf("no share of a core can be set: %w; it takes root, and the cpu controller of cgroups", err)
	}
	return s, nil
}

// Hold puts a process with all its threads into the group.
func (s *Share) Hold(pid int) error {
	return os.WriteFile(filepath.Join(s.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600)
}

// Remove removes the group. Its processes must have ended; the kernel may take a moment to
// see that.
func (s *Share) Remove(ctx context.Context) {
	Within(context.WithoutCancel(ctx), 5*time.Second, 10*time.Millisecond, func() bool {
		err := os.Remove(s.dir)
		return err == nil || os.IsNotExist(err)
	})
}
