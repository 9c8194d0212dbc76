package notify

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// IsControl reports whether a character changes how what stands around it is
// shown, and is not seen itself: the control characters (C0, DEL, C1), line and
// paragraph separators, and Unicode's Bidi_Control. On a terminal or a page a
// name that holds one can pass for another name, or hide what follows it.
func IsControl(r rune) bool {
	switch {
	case r < 0xa0:
		return r < 0x20 || r >= 0x7f
	case r == '\u2028' || r == '\u2029':
		return true
	}
	return unicode.Is(unicode.Bidi_Control, r)
}

// HasControl reports whether text holds a character of IsControl. Bytes that
// are not UTF-8 are none.
func HasControl(text string) bool { return strings.ContainsFunc(text, IsControl) }

// HasHidden reports whether a name holds a character that is not seen: a control
// character (IsControl), or a character that Unicode lets a display leave out, such as the
// zero-width space, the soft hyphen, a tag or a filler. With one, two names look the same. Joiners
// and the selectors of an emoji's form are part of words in some scripts: they may stand
// behind a character of such a script, and joiners before one. It is for names alone:
// texts for people need more of them.
func HasHidden(name string) bool {
	const scripts = '\u0590'     // the first that has joiners: of Latin, Greek and Cyrillic none has
	before, joined := ' ', false // joined: before is a joiner
	for _, r := range name {
		joins := r == '\u200c' || r == '\u200d'
		selects := r == '\ufe0e' || r == '\ufe0f'
		switch {
		case joined && (hidden(r) || r < scripts):
			return true
		case (joins || selects) && before >= scripts && (!hidden(before) || joins && before == '\ufe0f'):
		case hidden(r):
			return true
		}
		before, joined = r, joins
	}
	return joined
}

// RuleHidden is what a name that HasHidden is told.
const RuleHidden = "has no control characters and none that are not seen or set the direction of text"

func hidden(r rune) bool {
	if r < 0xa0 {
		return IsControl(r)
	}
	return unicode.In(r, unicode.Zl, unicode.Zp, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) &&
		!unicode.Is(unicode.Prepended_Concatenation_Mark, r) // signs before Arabic numbers: they are seen
}

// What CheckUserID says.
const (
	RuleUserIDSize    = "a user id has 1 to 128 bytes"
	RuleUserIDUTF8    = "a user id is UTF-8"
	RuleUserIDControl = "a user id " + RuleHidden
	RuleUserIDPath    = `a user id is not ".", ".." or "/": no URL could name it`
)

// CheckUserID returns the rule that a user id breaks, "" if it breaks none. Ids
// are kept and compared byte by byte; nothing is normalised.
func CheckUserID(id string) (rule string) {
	switch {
	case len(id) == 0 || len(id) > MaxUserID:
		return RuleUserIDSize
	case id == "." || id == ".." || id == "/": // Go's ServeMux takes %2F alone for the end of a path
		return RuleUserIDPath
	case !utf8.ValidString(id):
		return RuleUserIDUTF8
	case HasHidden(id):
		return RuleUserIDControl
	}
	return ""
}

// EscapeControls returns text with every character of IsControl, and every byte
// that is no UTF-8, written as an escape of JSON, \u202e, or \xff. Text without
// them is returned as it is.
func EscapeControls(text string) string {
	if utf8.ValidString(text) && !HasControl(text) {
		return text
	}
	b := make([]byte, 0, len(text)+16)
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			b = append(b, `\x`...)
			b = append(b, strconv.FormatUint(uint64(text[i]), 16)...)
		case IsControl(r):
			b = append(b, `\u`...)
			const hex = "0123456789abcdef"
			b = append(b, hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15]) // all are below U+10000
		default:
			b = append(b, text[i:i+n]...)
		}
		i += n
	}
	return string(b)
}
