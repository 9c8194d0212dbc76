package engine

import (
	"fmt"
	"time"
)

// Finding is the result of one check of a doctor. A doctor is a set of checks, for example
// the checks of a server.
type Finding struct {
	Check   string `json:"check"`
	Process string `json:"process,omitempty"` // the process that was checked; empty: all processes
	Level   string `json:"level"`             // "ok", "warn" or "fail"
	Detail  string `json:"detail"`
	Repair  string `json:"repair,omitempty"` // what to do; empty at level ok

	// Used is the used share of a limited resource, 0 to 1. It is nil if the check is not
	// about a limited resource.
	Used *float64 `json:"used,omitempty"`
}

// Findings are the results of a doctor, in the order of its checks.
type Findings []Finding

// Add appends a finding with the result of a check. If bad is true, the finding has the
// given level and the given text about its repair. Otherwise its level is "ok" and it has
// no such text.
func (fs *Findings) Add(check string, bad bool, level, repair, format string, args ...any) { //nolint:revive // bad is the result of the check
	f := Finding{Check: check, Level: "ok", Detail: fmt.Sprintf(format, args...)}
	if bad {
		f.Level, f.Repair = level, repair
	}
	*fs = append(*fs, f)
}

// maxClockOffset is the allowed difference between the clock of a server and the clock of
// this process.
const maxClockOffset = 500 * time.Millisecond

// AskClock calls readClock, which reads the clock of a server. The result offset is the
// time of that clock minus the time of this process's clock, and roundTrip is how long
// readClock ran. The true offset differs from offset by at most roundTrip/2.
func AskClock(readClock func() (time.Time, error)) (offset, roundTrip time.Duration, err error) {
	began := time.Now()
	at, err := readClock()
	if roundTrip = time.Since(began); err != nil {
		return 0, roundTrip, err
	}
	return at.Sub(began.Add(roundTrip / 2)), roundTrip, nil
}

// AddClock appends a finding about the clock of a server. The parameters offset and
// roundTrip are results of AskClock. The parameter server is the beginning of the
// finding's text, for example "host:port: ".
func (fs *Findings) AddClock(check, level, server string, offset, roundTrip time.Duration) {
	fs.Add(check, offset.Abs() > maxClockOffset+roundTrip/2, level, "let NTP or chrony set the clocks of both machines",
		"%sthe clock differs by %s from the clock of this process (accuracy +-%s)", server, offset.Round(time.Millisecond), (roundTrip / 2).Round(time.Millisecond))
}
