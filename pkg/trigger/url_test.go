package trigger

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Every form of URL is either refused with a code, or has exactly one spelling.
func TestParseURL(t *testing.T) {
	t.Parallel()
	f := func(raw, want, code string) {
		t.Helper()
		u, err := parseURL("callback_url", raw, false)
		if code != "" {
			refused(t, err, notify.KindInvalid, code, "callback_url")
			return
		}
		if err != nil {
			t.Errorf("%q: %v", raw, err)
			return
		}
		if got := u.String(); got != want {
			t.Errorf("%q became %q, want %q", raw, got, want)
		}
		if again, err := parseURL("callback_url", want, false); err != nil || again.String() != want {
			t.Errorf("%q is not its own spelling: %v, %v", want, again, err)
		}
	}
	f("https://shop.example/hooks/1?a=b&c=%20d", "https://shop.example/hooks/1?a=b&c=%20d", "")
	f("https://SHOP.Example:443", "https://shop.example/", "")
	f("HTTPS://shop.example:8443/x", "https://shop.example:8443/x", "")
	f("https://bücher.example/ä", "https://xn--bcher-kva.example/%C3%A4", "")
	f("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/", "")
	f("https://ｓｈｏｐ.example/", "https://shop.example/", "") // look-alike characters become those that are called
	f("https://192.0.2.7/x", "https://192.0.2.7/x", "")
	f("https://[2001:DB8::1]:444/x", "https://[2001:db8::1]:444/x", "")
	f("https://shop.example/a%20b/%7euser", "https://shop.example/a%20b/%7euser", "")

	f("", "", "required")
	f("https://shop.example/"+strings.Repeat("x", 2048), "", "url_too_long")
	f("http://shop.example/", "", "url_scheme")
	f("ftp://shop.example/", "", "url_scheme")
	f("//shop.example/", "", "url_scheme")
	f("shop.example/hooks", "", "url_scheme")
	f("javascript:alert(1)", "", "bad_url")
	f("https:shop.example", "", "bad_url")
	f("https://user@shop.example/", "", "url_userinfo")
	f("https://user:pw@shop.example/", "", "url_userinfo")
	f("https://shop.example@evil.example/", "", "url_userinfo")
	f("https://@shop.example/", "", "url_userinfo")
	f("https://shop.example/#x", "", "url_fragment")
	f("https://shop.example/#", "", "url_fragment")
	f("https://shop.example/\r\nX: y", "", "url_control_character")
	f("https://shop.example/\x00", "", "url_control_character")
	f("https://shop.example/\x7f", "", "url_control_character")
	f("https://shop.example\\@evil.example/", "", "bad_url")
	f("https://shop.example/a b", "", "bad_url")
	f("https://shop.example/%zz", "", "bad_url")
	f("https:///x", "", "url_host")
	f("https://:443/x", "", "url_host")
	f("https://shop.example./x", "", "url_host")
	f("https://shop..example/x", "", "url_host")
	f("https://-shop.example/x", "", "url_host")
	f("https://shop_1.example/x", "", "url_host")
	f("https://"+strings.Repeat("a", 64)+".example/", "", "url_host")
	f("https://shop.example:0/", "", "url_port")
	f("https://shop.example:65536/", "", "url_port")
	f("https://shop.example:0443/", "", "url_port")
	f("https://shop.example:/", "", "url_port")
	f("https://shop.example:http/", "", "bad_url")
	// Other ways to write 127.0.0.1 and similar addresses.
	for _, host := range []string{
		"2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "127.1", "127.0.1", "127.0.0.01",
		"0", "00", "0x0", "1.2.3.4.5", "256.0.0.1", "shop.example.1", "shop.0x7f", "１２７.0.0.1x.1", "127。1",
	} {
		f("https://"+host+"/", "", "url_host")
	}
	f("https://１２７。０。０。１.2/", "", "url_host")
	f("https://[::ffff:127.0.0.1]/", "", "url_host")
	f("https://[::ffff:7f00:1]/", "", "url_host")
	f("https://[fe80::1%25eth0]/", "", "url_host")
	f("https://[127.0.0.1]/", "", "bad_url")
	f("https://[::1/", "", "bad_url")
	// Paths that a server might resolve to another place.
	for _, path := range []string{"../admin", "./x", "a/../../b", "%2e%2e/x", "..;/x", "..;a=b/x", "a%2fb", "a%5Cb", "%2F..", "a%00b", "%252e%252e/x", "%c0%ae%c0%ae/x", "%e0%80%ae/x", "%ff"} {
		f("https://shop.example/hooks/"+path, "", "url_path")
	}
}

