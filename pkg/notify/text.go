package notify

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// IsControl reports whether a character is invisible and changes how the text around it is displayed.
// Such characters are control characters (C0, DEL, C1), line and paragraph separators, and Unicode's
// Bidi_Control. On a terminal or a web page, a name with such a character can look like another name or
// can hide the text after it.
func IsControl(r rune) bool {
	switch {
	case r < 0xa0:
		return r < 0x20 || r >= 0x7f
	case r == '\u2028' || r == '\u2029':
		return true
	}
	return unicode.Is(unicode.Bidi_Control, r)
}

// HasControl reports whether a text contains a character for which IsControl returns true. It
// ignores bytes that are not UTF-8.
func HasControl(text string) bool { return strings.ContainsFunc(text, IsControl) }

// HasHidden returns true if a name contains an invisible character. With such a character two
// different names can look the same. Use HasHidden only for names, because longer texts need some
// of these characters.
//
// Invisible characters are those of IsControl, and those that a display may omit by Unicode's
// rules. Examples are the zero-width space, the soft hyphen, tags and fillers. But in some scripts,
// words need joiners and variation selectors, which are also invisible. So HasHidden allows a
// joiner or a variation selector after a character of such a script; after a joiner, another
// character of such a script must follow.
func HasHidden(name string) bool {
	const scripts = '\u0590'     // first character of the scripts that use joiners; Latin, Greek and Cyrillic come before it and use none
	before, joined := ' ', false // joined: the previous character is a joiner
	for _, r := range name {
		joins := r == '\u200c' || r == '\u200d'
		selects := r == '\ufe0e' || r == '\ufe0f'
		switch {
		case joined && (isHidden(r) || r < scripts):
			return true
		case (joins || selects) && before >= scripts && (!isHidden(before) || joins && before == '\ufe0f'):
		case isHidden(r):
			return true
		}
		before, joined = r, joins
	}
	return joined
}

// RuleHidden is the text of the rule that a name breaks if HasHidden returns true.
const RuleHidden = "must not contain control characters, invisible characters or characters that set the direction of text"

func isHidden(r rune) bool {
	if r < 0xa0 {
		return IsControl(r)
	}
	return unicode.In(r, unicode.Zl, unicode.Zp, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) &&
		!unicode.Is(unicode.Prepended_Concatenation_Mark, r) // signs before Arabic numbers are visible
}

// The rules that CheckUserID returns.
const (
	RuleUserIDSize    = "a user id must have 1 to 128 bytes"
	RuleUserIDUTF8    = "a user id must be UTF-8 text"
	RuleUserIDControl = "a user id " + RuleHidden
	RuleUserIDPath    = `a user id must not be ".", ".." or "/", because no URL could contain it`
)

// CheckUserID returns the rule that a user id breaks, or "" if it breaks none. Ids are stored and
// compared byte by byte, without normalisation.
func CheckUserID(id string) (rule string) {
	switch {
	case len(id) == 0 || len(id) > MaxUserID:
		return RuleUserIDSize
	case id == "." || id == ".." || id == "/": // Go's ServeMux treats a lone %2F as the end of a path
		return RuleUserIDPath
	case !utf8.ValidString(id):
		return RuleUserIDUTF8
	case HasHidden(id):
		return RuleUserIDControl
	}
	return ""
}

// EscapeControls returns a copy of a text in which every character for which IsControl returns true
// is a JSON escape such as \u202e, and every byte that is not UTF-8 is an escape such as \xff. A
// text without such characters and bytes is returned unchanged.
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
