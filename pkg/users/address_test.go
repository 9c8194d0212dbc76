package users

import (
	"net/mail"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/notifyd/notifyd/pkg/notify"
)

// What is taken can be handed on as it is: a push token stands in a path, a
// mail address in a header, and the standard library reads it as the same
// address.
func FuzzAddress(f *testing.F) {
	for _, a := range []string{
		"apns:0aF9", "apns:x", "fcm:", "fcm:f-_.:APA91b", "apns:a b", "apns:../../x", "fcm:\u00e9", "+14155550100", "+0123", "+1", "+1234567890123456", "14155550100",
		"ann@example.com", "a.b+c@x.y", ".a@x", "a..b@x", "a@b@c", "a@x.", "Ann <a@b>", "\"q\"@x", "a@", "@x", "ü@x.y", "a@[1.2.3.4]", "a@-x", "a\u202e@x.y",
	} {
		for ch := range uint8(3) {
			f.Add(ch, a)
		}
	}
	f.Fuzz(func(t *testing.T, n uint8, a string) {
		ch := notify.Channels[int(n)%len(notify.Channels)]
		if ValidateAddress(ch, a) != nil {
			return
		}
		if len(a) > notify.MaxAddress || !utf8.ValidString(a) || notify.HasControl(a) || strings.ContainsAny(a, " \"<>()\\,;") {
			t.Errorf("%s takes %q", ch, a)
		}
		switch ch {
		case notify.Push:
			_, token, _ := strings.Cut(a, ":")
			if url.PathEscape(token) != token || token == "" {
				t.Errorf("%q does not stand in a path", a)
			}
		case notify.Email:
			if m, err := mail.ParseAddress(a); err != nil || m.Address != a || m.Name != "" {
				t.Errorf("%q is read as %v, %v", a, m, err)
			}
		}
	})
}

// The shortcuts take nothing that the rules do not.
func FuzzAddressShortcuts(f *testing.F) {
	for _, a := range []string{"", "0123456789abcdefABCDEF", "0123456g", "01234567\xb0\xe1", "/:@G`g~\x80", "a-b.c@d-e.f", "a@-b", "a@b-.c", "a@b-", "-a@b", "a_@b_c", "a@b@c", "a.@b", strings.Repeat("a", 65) + "@b", "a@" + strings.Repeat("b", 64)} {
		f.Add(a)
	}
	f.Fuzz(func(t *testing.T, a string) {
		if isHex(a) != allOfClass(a, hexDigit) && a != "" {
			t.Errorf("%q: hexadecimal %v", a, isHex(a))
		}
		if isPlainMail(a) {
			local, domain, _ := strings.Cut(a, "@")
			if len(local) > maxLocal || len(a) > maxMail || !validParts(local, func(s string) bool { return wordOfClass(s, atext) }) || !validParts(domain, isLabel) {
				t.Errorf("%q is no address", a)
			}
		}
	})
}

func TestHexDigits(t *testing.T) {
	t.Parallel()
	for c := range 256 { // each byte at each place of a word
		for at := range 8 {
			s := []byte("00000000")
			s[at] = byte(c)
			if want := strings.IndexByte("0123456789abcdefABCDEF", byte(c)) >= 0; isHex(string(s)) != want {
				t.Fatalf("%q: %v", s, !want)
			}
		}
	}
}

func BenchmarkValidateAddress(b *testing.B) {
	for ch, a := range map[notify.Channel]string{
		notify.Push: "apns:" + strings.Repeat("0a1b2c3d", 8), notify.SMS: "+14155550100", notify.Email: "firstname.lastname@example.com",
	} {
		b.Run(ch.String(), func(b *testing.B) {
			for b.Loop() {
				if ValidateAddress(ch, a) != nil {
					b.Fatal(a)
				}
			}
		})
	}
}
