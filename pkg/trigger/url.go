package trigger

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"github.com/notifyd/notifyd/pkg/notify"
)

// maxURL is the longest callback URL, in bytes as it was given.
const maxURL = 2048

// target is a callback URL or a base URL, taken apart and in one spelling: a
// host in lower case and punycode, no default port, a path that begins with a
// slash and has nothing in it that a server might resolve to another place.
type target struct {
	scheme string
	host   string // a name or an address, without brackets
	port   uint16
	path   string // escaped
	query  string // without the question mark
	isIP   bool
}

// url is t as net/http takes it.
func (t *target) url() *url.URL {
	u := &url.URL{Scheme: t.scheme, Host: t.authority(), RawQuery: t.query, Path: t.path}
	if strings.IndexByte(t.path, '%') >= 0 {
		u.RawPath = t.path
		u.Path, _ = url.PathUnescape(t.path) // parsePath has seen it
	}
	return u
}

// authority is the host, and the port unless it is the scheme's own.
func (t *target) authority() string {
	host := t.host
	if t.isIP && strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if t.port != defaultPort(t.scheme) {
		host += ":" + strconv.Itoa(int(t.port))
	}
	return host
}

func (t *target) String() string {
	s := t.scheme + "://" + t.authority() + t.path
	if t.query != "" {
		s += "?" + t.query
	}
	return s
}

// under reports whether t is base or below it. A base's path ends at a slash, so
// that /hooks/ covers /hooks and /hooks/x, but not /hooks-of-another.
func (t *target) under(base *target) bool {
	return t.scheme == base.scheme && t.host == base.host && t.port == base.port &&
		(strings.HasPrefix(t.path, base.path) || t.path+"/" == base.path)
}

func defaultPort(scheme string) uint16 {
	if scheme == "http" {
		return 80
	}
	return 443
}

// parseURL checks and normalises a URL that somebody gave as field. plain says
// whether http is admitted beside https.
func parseURL(field, raw string, plain bool) (*target, error) {
	bad := func(code, rule string) (*target, error) { return nil, notify.Invalid(code, field, rule) }
	switch {
	case raw == "":
		return bad("required", "a URL is needed")
	case len(raw) > maxURL:
		return bad("url_too_long", "is longer than 2,048 bytes")
	case !utf8.ValidString(raw):
		return bad("bad_url", "is not valid UTF-8")
	}
	for i := range len(raw) {
		// net/url refuses some of these, lets others through, and servers differ.
		switch c := raw[i]; {
		case c < 0x20, c == 0x7f:
			return bad("url_control_character", "must not contain control characters")
		case c == ' ', c == '\\', c == '"', c == '<', c == '>', c == '^', c == '`', c == '{', c == '|', c == '}':
			return bad("bad_url", "contains a character that must be escaped: "+strconv.Quote(string(c)))
		case c == '#':
			return bad("url_fragment", "must not have a fragment: a server never sees it")
		}
	}
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" {
		return bad("bad_url", "is not a URL of the form https://host/path")
	}
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return bad("url_scheme", "must begin with https://")
	case u.Scheme == "http" && !plain:
		return bad("url_scheme", "must begin with https://: this server makes no unencrypted calls")
	case u.User != nil:
		return bad("url_userinfo", "must not carry a user or password")
	}
	t := &target{scheme: u.Scheme, query: u.RawQuery}
	if t.host, t.isIP, err = parseHost(field, u.Hostname(), strings.HasPrefix(u.Host, "[")); err != nil {
		return nil, err
	}
	if t.port, err = parsePort(field, u); err != nil {
		return nil, err
	}
	if t.path, err = parsePath(field, u); err != nil {
		return nil, err
	}
	if !ascii(t.query) {
		return bad("bad_url", "the query must be percent-encoded")
	}
	return t, nil
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// names maps and checks names as browsers and resolvers do (UTS 46, strict):
// what a look-alike maps to is what is compared and called.
var names = idna.New(
	idna.MapForLookup(),
	idna.BidiRule(),
	idna.Transitional(false),
	idna.VerifyDNSLength(true),
	idna.StrictDomainName(true),
)

