package embedded

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Guard says whether the log accepts more records from outside. Only intake asks it. Workers must
// still append retries and dead letters when the log is at its cap, or the log would never empty;
// the cap leaves room for them. It may be used from any goroutine.
type Guard struct {
	cap, minFree int64

	size     atomic.Int64 // bytes of the log at the last measurement
	appended atomic.Int64 // bytes appended since, as reported by Appended
	free     atomic.Int64 // free bytes of the volume; -1: not known
	slowest  atomic.Int64 // duration of the probe's last fsync, ns
	noSpace  atomic.Bool  // a write failed for lack of space since the last measurement
	broken   atomic.Pointer[notify.Error]
}

func newGuard(cfg Config) *Guard {
	g := &Guard{cap: cfg.CapBytes, minFree: cfg.MinFreeBytes}
	g.free.Store(-1)
	return g
}

// Err returns nil if the log accepts more records, else notify.KindUnavailable with code
//
//	log_full    the log is at its cap; trimming makes room
//	disk_full   the volume is nearly full
//	disk_error  a write or an fsync failed. It is not known what the kernel has
//	            dropped, so the error stays until a restart has read the log.
//
// It costs a few atomic loads.
func (g *Guard) Err() error {
	if err := g.Disk(); err != nil {
		return err
	}
	if g.size.Load()+g.appended.Load() >= g.cap {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "log_full", Msg: "the log is at its cap", RetryAfter: time.Second}
	}
	return nil
}

// Bulk is Err for records of bulk lanes. Their cap is an eighth lower, so that a campaign never takes
// the last room from single requests.
func (g *Guard) Bulk() error {
	if err := g.Err(); err != nil {
		return err
	}
	if g.size.Load()+g.appended.Load() >= g.cap-g.cap/8 {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "log_full", Msg: "the log is nearly at its cap; the rest of it is for otp, alert and transactional", RetryAfter: time.Second}
	}
	return nil
}

// Disk is Err without the cap of the log. It is for stores on the same volume.
func (g *Guard) Disk() error {
	if e := g.broken.Load(); e != nil {
		return e
	}
	if g.noSpace.Load() {
		return diskFull("the log's volume is full: a write failed for lack of room")
	}
	if free := g.free.Load(); free >= 0 && free < g.minFree {
		return diskFull(fmt.Sprintf("the log's volume is full: fewer than %d MiB are free", g.minFree>>20))
	}
	return nil
}

func diskFull(msg string) error {
	return &notify.Error{Kind: notify.KindUnavailable, Code: "disk_full", Msg: msg, RetryAfter: 5 * time.Second}
}

// Appended adds bytes that were just appended, so that the cap holds between two measurements.
func (g *Guard) Appended(bytes int) { g.appended.Add(int64(bytes)) }

// Usage is a snapshot for metrics and doctor.
type Usage struct {
	LogBytes int64 // on disk, at the last measurement
	CapBytes int64
	Free     int64         // bytes left on the volume; -1: not known
	Fsync    time.Duration // of the last probe
	Err      error         // what Err returns
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

// measureFailed handles an error of a measurement and reports whether it is a failure of the disk. A
// lack of descriptors or memory is not: connections may use every descriptor for a while.
func (g *Guard) measureFailed(err error) bool {
	for _, passes := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EINTR, syscall.EAGAIN} {
		if errors.Is(err, passes) {
			return false
		}
	}
	g.fail(err)
	return true
}

// fail makes Err return disk_error until a restart. The first cause counts.
func (g *Guard) fail(err error) {
	g.broken.CompareAndSwap(nil, &notify.Error{
		Kind: notify.KindUnavailable, Code: "disk_error",
		Msg: "the log's volume failed; intake is stopped until a restart", Err: err,
	})
}
