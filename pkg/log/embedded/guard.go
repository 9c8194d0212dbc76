package embedded

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Guard says whether the log may take more from outside. It is for intake:
// workers must still be able to append retries and dead letters when the log is
// at its cap, or it would never empty; the cap leaves room for them.
type Guard struct {
	cap, minFree int64

	size     atomic.Int64 // measured
	appended atomic.Int64 // since the last measure, as reported
	free     atomic.Int64 // -1: not known
	slowest  atomic.Int64 // ns, last fsync of the probe
	noSpace  atomic.Bool  // a write failed for lack of room since the last measure
	broken   atomic.Pointer[notify.Error]
}

func newGuard(cfg Config) *Guard {
	g := &Guard{cap: cfg.CapBytes, minFree: cfg.MinFreeBytes}
	g.free.Store(-1)
	return g
}

// Err is nil when the log may take more, else notify.KindUnavailable with code
//
//	log_full    the log is at its cap; trimming makes room
//	disk_full   the volume is nearly full
//	disk_error  the volume failed a write or an fsync. What the kernel dropped
//	            then is not known, so this holds until a restart reads the log
//	            back.
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

// Bulk is Err for records of bulk lanes: their cap is lower, so that a campaign never takes
// the last of the room from single requests.
func (g *Guard) Bulk() error {
	if err := g.Err(); err != nil {
		return err
	}
	if g.size.Load()+g.appended.Load() >= g.cap-g.cap/8 {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "log_full", Msg: "the log is nearly at its cap; the rest of it is for otp, alert and transactional", RetryAfter: time.Second}
	}
	return nil
}

// Disk is Err without what is the log's alone: for stores on the same volume.
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

// Appended counts bytes just appended, so that the cap holds between measures.
func (g *Guard) Appended(bytes int) { g.appended.Add(int64(bytes)) }

// Usage is a snapshot for metrics and doctor.
type Usage struct {
	LogBytes int64 // on disk, at the last measure
	CapBytes int64
	Free     int64         // bytes left on the volume; -1: not known
	Fsync    time.Duration // of the last probe
	Err      error         // what Err returns
}

// Usage returns a snapshot.
func (g *Guard) Usage() Usage {
	return Usage{g.size.Load(), g.cap, g.free.Load(), time.Duration(g.slowest.Load()), g.Err()}
}

// writeFailed notes a failed write of the broker.
func (g *Guard) writeFailed(err error) {
	if errors.Is(err, syscall.ENOSPC) {
		g.noSpace.Store(true)
		return
	}
	g.fail(fmt.Errorf("write: %w", err))
}

// measureFailed notes that the log could not be measured, and reports whether that is
// the disk's failure. What the process or the machine has run out of says nothing
// about the disk, and passes: connections may have taken every descriptor.
func (g *Guard) measureFailed(err error) bool {
	for _, passes := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EINTR, syscall.EAGAIN} {
		if errors.Is(err, passes) {
			return false
		}
	}
	g.fail(err)
	return true
}

// fail stops intake until a restart.
func (g *Guard) fail(err error) {
	g.broken.CompareAndSwap(nil, &notify.Error{
		Kind: notify.KindUnavailable, Code: "disk_error",
		Msg: "the log's volume failed; intake stands until a restart", Err: err,
	})
}
