//go:build !faultinject

package killpoint

import "time"

// Hit marks a place where a process may die at the worst moment.
func Hit(string) {}

// Clock returns how much further ahead than it is the process takes its clock for.
func Clock() time.Duration { return 0 }
