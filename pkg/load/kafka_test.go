package load

import (
	"net"
	"strings"
	"testing"
)

// TestDialLoopback checks that dialLoopback connects to loopback addresses only, because a broker may name
// a broker on another machine.
func TestDialLoopback(t *testing.T) {
	t.Parallel()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := dialLoopback(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	for _, addr := range []string{"kafka.example:9092", "10.0.0.1:9092", "[fe80::1]:9092"} {
		if _, err := dialLoopback(t.Context(), "tcp", addr); err == nil || !strings.Contains(err.Error(), "loopback addresses only") {
			t.Errorf("%s: %v", addr, err)
		}
	}
}
