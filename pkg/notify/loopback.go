package notify

import (
	"net"
	"net/netip"
	"strings"
)

// OnLoopback reports whether a is a TCP loopback address, which other machines cannot reach.
func OnLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// LoopbackHost reports whether host, a Host header with or without a port, is
// localhost or a loopback address. A listener on loopback that asks for no token
// refuses other hosts: a web page can point a name of its own at 127.0.0.1, and the
// browser then lets it read the answers (DNS rebinding).
func LoopbackHost(host string) bool {
	if name, port, err := net.SplitHostPort(host); err == nil {
		if strings.Trim(port, "0123456789") != "" {
			return false
		}
		host = name
	}
	if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
