// Package killpoint marks the named points at which the torture tests kill the process. In a
// release Hit is an empty function that the compiler removes.
//
// With the build tag "faultinject" the environment variable NOTIFYD_FAULT holds a
// comma-separated list of name:nth:action. The nth Hit of that name then runs the action: kill
// (the process sends itself SIGKILL), panic, or pause=<duration>. Clock returns the duration
// in the file named by NOTIFYD_FAULT_CLOCK.
package killpoint
