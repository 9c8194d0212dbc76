package rig

import (
	"os/exec"
	"syscall"
)

// DieWithStarter makes the kernel kill the process of c when the process that started it ends. This
// works even if the starter was killed, so no server continues to run without its starter.
// DieWithStarter changes only the field Pdeathsig of c.SysProcAttr.
func DieWithStarter(c *exec.Cmd) *exec.Cmd {
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	// The kernel sends the signal when the thread that started c ends. Go ends a thread only if a
	// goroutine locks the thread and ends without unlocking it. No proof program does that.
	c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return c
}
