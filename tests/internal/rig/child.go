package rig

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Child is a process that a program here has started. It dies with its starter.
type Child struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // how it ended; read it once exited is closed
}

// Spawn starts c.
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

// Exited is closed when it has ended.
func (p *Child) Exited() <-chan struct{} { return p.exited }

// Gone reports whether it has ended.
func (p *Child) Gone() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Signal sends it a signal.
func (p *Child) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Pid is its process id.
func (p *Child) Pid() int { return p.cmd.Process.Pid }

// errStays is that a process has not ended in time.
var errStays = errors.New("it does not end")

// Wait waits until it has ended and returns an error if that was not with 0, or not
// within limit.
func (p *Child) Wait(limit time.Duration) error {
	select {
	case <-p.exited:
		return p.err
	case <-time.After(limit):
		return errStays
	}
}

// Stop asks it to end, and waits.
func (p *Child) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.Wait(Patience)
}

// Kill ends it without a word, and returns once it has ended. Killed says whether it was
// at work until then.
func (p *Child) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.exited
	return nil
}

// ExitCode is what it ended with, -1 if by a signal. It must have ended.
func (p *Child) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Killed reports whether it was ended by SIGKILL. It must have ended.
func (p *Child) Killed() bool {
	e, ok := errors.AsType[*exec.ExitError](p.err)
	if !ok {
		return false
	}
	st, ok := e.Sys().(syscall.WaitStatus)
	return ok && st.Signaled() && st.Signal() == syscall.SIGKILL
}
