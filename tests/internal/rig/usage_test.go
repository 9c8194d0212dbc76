package rig

import (
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

func TestListeners(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pids, err := Listeners(l.Addr().String())
	if err != nil || len(pids) != 1 || pids[0] != os.Getpid() {
		t.Errorf("pids %v, %v; want this process, %d", pids, err, os.Getpid())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if pids, err := Listeners(l.Addr().String()); err == nil {
		t.Errorf("a port without a listener is that of %v", pids)
	}
}

// TestShare runs a process that would use a whole core in a group with 0.1 of a core. The group must
// limit the process, and CPU must report the time that the process has used.
func TestShare(t *testing.T) {
	s, err := NewShare("notifyd-share-test", 0.1)
	if err != nil {
		s.Remove(t.Context())
		t.Skip(err)
	}
	defer s.Remove(t.Context())
	c, err := Spawn(exec.Command("sh", "-c", "while :; do :; done"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Kill() }()
	if err := s.Hold(c.Pid()); err != nil {
		t.Fatal(err)
	}
	of := map[string][]int{"it": {c.Pid()}}
	before, began := CPU(of)["it"], time.Now()
	if err := Until(t.Context(), "it has used 200 ms", func() (bool, error) { return CPU(of)["it"]-before >= 200*time.Millisecond, nil }); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("it used 200 ms in %s with 0.1 of a core", took)
	}
	if all := MachineCPU(); all < CPU(of)["it"] {
		t.Errorf("the machine used %s, the process more", all)
	}
}
