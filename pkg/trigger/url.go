package trigger

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"github.com/notifyd/notifyd/pkg/notify"
)

// maxURL is the longest callback URL, in bytes as given by the caller.
const maxURL = 2048

// callbackURL is a parsed callback URL or base URL in canonical form. The host is in lower case and
// punycode. A default port is removed. The path begins with a slash and contains nothing that a
// server might resolve to another path.
type callbackURL struct {
	scheme string
	host   string // a name or an address, without brackets
	port   uint16
	path   string // escaped
	query  string // without the question mark
	isIP   bool
}

// url returns t as a *url.URL for net/http.
func (t *callbackURL) url() *url.URL {
	u := &url.URL{Scheme: t.scheme, Host: t.authority(), RawQuery: t.query, Path: t.path}
	if strings.IndexByte(t.path, '%') >= 0 {
		u.RawPath = t.path
		u.Path, _ = url.PathUnescape(t.path) // parsePath has checked it
	}
	return u
}

// authority returns the host, with the port unless it is the default port of the scheme.
func (t *callbackURL) authority() string {
	host := t.host
	if t.isIP && strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if t.port != defaultPort(t.scheme) {
		host += ":" + strconv.Itoa(int(t.port))
	}
	return host
}

func (t *callbackURL) String() string {
	s := t.scheme + "://" + t.authority() + t.path
	if t.query != "" {
		s += "?" + t.query
	}
	return s
}

// isUnder reports whether the URL t equals a base URL or is under it. The path of a base URL ends
// with a slash. So the base URL with the path /hooks/ includes /hooks and /hooks/x, but not
// /hooks-of-another.
func (t *callbackURL) isUnder(base *callbackURL) bool {
	return t.scheme == base.scheme && t.host == base.host && t.port == base.port &&
		(strings.HasPrefix(t.path, base.path) || t.path+"/" == base.path)
}

func defaultPort(scheme string) uint16 {
	if scheme == "http" {
		return 80
	}
	return 443
}

