package trigger

import (
	"errors"
	"net/netip"
	"testing"
)

// deniedAddresses has the addresses that no callback may reach. The value is the reason that people
// are told.
var deniedAddresses = map[string]string{
	"0.0.0.0": "unspecified", "0.1.2.3": "unspecified",
	"127.0.0.1": "loopback", "127.255.255.254": "loopback",
	"10.0.0.1": "private", "10.255.255.255": "private", "172.16.0.1": "private", "172.31.255.255": "private",
	"192.168.0.1": "private", "192.168.255.255": "private",
	"100.64.0.1": "carrier-grade NAT", "100.100.100.200": "carrier-grade NAT", "100.127.255.255": "carrier-grade NAT",
	"169.254.0.1": "link-local", "169.254.169.254": "metadata of a cloud", "169.254.170.2": "link-local",
	"168.63.129.16": "metadata of a cloud",
	"192.0.0.1":     "not on the public internet", "192.0.0.192": "not on the public internet",
	"192.0.2.1": "documentation", "198.51.100.7": "documentation", "203.0.113.9": "documentation",
	"192.31.196.1": "not on the public internet", "192.52.193.1": "not on the public internet", "192.175.48.1": "not on the public internet",
	"192.88.99.1": "6to4 relay", "198.18.0.1": "benchmarking", "198.19.255.255": "benchmarking",
	"224.0.0.1": "multicast", "239.255.255.250": "multicast", "240.0.0.1": "reserved", "255.255.255.255": "broadcast",
	"::": "unspecified", "::1": "loopback",
	"::127.0.0.1": "IPv4-compatible", "::ffff:127.0.0.1": "IPv4-mapped", "::ffff:7f00:1": "IPv4-mapped", "::ffff:8.8.8.8": "IPv4-mapped",
	"64:ff9b::7f00:1": "NAT64", "64:ff9b::8.8.8.8": "NAT64", "64:ff9b:1::1": "NAT64, local use",
	"100::1": "discard", "2001::1": "Teredo", "2001:0:53aa:64c::1": "Teredo", "2001:2::1": "benchmarking",
	"2001:10::1": "ORCHID", "2001:20::1": "ORCHID", "2001:1::1": "not on the public internet",
	"2001:db8::1": "documentation", "3fff::1": "documentation", "2001:4:112::1": "AS112", "2620:4f:8000::1": "not on the public internet",
	"2002:7f00:1::": "6to4", "2002:a9fe:a9fe::1": "6to4", "3ffe::1": "6bone, returned",
	"5f00::1": "segment routing", "fc00::1": "private", "fd00:ec2::254": "metadata of a cloud", "fd20:ce::254": "private",
	"fe80::1": "link-local", "febf::1": "link-local", "fec0::1": "site-local", "ff02::1": "multicast", "ff0e::1": "multicast",
	"2a00:1450:4001:81b:0:5efe:7f00:1": "ISATAP", "2a00:1450:4001:81b:200:5efe:a00:1": "ISATAP",
	"4000::1": "not on the public internet", "8000::1": "not on the public internet",
}

var publicAddresses = []string{
	"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.1", "126.255.255.255", "128.0.0.1",
	"169.253.255.255", "169.255.0.1", "172.15.255.255", "172.32.0.1", "191.255.255.255", "192.167.255.255", "192.169.0.1",
	"198.17.255.255", "198.20.0.1", "223.255.255.255", "168.63.129.15",
	"2606:4700:4700::1111", "2a00:1450:4001:81b::200e", "2001:4860:4860::8888", "2003::1",
}

