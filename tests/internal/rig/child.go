package rig

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Child is a process that a proof has started. On Linux the kernel kills it when the proof ends.
type Child struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // result of exec.Cmd.Wait; read it only after exited is closed
}

// Spawn starts c. A goroutine waits until the process has ended and then closes the channel that
// Exited returns.
func Spawn(c *exec.Cmd) (*Child, error) { return spawn(DieWithStarter(c), c.Start) }

func spawn(c *exec.Cmd, start func() error) (*Child, error) {
	if err := start(); err != nil {
		return nil, err
	}
	p := &Child{cmd: c, exited: make(chan struct{})}
	go func() {
		p.err = c.Wait()
		close(p.exited)
	}()
	return p, nil
}

// Exited returns a channel that is closed when the process has ended.
func (p *Child) Exited() <-chan struct{} { return p.exited }

// Gone returns true if the process has ended.
func (p *Child) Gone() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Signal sends a signal to the process.
func (p *Child) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Pid returns the process id.
func (p *Child) Pid() int { return p.cmd.Process.Pid }

// errStays is the error of Wait for a process that has not ended in time.
var errStays = errors.New("the process has not ended in time")

// Wait waits until the process has ended. It returns an error if the exit code is not 0, or if the
// process still runs when the time limit is over.
func (p *Child) Wait(limit time.Duration) error {
	select {
	case <-p.exited:
		return p.err
	case <-time.After(limit):
		return errStays
	}
}

// Stop sends SIGTERM and waits until the process has ended, for Patience at most. It returns an
// error if the exit code is not 0.
func (p *Child) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.Wait(Patience)
}

// Kill sends SIGKILL and waits until the process has ended. After that, Killed returns true if
// SIGKILL ended the process, and false if it had ended before.
func (p *Child) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.exited
	return nil
}

// ExitCode returns the exit code, or -1 if a signal ended the process. The process must have
// ended.
func (p *Child) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Killed returns true if SIGKILL ended the process. The process must have ended.
func (p *Child) Killed() bool {
	e, ok := errors.AsType[*exec.ExitError](p.err)
	if !ok {
		return false
	}
	st, ok := e.Sys().(syscall.WaitStatus)
	return ok && st.Signaled() && st.Signal() == syscall.SIGKILL
}
