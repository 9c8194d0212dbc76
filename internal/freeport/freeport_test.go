package freeport

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// TestMain prints what another process is given that looks at a lot first, where a
// test asks for that.
func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv("FREEPORT_LOT")); err == nil {
		firstLot = func() int { return n }
		p, err := Find(5)
		if err != nil {
			os.Exit(1)
		}
		os.Stdout.WriteString(strconv.Itoa(p))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestFind: what is found can be listened on with those behind it, lies below the
// ports of outgoing connections, is never found again, and one that is taken is not
// found at all.
func TestFind(t *testing.T) {
	first, err := Find(1)
	if err != nil {
		t.Fatal(err)
	}
	// One of those that come next is taken: by this test, or by another program before it.
	if l, err := listen(first + 2); err == nil {
		defer l.Close()
	}
	seen := map[int]bool{first: true, first + 2: true}
	for range 60 { // more than one lot
		p, err := Find(5)
		if err != nil {
			t.Fatal(err)
		}
		for q := p; q < p+5; q++ {
			if seen[q] || q < lowest || q >= 32768 {
				t.Fatalf("port %d", q)
			}
			seen[q] = true
			l, err := listen(q)
			if err != nil {
				t.Fatal(err)
			}
			_ = l.Close()
		}
	}
	if len(held.guards) < 2 {
		t.Errorf("%d lots", len(held.guards))
	}
	for _, n := range []int{0, lot} {
		if _, err := Find(n); err == nil {
			t.Errorf("%d ports are found", n)
		}
	}
}

// TestTwoProcesses: of the lot of a process no other one is given a port, though nobody
// listens on it.
func TestTwoProcesses(t *testing.T) {
	mine, err := Find(5)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := (mine - lowest) / lot
	c := exec.CommandContext(t.Context(), self)
	c.Env = append(os.Environ(), "FREEPORT_LOT="+strconv.Itoa(n))
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if p, err := strconv.Atoi(string(out)); err != nil || (p-lowest)/lot == n {
		t.Errorf("this process was given %d, another one %q", mine, out)
	}
}