// Every denied address is denied on its own, with a reason; its neighbours on
// the public internet are not.
func TestPolicyTable(t *testing.T) {
	t.Parallel()
	if len(deniedAddresses) < 40 {
		t.Fatalf("the table has %d addresses", len(deniedAddresses))
	}
	p, err := newPolicy(EgressPolicy{})
	if err != nil {
		t.Fatal(err)
	}
	for a, why := range deniedAddresses {
		ap := netip.AddrPortFrom(netip.MustParseAddr(a), 443)
		if got := p.whyDenied(ap); got != why {
			t.Errorf("%s: denied as %q, want %q", a, got, why)
		}
		for _, network := range []string{"tcp4", "tcp6"} {
			var d *deniedError
			if err := p.control(network, ap.String(), nil); !errors.As(err, &d) {
				t.Errorf("%s over %s: %v", a, network, err)
			}
		}
	}
	for _, a := range publicAddresses {
		if why := p.whyDenied(netip.AddrPortFrom(netip.MustParseAddr(a), 443)); why != "" {
			t.Errorf("%s is denied: %s", a, why)
		}
	}
	for _, port := range []uint16{1, 22, 25, 80, 444, 6379, 8443, 65535} {
		if p.whyDenied(netip.AddrPortFrom(publicAddr, port)) == "" {
			t.Errorf("port %d is allowed", port)
		}
	}
	for _, network := range []string{"udp4", "unix", "tcp", ""} {
		if p.control(network, "1.1.1.1:443", nil) == nil {
			t.Errorf("network %q is allowed", network)
		}
	}
	for _, address := range []string{"", "1.1.1.1", "shop.example:443", "[fe80::1%eth0]:443"} {
		if p.control("tcp4", address, nil) == nil {
			t.Errorf("address %q is allowed", address)
		}
	}
}

func TestPolicySettings(t *testing.T) {
	t.Parallel()
	p, err := newPolicy(EgressPolicy{
		Allow: prefixes("127.0.0.0/8", "fd12::/16", "10.0.0.0/8"), Deny: prefixes("10.9.0.0/16", "8.8.8.0/24", "2a01:77::/96"),
		Ports: []uint16{8443}, Plain: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	f := func(addr string, want bool) {
		t.Helper()
		if got := p.whyDenied(netip.MustParseAddrPort(addr)) == ""; got != want {
			t.Errorf("%s: allowed is %v", addr, got)
		}
	}
	f("127.0.0.1:8443", true)
	f("127.0.0.1:443", false)
	f("[fd12::1]:8443", true)
	f("[fd13::1]:8443", false)
	f("[::ffff:127.0.0.1]:8443", false)
	f("10.1.0.1:8443", true)
	f("10.9.0.1:8443", false)
	f("8.8.8.8:8443", false)
	f("1.1.1.1:8443", true)
	f("[2a01:77::7f00:1]:8443", false) // the network's own NAT64
	f("169.254.169.254:8443", false)

	if any, err := newPolicy(EgressPolicy{AnyPort: true}); err != nil || any.whyDenied(netip.MustParseAddrPort("1.1.1.1:25")) != "" {
		t.Error("AnyPort does not admit a port")
	}
	if plain, err := newPolicy(EgressPolicy{Plain: true}); err != nil || plain.whyDenied(netip.MustParseAddrPort("1.1.1.1:80")) != "" {
		t.Error("Plain does not admit port 80")
	}
	if _, err := newPolicy(EgressPolicy{Allow: prefixes("::ffff:10.0.0.0/104")}); err == nil {
		t.Error("a mapped prefix is taken")
	}
	if _, err := newPolicy(EgressPolicy{Deny: []netip.Prefix{{}}}); err == nil {
		t.Error("an empty prefix is taken")
	}
}

// The guard never allows a denied address, in whatever form its bytes come.
func FuzzPolicy(f *testing.F) {
	for a := range deniedAddresses {
		b := netip.MustParseAddr(a).As16()
		f.Add(b[:])
	}
	p, err := newPolicy(EgressPolicy{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := netip.AddrFromSlice(b)
		if !ok || p.whyDenied(netip.AddrPortFrom(a, 443)) != "" {
			return
		}
		u := a.Unmap()
		if u.IsLoopback() || u.IsPrivate() || u.IsLinkLocalUnicast() || u.IsMulticast() || u.IsUnspecified() || !u.IsGlobalUnicast() || a.Is4In6() {
			t.Fatalf("%v may be called", a)
		}
		for _, x := range rangeNames {
			if x.prefix.Contains(a) {
				t.Fatalf("%v may be called: %s", a, x.what)
			}
		}
	})
}
