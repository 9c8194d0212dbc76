//go:build !faultinject

package killpoint

import "time"

// Hit does nothing without the build tag faultinject.
func Hit(string) {}

// Clock returns 0 without the build tag faultinject.
func Clock() time.Duration { return 0 }
