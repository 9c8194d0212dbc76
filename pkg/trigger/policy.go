package trigger

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"code.dny.dev/ssrf"

	"github.com/notifyd/notifyd/pkg/notify"
)

// EgressPolicy says to which addresses callbacks may connect. The zero value allows port 443 of all
// addresses on the public internet.
type EgressPolicy struct {
	// Allow are prefixes that may be called although they are not on the public internet, for example
	// a deployment's own networks, or loopback for its simulator. Allow applies to all callers, so
	// never add a prefix for the sake of one caller.
	Allow []netip.Prefix
	// Deny are prefixes that may not be called, in addition to the built-in prefixes. An example is
	// the network's own NAT64 prefix. Deny wins over Allow.
	Deny []netip.Prefix
	// Ports are the ports that may be called. Default 443, and 80 with Plain.
	Ports []uint16
	// AnyPort means that every port may be called.
	AnyPort bool
	// Plain means that URLs may use http:// in addition to https://.
	Plain Plain
}

// extraDenied are addresses that no callback needs. Package ssrf treats these addresses as public,
// because it only knows the IANA registries.
var extraDenied = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("168.63.129.16/32"), "metadata of a cloud"},
	{netip.MustParsePrefix("3ffe::/16"), "6bone, returned"},
	{netip.MustParsePrefix("2001:4:112::/48"), "AS112"},
}

// rangeNames contains names of address ranges for error messages. It does not decide anything.
var rangeNames = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "carrier-grade NAT"},
	{netip.MustParsePrefix("169.254.169.254/32"), "metadata of a cloud"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("198.18.0.0/15"), "benchmarking"},
	{netip.MustParsePrefix("192.0.2.0/24"), "documentation"},
	{netip.MustParsePrefix("198.51.100.0/24"), "documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "documentation"},
	{netip.MustParsePrefix("192.88.99.0/24"), "6to4 relay"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4-mapped"},
	{netip.MustParsePrefix("::/96"), "IPv4-compatible"},
	{netip.MustParsePrefix("64:ff9b::/96"), "NAT64"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "NAT64, local use"},
	{netip.MustParsePrefix("100::/64"), "discard"},
	{netip.MustParsePrefix("2001::/32"), "Teredo"},
	{netip.MustParsePrefix("2001:2::/48"), "benchmarking"},
	{netip.MustParsePrefix("2001:10::/28"), "ORCHID"},
	{netip.MustParsePrefix("2001:20::/28"), "ORCHID"},
	{netip.MustParsePrefix("2001:db8::/32"), "documentation"},
	{netip.MustParsePrefix("3fff::/20"), "documentation"},
	{netip.MustParsePrefix("2002::/16"), "6to4"},
	{netip.MustParsePrefix("5f00::/16"), "segment routing"},
	{netip.MustParsePrefix("fd00:ec2::254/128"), "metadata of a cloud"},
	{netip.MustParsePrefix("fc00::/7"), "private"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "site-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// policy is a checked EgressPolicy. It does not change.
type policy struct {
	EgressPolicy
	library *ssrf.Guardian // has the registries of special addresses
}

func newPolicy(p EgressPolicy) (*policy, error) {
	p.Allow, p.Deny, p.Ports = slices.Clone(p.Allow), slices.Clone(p.Deny), slices.Clone(p.Ports)
	for _, list := range [...][]netip.Prefix{p.Allow, p.Deny} {
		for _, x := range list {
			if !x.IsValid() || x.Addr().Is4In6() {
				return nil, notify.Invalid("bad_prefix", "egress", fmt.Sprintf("%v is not a valid address prefix; an IPv4 prefix must be written without ::ffff:", x))
			}
		}
	}
	if len(p.Ports) == 0 {
		p.Ports = []uint16{443}
		if p.Plain {
			p.Ports = append(p.Ports, 80)
		}
	}
	var v4, v6 []netip.Prefix
	for _, x := range p.Allow {
		if x.Addr().Is4() {
			v4 = append(v4, x.Masked())
		} else {
			v6 = append(v6, x.Masked())
		}
	}
	return &policy{p, ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...))}, nil
}

// whyDenied returns why notifyd may not connect to an address. It returns "" if notifyd may
// connect.
func (p *policy) whyDenied(a netip.AddrPort) string {
	if !p.AnyPort && !slices.Contains(p.Ports, a.Port()) {
		return fmt.Sprintf("port %d is not among the allowed ports", a.Port())
	}
	ip := a.Addr()
	if ip.Zone() != "" {
		return "the address has a zone"
	}
	for _, x := range p.Deny {
		if x.Contains(ip) {
			return "denied by the configuration: " + x.String()
		}
	}
	if slices.ContainsFunc(p.Allow, func(x netip.Prefix) bool { return x.Contains(ip) }) {
		return ""
	}
	for _, x := range extraDenied {
		if x.prefix.Contains(ip) {
			return x.what
		}
	}
	if isatap(ip) {
		return "ISATAP"
	}
	if err := p.library.SafeAddr(ip); err != nil {
		for _, x := range rangeNames {
			if x.prefix.Contains(ip) {
				return x.what
			}
		}
		return "not on the public internet"
	}
	return ""
}

// isatap reports whether an IPv6 address contains an IPv4 address in its interface identifier. A
// router of an ISATAP site would extract and call the IPv4 address (RFC 5214).
func isatap(a netip.Addr) bool {
	if !a.Is6() {
		return false
	}
	b := a.As16()
	return (b[8] == 0 || b[8] == 2) && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}

// deniedError is the error for an address that the policy denies.
type deniedError struct {
	addr string
	why  string
}

func (e *deniedError) Error() string { return "connecting to " + e.addr + " is not allowed: " + e.why }

// control is used as net.Dialer.Control. It makes the last check before the system call, on the
// exact address of the connection, so it does not matter what DNS answered earlier.
func (p *policy) control(network, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	switch {
	case network != "tcp4" && network != "tcp6":
		return &deniedError{address, "the network is " + network}
	case err != nil:
		return &deniedError{address, "not an address"}
	}
	if why := p.whyDenied(a); why != "" {
		return &deniedError{address, why}
	}
	return nil
}
