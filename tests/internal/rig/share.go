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

// In every period, a control group gets a new quota of processor time. When it has used the quota,
// its processes stop until the next period. A process that stops for long misses the deadlines of
// its calls, so the period is short: leastPeriod. For a very small share the period is longer,
// because the kernel refuses a quota below leastQuota.
const (
	leastQuota  = time.Millisecond
	leastPeriod = 20 * time.Millisecond
)

// Share is a control group. Its processes together get at most a share of one core, even if the
// machine is idle.
type Share struct{ dir string }

// NewShare makes a control group with this name. The parameter cores is the share, for example 0.1
// of a core. NewShare supports versions 1 and 2 of control groups. It returns an error if it may
// not make the group: that needs root, or a control group that was delegated to the user. The
// caller must call Remove, also after an error.
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
		// Enable the cpu controller for the child groups of the root group. Otherwise the new group
		// has no cpu controller.
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
		return s, fmt.Errorf("cannot limit processes to a share of a core: %w; this needs root, and the cpu controller of cgroups", err)
	}
	return s, nil
}

// Hold moves a process with all its threads into the group.
func (s *Share) Hold(pid int) error {
	return os.WriteFile(filepath.Join(s.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600)
}

// Remove removes the group. Its processes must have ended. The kernel may need a moment until the
// group is empty, so Remove repeats the attempt for up to 5 s.
func (s *Share) Remove(ctx context.Context) {
	Within(context.WithoutCancel(ctx), 5*time.Second, 10*time.Millisecond, func() bool {
		err := os.Remove(s.dir)
		return err == nil || os.IsNotExist(err)
	})
}
