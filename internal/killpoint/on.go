//go:build faultinject

package killpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// rule is one entry of NOTIFYD_FAULT.
type rule struct {
	left   int // calls of Hit until the action runs; mu guards it
	action string
}

var rules = sync.OnceValue(func() map[string]*rule {
	m := map[string]*rule{}
	for _, one := range strings.Split(os.Getenv("NOTIFYD_FAULT"), ",") {
		parts := strings.SplitN(one, ":", 3)
		if len(parts) != 3 {
			continue
		}
		n, err := strconv.Atoi(parts[1])
		if err != nil {
			continue
		}
		m[parts[0]] = &rule{left: n, action: parts[2]}
	}
	return m
})

var mu sync.Mutex

// Hit counts its calls with each name. At the call that NOTIFYD_FAULT configures for a name, Hit
// runs the configured action. Each call of Hit marks a place where the death of the process is most
// dangerous.
func Hit(name string) {
	r := rules()[name]
	if r == nil {
		return
	}
	mu.Lock()
	r.left--
	act := r.left == 0
	mu.Unlock()
	if !act {
		return
	}
	switch d, pause := strings.CutPrefix(r.action, "pause="); {
	case pause:
		if wait, err := time.ParseDuration(d); err == nil {
			time.Sleep(wait)
		}
	case r.action == "panic":
		panic("fault " + name)
	default:
		fmt.Fprintln(os.Stderr, "fault: killed at", name)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // no code runs between Kill and the death of the process
	}
}

// Clock returns the error that a test gives to the clock of this process. It is positive if the clock is
// fast compared with the real time. Clock reads the file on each call, so a test can change the error
// while the process runs. It returns 0 if the file cannot be read.
func Clock() time.Duration {
	text, err := os.ReadFile(os.Getenv("NOTIFYD_FAULT_CLOCK"))
	if err != nil {
		return 0
	}
	d, _ := time.ParseDuration(strings.TrimSpace(string(text)))
	return d
}
