package notify

import (
	"net"
	"testing"
)

func TestLoopbackHost(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"localhost", "localhost:7421", "127.0.0.1", "127.0.0.1:80", "127.9.9.9:1", "[::1]:7421", "::1", "[::1]"} {
		if !LoopbackHost(host) {
			t.Errorf("%q is refused", host)
		}
	}
	for _, host := range []string{"", "evil.test", "evil.test:7421", "localhost.evil.test", "127.0.0.1.evil.test", "10.0.0.1:80", "0.0.0.0", "[::]:80", "localhost:80:80", "localhost:x.evil.test", "127.0.0.1:80x", "LOCALHOST.", "[]"} {
		if LoopbackHost(host) {
			t.Errorf("%q is taken", host)
		}
	}
	if OnLoopback(&net.TCPAddr{IP: net.IPv4zero}) || !OnLoopback(&net.TCPAddr{IP: net.IPv6loopback}) || OnLoopback(&net.UnixAddr{}) || OnLoopback(nil) {
		t.Error("which addresses are on loopback")
	}
}
