package embedded

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Guard decides whether the log accepts more records from intake. Workers need no permission: they
// must append retries and dead letters even when the log is at its cap, because otherwise the log
// would never become empty. The cap leaves room for these records. A Guard may be used from any
// goroutine.
type Guard struct {
	cap, minFree int64

	size     atomic.Int64 // bytes of the log at the last measurement
	appended atomic.Int64 // bytes that were appended after the last measurement (see Appended)
	free     atomic.Int64 // free bytes on the volume; -1: not known
	slowest  atomic.Int64 // duration of the last fsync of the probe, ns
	noSpace  atomic.Bool  // true: a write failed for lack of space after the last measurement
	broken   atomic.Pointer[notify.Error]
}

func newGuard(cfg Config) *Guard {
	g := &Guard{cap: cfg.CapBytes, minFree: cfg.MinFreeBytes}
	g.free.Store(-1)
	return g
}

// Err returns nil if the log accepts more records. Otherwise it returns notify.KindUnavailable with one
// of these error codes:
//
//	log_full    the log is at its cap; trimming frees space
//	disk_full   the volume is nearly full
//	disk_error  a write or an fsync failed. It is not known which bytes the kernel has
//	            dropped, so the error stays until a restart has read the log.
//
// Err costs a few atomic loads.
func (g *Guard) Err() error {
	if err := g.Disk(); err != nil {
		return err
	}
	if g.size.Load()+g.appended.Load() >= g.cap {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "log_full", Msg: "the log has reached its maximum size; send the request again later", RetryAfter: time.Second}
	}
	return nil
}

// Bulk returns the same as Err, but for records of bulk lanes. Their cap is lower by an eighth of
// the log's cap. So a campaign cannot use the last space, which is reserved for otp, alert and
// transactional.
func (g *Guard) Bulk() error {
	if err := g.Err(); err != nil {
		return err
	}
	if g.size.Load()+g.appended.Load() >= g.cap-g.cap/8 {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "log_full", Msg: "the log has nearly reached its maximum size; the remaining space is reserved for otp, alert and transactional", RetryAfter: time.Second}
	}
	return nil
}

// Disk returns the same as Err, but without the check of the log's cap. Stores on the same volume
// use it.
func (g *Guard) Disk() error {
	if e := g.broken.Load(); e != nil {
		return e
	}
	if g.noSpace.Load() {
		return diskFull("the log's volume is full: a write failed for lack of space")
	}
	if free := g.free.Load(); free >= 0 && free < g.minFree {
		return diskFull(fmt.Sprintf("the log's volume is full: fewer than %d MiB are free", g.minFree>>20))
	}
	return nil
}

func diskFull(msg string) error {
	return &notify.Error{Kind: notify.KindUnavailable, Code: "disk_full", Msg: msg, RetryAfter: 5 * time.Second}
}

// Appended tells the guard how many bytes were just appended to the log. The guard adds them to the
// last measured size, so that the cap also holds between two measurements.
func (g *Guard) Appended(bytes int) { g.appended.Add(int64(bytes)) }

// Usage is a snapshot of the log's size and volume, for metrics and for notifyctl doctor.
type Usage struct {
	LogBytes int64 // size on disk at the last measurement
	CapBytes int64
	Free     int64         // free bytes on the volume; -1: not known
	Fsync    time.Duration // duration of the last fsync of the probe
	Err      error         // the result of Guard.Err
}

// Usage returns a snapshot.
func (g *Guard) Usage() Usage {
	return Usage{g.size.Load(), g.cap, g.free.Load(), time.Duration(g.slowest.Load()), g.Err()}
}

// writeFailed records a failed write.
func (g *Guard) writeFailed(err error) {
	if errors.Is(err, syscall.ENOSPC) {
		g.noSpace.Store(true)
		return
	}
	g.fail(fmt.Errorf("write: %w", err))
}

// measureFailed gets the error of a measurement. If the error shows that the disk has failed, it
// makes Err return disk_error and returns true. It returns false if the process only lacks file
// descriptors or memory for a while, for example because connections use every descriptor.
func (g *Guard) measureFailed(err error) bool {
	for _, passes := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EINTR, syscall.EAGAIN} {
		if errors.Is(err, passes) {
			return false
		}
	}
	g.fail(err)
	return true
}

// fail makes Err return disk_error until a restart. If fail is called again, the first error stays.
func (g *Guard) fail(err error) {
	g.broken.CompareAndSwap(nil, &notify.Error{
		Kind: notify.KindUnavailable, Code: "disk_error",
		Msg: "an operation on the log's volume failed; intake is stopped until notifyd is restarted", Err: err,
	})
}
