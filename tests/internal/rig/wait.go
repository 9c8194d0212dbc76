package rig

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Patience is the longest wait for anything that must happen, such as a start, a stop or the end of
// all deliveries. It is not a measured bound, and it is long on purpose: with 20 processes on one
// machine, a start on the disk that simulates power loss took 40 s.
var Patience = 5 * time.Minute

// Endurance measures a wait that may last for Patience. If the machine is suspended, that time
// should not count. So at most 5 s count between two calls of Over.
type Endurance struct {
	last  time.Time
	spent time.Duration
}

// Over returns true if the wait has lasted longer than Patience. Call it before each pause of the
// wait.
func (e *Endurance) Over() bool {
	now := time.Now()
	if !e.last.IsZero() {
		e.spent += min(now.Sub(e.last), 5*time.Second)
	}
	e.last = now
	return e.spent > Patience
}

// Until calls the function check every 50 ms until it returns true. Until returns an error if check
// returns an error, if check has not returned true within Patience, or if ctx ends. The parameter
// condition is a text for the error after Patience: it says what did not become true.
func Until(ctx context.Context, condition string, check func() (bool, error)) error {
	var waited Endurance
	for {
		ok, err := check()
		if err != nil || ok {
			return err
		}
		if waited.Over() {
			return fmt.Errorf("waited %s, but this did not become true: %s", Patience, condition)
		}
		if err := Pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// Within calls the function check again and again until it returns true, with the given pause
// between two calls. Within returns false if check has not returned true within the limit, or if
// ctx ends.
func Within(ctx context.Context, limit, pause time.Duration, check func() bool) bool {
	for end := time.Now().Add(limit); ; {
		if check() {
			return true
		}
		if time.Now().After(end) || Pause(ctx, pause) != nil {
			return false
		}
	}
}

// Insist calls the function request. If it returns an error of kind notify.KindUnavailable or
// notify.KindThrottled, Insist calls it again after 50 ms, but not longer than Patience. Insist
// returns the last error of request.
func Insist(ctx context.Context, request func() error) error {
	var waited Endurance
	for {
		err := request()
		if k := notify.KindOf(err); err == nil || k != notify.KindUnavailable && k != notify.KindThrottled || waited.Over() {
			return err
		}
		if err := Pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// Pause waits for d. If ctx ends before, Pause returns the error of ctx at once.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// LoadAverage returns the load average of the last minute, or "?" if /proc/loadavg cannot be read.
func LoadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	one, _, _ := strings.Cut(string(b), " ")
	return one
}