// A look-alike address in full-width digits either becomes the address, which the policy then
// checks, or is refused.
func TestWideDigits(t *testing.T) {
	t.Parallel()
	u, err := parseURL("callback_url", "https://１２７.０.０.１/", false)
	if err == nil {
		t.Fatalf("became %s, a name DNS is asked for", u)
	}
}

// A base URL covers itself and what is below it, and nothing that only begins
// the same way.
func TestUnderBase(t *testing.T) {
	t.Parallel()
	f := func(base, url string, want bool) {
		t.Helper()
		b, err := CheckBaseURL("callback_urls[0]", base, true)
		if err != nil {
			t.Fatalf("%q: %v", base, err)
		}
		u, err := parseURL("callback_url", url, true)
		if err != nil {
			t.Fatalf("%q: %v", url, err)
		}
		if got := underStoredBase(u, []string{"https://other.example/", "not a URL", b}, true); got != want {
			t.Errorf("%q under %q is %v", url, base, got)
		}
	}
	f("https://shop.example/hooks/", "https://shop.example/hooks/1", true)
	f("https://shop.example/hooks", "https://shop.example/hooks/1/2?x=y", true)
	f("https://shop.example/hooks", "https://shop.example/hooks", true)
	f("https://shop.example/hooks", "https://shop.example/hooks?x=y", true)
	f("https://shop.example/hooks", "https://shop.example/hooks-of-another", false)
	f("https://shop.example/hooks", "https://shop.example/Hooks/1", false)
	f("https://shop.example/hooks", "https://shop.example/", false)
	f("https://shop.example", "https://shop.example/any", true)
	f("https://SHOP.example:443/", "https://shop.example/any", true)
	f("https://shop.example/", "https://shop.example:444/any", false)
	f("https://shop.example/", "http://shop.example/any", false)
	f("https://shop.example/", "https://shop.example.evil.example/any", false)
	f("https://shop.example/", "https://evilshop.example/any", false)
	f("https://bücher.example/", "https://xn--bcher-kva.example/x", true)
	f("http://127.0.0.1:8080/", "http://127.0.0.1:8080/x", true)
	f("http://127.0.0.1:8080/", "http://127.0.0.1/x", false)

	_, err := CheckBaseURL("callback_urls[0]", "https://shop.example/?x", false)
	refused(t, err, notify.KindInvalid, "url_query", "callback_urls[0]")
	_, err = CheckBaseURL("callback_urls[0]", "https://shop.example/?", false)
	refused(t, err, notify.KindInvalid, "url_query", "callback_urls[0]")
}

// Every URL that is admitted has one spelling and stays under its own host.
func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"https://shop.example/hooks/1?a=b", "https://[::1]:1/", "https://a@b/", "https://１.example/", "http://0x7f.1", "https://x/%2e%2e/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := parseURL("callback_url", raw, true)
		if err != nil {
			return
		}
		s := u.String()
		again, err := parseURL("callback_url", s, true)
		if err != nil || *again != *u {
			t.Fatalf("%q became %q, which became %v, %v", raw, s, again, err)
		}
		base, err := CheckBaseURL("callback_urls[0]", s[:len(u.scheme)+len("://")+strings.IndexByte(s[len(u.scheme)+len("://"):], '/')], true)
		if err != nil || !underStoredBase(u, []string{base}, true) {
			t.Fatalf("%q is not under its own host %q: %v", s, base, err)
		}
	})
}
