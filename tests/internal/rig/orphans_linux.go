package rig

import (
	"os/exec"
	"syscall"
)

// DieWithStarter makes the kernel kill c's process when the process that starts it
// ends, even if that was killed itself: no server is left behind. It keeps what c
// has of SysProcAttr.
func DieWithStarter(c *exec.Cmd) *exec.Cmd {
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	// The kernel means the thread that starts c. Go keeps its threads, except those
	// that a goroutine locks and does not unlock: no rig has such.
	c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return c
}
