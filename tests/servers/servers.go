package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// scripts is the folder of the scripts that start and stop the servers. The scripts read ports
// and folders from the environment, as in "make engines".
const scripts = "scripts/engines"

// enginesDir returns the folder in which the scripts keep the data of the servers.
func enginesDir() string {
	dir := os.Getenv("NOTIFY_ENGINES_DIR")
	if dir == "" {
		dir = ".engines"
	}
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// start starts a server and returns when the server answers.
func (c *cluster) start(ctx context.Context, name string) {
	c.script(ctx, name, "start")
}

// script runs the script of a server. The output goes to a file: the server keeps its output open,
// so with a pipe, the method script would wait until the server ends.
func (c *cluster) script(ctx context.Context, name string, args ...string) {
	out := rig.Must(os.OpenFile(filepath.Join(c.dir, name+".script.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))
	defer out.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(scripts, name+".sh"), args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		panic(fmt.Errorf("%s %v: %w (see %s)", name, args, err, out.Name()))
	}
}

// kill ends a server with SIGKILL and waits until its process has ended.
func (c *cluster) kill(ctx context.Context, name string) {
	if name == "postgres" {
		c.script(ctx, name, "kill")
		return
	}
	pid := c.pid(name)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		panic(fmt.Errorf("cannot kill %s (process %d): %w", name, pid, err))
	}
	until(ctx, name+" is gone", func() bool { return gone(pid) })
}

// pid returns the process id of a server. With three nodes it returns the process id of the first
// node. Every configuration lists the address of this node first.
func (c *cluster) pid(name string) int {
	file := map[string]string{"kafka": "kafka/pid", "cassandra": "cassandra/node1/pid", "redis": "redis/pid"}
	if c.o.Nodes == 3 {
		file["kafka"], file["cassandra"] = "kafka3/1/pid", "cassandra3/node1/pid"
	}
	path := filepath.Join(enginesDir(), filepath.FromSlash(file[name]))
	b := rig.Must(os.ReadFile(path))
	first, _, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	pid, err := strconv.Atoi(first)
	if err != nil || pid <= 1 {
		panic(fmt.Errorf("the file %s must contain a process id, but it contains %q", path, b))
	}
	return pid
}

// gone returns true if a process has ended. A zombie counts as ended.
func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z")
}

// emptyRedis removes the data files that a stopped Redis would read at its next start.
func emptyRedis() {
	dir := filepath.Join(enginesDir(), "redis", "data")
	rig.Must(os.Stat(dir))
	rig.Ok(os.RemoveAll(dir))
	rig.Ok(os.MkdirAll(dir, 0o700))
}

// until calls the function check repeatedly, and returns when check has returned true. After
// rig.Patience it panics with an error that contains the text condition.
func until(ctx context.Context, condition string, check func() bool) {
	rig.Ok(rig.Until(ctx, condition, func() (bool, error) { return check(), nil }))
}
