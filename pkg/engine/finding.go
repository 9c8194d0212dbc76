package engine

import "fmt"

// Finding is one thing that the doctor of an engine looked at.
type Finding struct {
	Check  string
	Level  string // "ok", "warn" or "fail"
	Detail string
	Repair string // what to do; empty at level ok
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
