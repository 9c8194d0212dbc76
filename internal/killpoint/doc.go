// Package killpoint holds the named points at which torture kills the process. In a
// release they are nothing: Hit is an empty function that the compiler removes.
// With the build tag "faultinject" the environment variable NOTIFYD_FAULT, a
// comma-separated list of name:nth:action, makes the nth Hit of a name act:
// kill (SIGKILL itself), panic, or pause=<duration>. There too Clock returns the
// duration that the file named by NOTIFYD_FAULT_CLOCK holds.
package killpoint
