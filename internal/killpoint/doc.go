// Package killpoint marks the named points at which the torture tests kill the process. Each point is
// a call of the function Hit. In a release Hit is an empty function, and the compiler removes it.
//
// With the build tag "faultinject" the environment variable NOTIFYD_FAULT holds a comma-separated list
// of name:nth:action. When Hit is called for the nth time with that name, it runs the action. The
// action is kill (the process sends itself SIGKILL), panic, or pause=<duration>. The environment
// variable NOTIFYD_FAULT_CLOCK names a file that holds a duration. Clock returns that duration.
package killpoint
