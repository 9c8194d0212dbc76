package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// operator runs the real notifyctl, as an operator would. The test can kill each command.
type operator struct {
	bin, dir, server, token string
}

func newOperator(ctx context.Context, dir, server, token string) *operator {
	return &operator{bin: rig.Must(rig.Notifyctl(ctx, dir)), dir: dir, server: server, token: token}
}

// command is one run of notifyctl.
type command struct {
	*rig.Child
	out bytes.Buffer
}

func (o *operator) start(args ...string) *command {
	c, cmd := &command{}, exec.Command(o.bin, args...)
	cmd.Env = append(os.Environ(), "HOME="+filepath.Join(o.dir, "home"), "XDG_CONFIG_HOME="+filepath.Join(o.dir, "home"), "NOTIFYCTL_SERVER="+o.server, "NOTIFYCTL_TOKEN_FILE="+o.token)
	cmd.Stdout, cmd.Stderr = &c.out, &c.out
	c.Child = rig.Must(rig.Spawn(cmd))
	return c
}

// run runs notifyctl, waits until it has ended, and returns its output. It panics if the exit code
// is not the wanted one.
func (o *operator) run(want int, args ...string) (out string) {
	c := o.start(args...)
	<-c.Exited()
	if code := c.ExitCode(); code != want {
		panic(fmt.Errorf("notifyctl %s: the exit code is %d, but must be %d\n%s", strings.Join(args, " "), code, want, c.out.String()))
	}
	return c.out.String()
}

// kill sends SIGKILL to the command. It panics if the command had already ended.
func (c *command) kill() {
	rig.Ok(c.Kill())
	if !c.Killed() {
		panic(fmt.Errorf("notifyctl had ended with exit code %d before it was killed\n%s", c.ExitCode(), c.out.String()))
	}
}