// parseURL checks a URL and returns it in canonical form. The parameter field is the name of the
// field in errors. If plain is true, http is allowed in addition to https.
func parseURL(field, raw string, plain bool) (*callbackURL, error) {
	bad := func(code, rule string) (*callbackURL, error) { return nil, notify.Invalid(code, field, rule) }
	switch {
	case raw == "":
		return bad("required", "must be a URL")
	case len(raw) > maxURL:
		return bad("url_too_long", fmt.Sprintf("has %d bytes; the maximum is %d bytes", len(raw), maxURL))
	case !utf8.ValidString(raw):
		return bad("bad_url", "is not valid UTF-8")
	}
	for i := range len(raw) {
		// net/url refuses some of these characters and accepts others, and servers treat them
		// differently.
		switch c := raw[i]; {
		case c < 0x20, c == 0x7f:
			return bad("url_control_character", "must not contain control characters")
		case c == ' ', c == '\\', c == '"', c == '<', c == '>', c == '^', c == '`', c == '{', c == '|', c == '}':
			return bad("bad_url", "contains a character that must be escaped: "+strconv.Quote(string(c)))
		case c == '#':
			return bad("url_fragment", "must not have a fragment (#…), because a fragment is never sent to a server")
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
		return bad("url_scheme", "must begin with https://, because this server makes no unencrypted calls")
	case u.User != nil:
		return bad("url_userinfo", "must not contain a user name or password")
	}
	t := &callbackURL{scheme: u.Scheme, query: u.RawQuery}
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

// idnaNames maps and checks host names as browsers and resolvers do (UTS 46, strict). notifyd
// compares and calls only the mapped name, never the given name.
var idnaNames = idna.New(
	idna.MapForLookup(),
	idna.BidiRule(),
	idna.Transitional(false),
	idna.VerifyDNSLength(true),
	idna.StrictDomainName(true),
)

// parseHost returns a host in canonical form. It accepts an address only in its usual form. It
// refuses 2130706433, 0177.0.0.1, 0x7f.1 and 127.1, because some resolvers read them as 127.0.0.1,
// and others read them as names.
func parseHost(field, host string, brackets bool) (name string, isIP bool, err error) {
	bad := func(rule string) (string, bool, error) { return "", false, notify.Invalid("url_host", field, rule) }
	if host == "" {
		return bad("must have a host")
	}
	if brackets {
		a, err := netip.ParseAddr(host)
		switch {
		case err != nil || !a.Is6():
			return bad("the address in brackets must be an IPv6 address")
		case a.Zone() != "":
			return bad("the IPv6 address must not have a zone")
		case a.Is4In6():
			return bad("an IPv4 address must be written without ::ffff:")
		}
		return a.String(), true, nil
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.String(), true, nil // net/url accepts only IPv4 addresses without brackets
	}
	name, err = idnaNames.ToASCII(host)
	if err != nil || name == "" || len(name) > 253 {
		return bad("the host is not a valid DNS name")
	}
	if again, err := idnaNames.ToASCII(name); err != nil || again != name {
		return bad("the host is not a valid DNS name") // punycode that does not map to a name
	}
	if strings.HasSuffix(name, ".") {
		return bad("the host must not end with a dot")
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	if looksNumeric(last) {
		return bad("an IPv4 address must be written as four decimal numbers")
	}
	return name, false, nil
}

// looksNumeric reports whether a resolver might read a label of a host name as a number: whether it
// consists of digits, or of 0x and hexadecimal digits. A host whose last label looks numeric is an
// address or an error.
func looksNumeric(label string) bool {
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
			return 0, notify.Invalid("url_port", field, "must have a port after the colon")
		}
		return defaultPort(u.Scheme), nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || text[0] == '0' {
		return 0, notify.Invalid("url_port", field, "the port must be a number from 1 to 65535")
	}
	return uint16(n), nil
}

// parsePath refuses everything with which a path under a base URL could lead outside that base URL:
// dot segments, even with parameters after them, and escaped slashes.
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
	// %c0%ae is an overlong encoding of a dot: invalid, but some servers decode it.
	if !utf8.ValidString(u.Path) {
		return "", notify.Invalid("url_path", field, "must be valid UTF-8 when its escapes are decoded")
	}
	for seg := range strings.SplitSeq(u.Path, "/") {
		seg, _, _ = strings.Cut(seg, ";")
		if seg == "." || seg == ".." {
			return "", notify.Invalid("url_path", field, "must not contain the segment \".\" or \"..\"")
		}
	}
	return p, nil
}

// CheckBaseURL returns a caller's base URL in the canonical form that is stored and compared. It
// adds a slash to the end of the path. It returns notify.KindInvalid if the URL is not valid or has
// a query. The parameter field is the name of the field in that error.
func CheckBaseURL(field, raw string, plain Plain) (string, error) {
	t, err := parseURL(field, raw, bool(plain))
	if err != nil {
		return "", err
	}
	if t.query != "" || strings.HasSuffix(raw, "?") {
		return "", notify.Invalid("url_query", field, "a base URL must not have a query")
	}
	if !strings.HasSuffix(t.path, "/") {
		t.path += "/"
	}
	return t.String(), nil
}

// Plain is true if URLs may use http in addition to https.
type Plain bool

// parseBase parses a stored base URL. It returns nil if the URL is not valid, for example because
// it was stored before a rule existed. Such a base URL allows no calls.
func parseBase(raw string, plain bool) *callbackURL {
	b, err := parseURL("callback_urls", raw, plain)
	if err != nil {
		return nil
	}
	if !strings.HasSuffix(b.path, "/") {
		b.path += "/"
	}
	return b
}

// underStoredBase reports whether u is under one of a caller's base URLs.
func underStoredBase(u *callbackURL, bases []string, plain bool) bool {
	for _, raw := range bases {
		if b := parseBase(raw, plain); b != nil && u.isUnder(b) {
			return true
		}
	}
	return false
}

func underAny(u *callbackURL, bases []*callbackURL) bool {
	for _, b := range bases {
		if u.isUnder(b) {
			return true
		}
	}
	return false
}
