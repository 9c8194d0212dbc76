package notify

import (
	"net"
	"net/netip"
	"strings"
)

// OnLoopback reports whether addr is a TCP loopback address, which other machines cannot reach.
func OnLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// LoopbackHost reports whether a Host header, with or without a port, names localhost or a loopback
// address.
//
// A listener on loopback that needs no token refuses all other hosts. Otherwise a web page could
// read its answers (DNS rebinding): the owner of the page lets the page's host name resolve to
// 127.0.0.1, and the browser takes the listener for the server of the page.
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
