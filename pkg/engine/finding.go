package engine

import (
	"fmt"
	"time"
)

// Finding is one thing that a doctor looked at.
type Finding struct {
	Check   string `json:"check"`
	Process string `json:"process,omitempty"` // what was looked at is of this process alone
	Level   string `json:"level"`             // "ok", "warn" or "fail"
	Detail  string `json:"detail"`
	Repair  string `json:"repair,omitempty"` // what to do; empty at level ok

	Used *float64 `json:"used,omitempty"` // of what there is, 0 to 1; nil: nothing that fills
}

// Findings are what a look found, in its order.
type Findings []Finding

// Add appends what was seen of check: level ok, or, where it is bad, level with what
// to do.
func (fs *Findings) Add(check string, bad bool, level, repair, format string, args ...any) { //nolint:revive // bad is what was seen
	f := Finding{Check: check, Level: "ok", Detail: fmt.Sprintf(format, args...)}
	if bad {
		f.Level, f.Repair = level, repair
	}
	*fs = append(*fs, f)
}

// maxClockOffset is how far the clock of a server and that of this process may be apart.
const maxClockOffset = 500 * time.Millisecond

// AskClock returns how far the clock that ask reads is ahead of this process's. It is
// wrong by at most half of how long the question took, which AskClock returns too.
func AskClock(ask func() (time.Time, error)) (offset, took time.Duration, err error) {
	began := time.Now()
	at, err := ask()
	if took = time.Since(began); err != nil {
		return 0, took, err
	}
	return at.Sub(began.Add(took / 2)), took, nil
}

// AddClock appends what AskClock returned about a server.
func (fs *Findings) AddClock(check, level, server string, offset, took time.Duration) {
	fs.Add(check, offset.Abs() > maxClockOffset+took/2, level, "let NTP or chrony set the clocks of both machines",
		"%s%s from ours (+-%s)", server, offset.Round(time.Millisecond), (took / 2).Round(time.Millisecond))
}
