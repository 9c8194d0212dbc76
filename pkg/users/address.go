package users

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/notifyd/notifyd/pkg/notify"
)

// The maximum lengths of the parts of an e-mail address (RFC 5321 and 1035), in bytes.
const (
	maxMail  = 254
	maxLocal = 64
	maxLabel = 63
)

// The errors of ValidateAddress. Callers see these texts.
var (
	errAddressSize = fmt.Errorf("an address must be UTF-8 text of at most %d bytes", notify.MaxAddress)
	errPushAddress = errors.New("a push address must be apns: or fcm: followed by a device token")
	errAPNs        = errors.New("the token after apns: must consist of hexadecimal digits")
	errFCM         = errors.New("the token after fcm: may have only letters, digits, hyphens, underscores, dots and colons")
	errPhone       = errors.New("a phone number must have the form E.164: + and 7 to 15 digits; the first digit must not be 0")
	errMail        = errors.New("an e-mail address must be local@domain and have at most 254 bytes, without a name, spaces, quotes, brackets or a comment")
	errLocal       = errors.New("the part before the @ must have 1 to 64 bytes: letters, digits and !#$%&'*+-/=?^_`{|}~; dots are allowed between them, but not two dots together")
	errDomain      = errors.New("the domain must consist of labels with single dots between them; a label has 1 to 63 letters, digits and hyphens, and must not begin or end with a hyphen")
	errChannel     = errors.New("there is no such channel; use push, sms or email")
)

// ValidateAddress returns an error if the address is not valid for the channel. The error does not
// contain the address. A valid push address can be used in the path of a URL, and any valid address
// in a header. So the clients of the providers need not escape the address.
func ValidateAddress(ch notify.Channel, a string) error {
	if len(a) > notify.MaxAddress {
		return errAddressSize
	}
	switch ch {
	case notify.Push:
		return validatePush(a)
	case notify.SMS:
		digits, ok := strings.CutPrefix(a, "+")
		if !ok || len(digits) < 7 || len(digits) > 15 || digits[0] == '0' || strings.Trim(digits, "0123456789") != "" {
			return errPhone
		}
		return nil
	case notify.Email:
		return validateMail(a)
	}
	return errChannel
}

// Classes of ASCII characters.
const (
	hexDigit = 1 << iota
	fcmToken
	atext // characters of Atom in RFC 5321
	ldh   // letter, digit or hyphen
	plain // letter or digit
)

var classes = func() (t [256]uint8) {
	add := func(class uint8, chars string) {
		for i := range len(chars) {
			t[chars[i]] |= class
		}
	}
	const letters, digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", "0123456789"
	add(hexDigit, digits+"abcdefABCDEF")
	add(fcmToken, letters+digits+"-_.:")
	add(atext, letters+digits+"!#$%&'*+-/=?^_`{|}~")
	add(ldh, letters+digits+"-")
	add(plain, letters+digits)
	return t
}()

// allOfClass reports whether all characters of s belong to the given class. It returns true for an
// empty s.
func allOfClass(s string, class uint8) bool {
	all := class
	for i := range len(s) {
		all &= classes[s[i]]
	}
	return all != 0
}

// isHex reports whether s has only hexadecimal digits. It checks eight digits at a time, because a
// fan-out on the push channel has a device token for each receiver. One by one, the 64 digits of a
// token took 60 ns.
func isHex(s string) bool {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; len(s) >= 8; s = s[8:] {
		x := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		low := x &^ highs // clear the high bits, so that no sum carries into the next byte
		lower := low | ones*0x20
		digit := (low + ones*(0x80-'0')) &^ (low + ones*(0x80-'9'-1))
		letter := (lower + ones*(0x80-'a')) &^ (lower + ones*(0x80-'f'-1))
		if (digit|letter)&^x&highs != highs {
			return false
		}
	}
	return allOfClass(s, hexDigit)
}

func validatePush(a string) error {
	token, apns := strings.CutPrefix(a, "apns:")
	if apns {
		if token == "" || !isHex(token) {
			return errAPNs
		}
		return nil
	}
	token, fcm := strings.CutPrefix(a, "fcm:")
	switch {
	case !fcm:
		return errPushAddress
	case token == "" || !allOfClass(token, fcmToken):
		return errFCM
	}
	return nil
}

// validateMail accepts Dot-string "@" Domain of RFC 5321. It also accepts letters outside ASCII, as
// RFC 6531 does. It refuses quoted local parts and domains in brackets, because providers refuse
// them.
func validateMail(a string) error {
	if isPlainMail(a) {
		return nil
	}
	at := strings.LastIndexByte(a, '@')
	if at < 0 || len(a) > maxMail || !utf8.ValidString(a) || strings.ContainsAny(a, " \t\r\n\"<>()") {
		return errMail
	}
	local, domain := a[:at], a[at+1:]
	if len(local) > maxLocal || !validParts(local, func(atom string) bool { return wordOfClass(atom, atext) }) {
		return errLocal
	}
	if !validParts(domain, isLabel) {
		return errDomain
	}
	return nil
}

// isPlainMail accepts the form of almost all addresses: letters, digits and a few other characters.
// It needs a fifth of the time of the full check. If it returns false, the address may still be
// valid.
func isPlainMail(a string) bool {
	const dot = '.'
	last, at := byte(dot), -1 // a part must not begin with a dot
	label := 0                // index where the current label begins
	for i := range len(a) {
		c := a[i]
		switch {
		case classes[c]&plain != 0:
		case c == '-' && (at < 0 || last != dot):
		case (c == '_' || c == '+') && at < 0:
		case c == dot && last != dot && (at < 0 || last != '-'):
			if at >= 0 && i-label > maxLabel {
				return false
			}
			label = i + 1
		case c == '@' && last != dot && at < 0 && i <= maxLocal:
			at, label, c = i, i+1, dot
		default:
			return false
		}
		last = c
	}
	return at > 0 && last != dot && last != '-' && len(a)-label <= maxLabel && len(a) <= maxMail
}

// validParts reports whether s consists of one or more parts with single dots between them. No part
// may be empty, and the function ok must return true for each part.
func validParts(s string, ok func(part string) bool) bool {
	for {
		part, rest, more := strings.Cut(s, ".")
		if part == "" || !ok(part) {
			return false
		}
		if !more {
			return true
		}
		s = rest
	}
}

func isLabel(s string) bool {
	return len(s) <= maxLabel && s[0] != '-' && s[len(s)-1] != '-' && wordOfClass(s, ldh)
}

// wordOfClass reports whether each character of s belongs to the given class or, outside ASCII, is
// a letter, a combining mark or a digit.
func wordOfClass(s string, class uint8) bool {
	for i, r := range s {
		if r < utf8.RuneSelf {
			if classes[s[i]]&class == 0 {
				return false
			}
		} else if !unicode.In(r, unicode.L, unicode.M, unicode.Nd) {
			return false
		}
	}
	return true
}
