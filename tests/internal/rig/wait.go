package rig

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Patience bounds a start, a stop, the draining of everything, and every other wait for
// what must happen. It is no figure: on a machine where 20 processes run, a start on the
// disk that forgets took 40 s.
var Patience = 5 * time.Minute

// Endurance is Patience that is not used up while the machine stands still: it counts
// the time between questions, and of each no more than a few seconds.
type Endurance struct {
	last  time.Time
	spent time.Duration
}

// Over reports whether Patience is over. It is asked before each pause.
func (e *Endurance) Over() bool {
	now := time.Now()
	if !e.last.IsZero() {
		e.spent += min(now.Sub(e.last), 5*time.Second)
	}
	e.last = now
	return e.spent > Patience
}

// Until calls ask until it returns true. It returns an error if ask does, or after Patience.
func Until(ctx context.Context, what string, ask func() (bool, error)) error {
	var waited Endurance
	for {
		ok, err := ask()
		if err != nil || ok {
			return err
		}
		if waited.Over() {
			return fmt.Errorf("it did not become so within %s: %s", Patience, what)
		}
		if err := Pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// Within calls ask at intervals of every until it returns true. It reports whether that happened
// within limit.
func Within(ctx context.Context, limit, every time.Duration, ask func() bool) bool {
	for end := time.Now().Add(limit); ; {
		if ask() {
			return true
		}
		if time.Now().After(end) || Pause(ctx, every) != nil {
			return false
		}
	}
}

// Insist repeats what the server asks to have repeated.
func Insist(ctx context.Context, ask func() error) error {
	var waited Endurance
	for {
		err := ask()
		if k := notify.KindOf(err); err == nil || k != notify.KindUnavailable && k != notify.KindThrottled || waited.Over() {
			return err
		}
		if err := Pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// Pause waits, unless ctx ends.
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

// LoadAverage returns the load average of the last minute, or "?" without /proc.
func LoadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	one, _, _ := strings.Cut(string(b), " ")
	return one
}
