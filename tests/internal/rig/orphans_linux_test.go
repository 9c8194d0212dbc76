package rig

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// starterEnv is an environment variable. If it is set, the test program starts a child process and
// waits until it is killed.
const starterEnv = "VICTIM_TEST_STARTER"

// TestServersDieWithTheirStarter kills a process that has started a child process. Both processes
// have the write end of a pipe open. So the reader sees the end of the pipe only after both have
// ended.
func TestServersDieWithTheirStarter(t *testing.T) {
	t.Parallel()
	if os.Getenv(starterEnv) != "" {
		c := DieWithStarter(exec.Command("sleep", "60"))
		c.Stdout = os.Stdout
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString(strconv.Itoa(c.Process.Pid) + "\n")
		select {}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	starter := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	starter.Env, starter.Stdout = append(os.Environ(), starterEnv+"=1"), w
	err = starter.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(r)
	line, err := out.ReadString('\n')
	_ = starter.Process.Kill()
	_ = starter.Wait()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(line[:len(line)-1])
	if err != nil {
		t.Fatal(err)
	}
	_ = r.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := out.ReadByte(); !errors.Is(err, io.EOF) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		t.Errorf("the server %d outlived its starter: %v", pid, err)
	}
}
