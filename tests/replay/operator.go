package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/notifyd/notifyd/tests/internal/victim"
)

// operator is somebody with the real notifyctl: what it runs may be killed.
type operator struct {
	bin, dir, server, token string
}

func newOperator(ctx context.Context, dir, server, token string) (*operator, error) {
	o := &operator{bin: filepath.Join(dir, "notifyctl"), dir: dir, server: server, token: token}
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", o.bin, "./cmd/notifyctl").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build notifyctl: %w\n%s", err, out)
	}
	return o, nil
}

// command is one run of notifyctl.
type command struct {
	*exec.Cmd
	out  bytes.Buffer
	over chan struct{}
	err  error
}

func (o *operator) start(args ...string) (*command, error) {
	c := &command{Cmd: victim.DieWithStarter(exec.Command(o.bin, args...)), over: make(chan struct{})}
	c.Env = append(os.Environ(), "HOME="+filepath.Join(o.dir, "home"), "XDG_CONFIG_HOME="+filepath.Join(o.dir, "home"), "NOTIFYCTL_SERVER="+o.server, "NOTIFYCTL_TOKEN_FILE="+o.token)
	c.Stdout, c.Stderr = &c.out, &c.out
	if err := c.Start(); err != nil {
		return nil, err
	}
	go func() {
		c.err = c.Wait()
		close(c.over)
	}()
	return c, nil
}

// run runs notifyctl to its end, which must be of exit code want.
func (o *operator) run(want int, args ...string) (out string, err error) {
	c, err := o.start(args...)
	if err != nil {
		return "", err
	}
	<-c.over
	if code := c.ProcessState.ExitCode(); code != want {
		return "", fmt.Errorf("notifyctl %s: exit %d, want %d\n%s", strings.Join(args, " "), code, want, c.out.String())
	}
	return c.out.String(), nil
}

// kill kills a command that must be at work still, without a word.
func (c *command) kill() error {
	if err := c.Process.Signal(syscall.SIGKILL); err != nil {
		<-c.over
		return fmt.Errorf("notifyctl had ended by itself: %w\n%s", c.err, c.out.String())
	}
	<-c.over
	x, ok := errors.AsType[*exec.ExitError](c.err)
	if !ok || x.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		return fmt.Errorf("notifyctl ended by itself: %w\n%s", c.err, c.out.String())
	}
	return nil
}