// parseHost returns a host in its one spelling. An address in any form but the
// usual one is refused: 2130706433, 0177.0.0.1, 0x7f.1 and 127.1 are 127.0.0.1
// to some resolvers and a name to others.
func parseHost(field, host string, brackets bool) (name string, isIP bool, err error) {
	bad := func(rule string) (string, bool, error) { return "", false, notify.Invalid("url_host", field, rule) }
	if host == "" {
		return bad("needs a host")
	}
	if brackets {
		a, err := netip.ParseAddr(host)
		switch {
		case err != nil || !a.Is6():
			return bad("brackets hold an IPv6 address")
		case a.Zone() != "":
			return bad("an address must not have a zone")
		case a.Is4In6():
			return bad("an IPv4 address is written without ::ffff:")
		}
		return a.String(), true, nil
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.String(), true, nil // net/url lets only IPv4 come without brackets
	}
	name, err = names.ToASCII(host)
	if err != nil || name == "" || len(name) > 253 {
		return bad("the host is not a name DNS could hold")
	}
	if again, err := names.ToASCII(name); err != nil || again != name {
		return bad("the host is not a name DNS could hold") // a punycode that stands for nothing
	}
	if strings.HasSuffix(name, ".") {
		return bad("the host must not end with a dot")
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	if number(last) {
		return bad("an address is written as four decimal numbers")
	}
	return name, false, nil
}

// number reports whether a resolver might read a label as a number: digits, or
// 0x and hexadecimal digits. A host that ends in one is an address or an error.
func number(label string) bool {
	if strings.Trim(label, "0123456789") == "" {
		return true
	}
	hex, ok := strings.CutPrefix(strings.ToLower(label), "0x")
	return ok && strings.Trim(hex, "0123456789abcdef") == ""
}

func parsePort(field string, u *url.URL) (uint16, error) {
	text := u.Port()
	if text == "" {
		if strings.HasSuffix(u.Host, ":") {
			return 0, notify.Invalid("url_port", field, "a colon is followed by a port")
		}
		return defaultPort(u.Scheme), nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || text[0] == '0' {
		return 0, notify.Invalid("url_port", field, "the port must be a number from 1 to 65535")
	}
	return uint16(n), nil
}

// parsePath refuses what would make a path below a base URL lead elsewhere: dot
// segments, also with parameters behind them, and escaped slashes.
func parsePath(field string, u *url.URL) (string, error) {
	p := u.EscapedPath()
	if p == "" {
		return "/", nil
	}
	lower := strings.ToLower(p)
	if strings.Contains(lower, "%2f") || strings.Contains(lower, "%5c") {
		return "", notify.Invalid("url_path", field, "must not contain an escaped slash or backslash")
	}
	if strings.Contains(lower, "%00") || strings.Contains(lower, "%25") {
		return "", notify.Invalid("url_path", field, "must not contain an escaped zero byte or percent sign")
	}
	// %c0%ae is an overlong dot: invalid, but some servers decode it to one.
	if !utf8.ValidString(u.Path) {
		return "", notify.Invalid("url_path", field, "must be valid UTF-8 when its escapes are decoded")
	}
	for seg := range strings.SplitSeq(u.Path, "/") {
		seg, _, _ = strings.Cut(seg, ";")
		if seg == "." || seg == ".." {
			return "", notify.Invalid("url_path", field, "must not contain . or .. as a segment")
		}
	}
	return p, nil
}

// CheckBaseURL returns a caller's base URL in the spelling that is stored and
// compared, or a notify.KindInvalid that names field. Its path gets a slash at
// the end; a query is refused. plain admits http.
func CheckBaseURL(field, raw string, plain Plain) (string, error) {
	t, err := parseURL(field, raw, bool(plain))
	if err != nil {
		return "", err
	}
	if t.query != "" || strings.HasSuffix(raw, "?") {
		return "", notify.Invalid("url_query", field, "a base URL has no query")
	}
	if !strings.HasSuffix(t.path, "/") {
		t.path += "/"
	}
	return t.String(), nil
}

// Plain says whether URLs may be http beside https.
type Plain bool

// parseBase returns a stored base URL; nil for one that is none: stored by hand,
// or before a rule. It admits nothing.
func parseBase(raw string, plain bool) *target {
	b, err := parseURL("callback_urls", raw, plain)
	if err != nil {
		return nil
	}
	if !strings.HasSuffix(b.path, "/") {
		b.path += "/"
	}
	return b
}

// allowed reports whether u is under one of a caller's base URLs.
func allowed(u *target, bases []string, plain bool) bool {
	for _, raw := range bases {
		if b := parseBase(raw, plain); b != nil && u.under(b) {
			return true
		}
	}
	return false
}

func underAny(u *target, bases []*target) bool {
	for _, b := range bases {
		if u.under(b) {
			return true
		}
	}
	return false
}
