package notify

import "strings"

// MaxPlaceholder is the maximum length of a variable's name in a text, in bytes.
const MaxPlaceholder = 64

// NextPlaceholder finds the first placeholder, such as {{name}}, that begins at the given byte
// offset of s or later. The placeholder with its braces is s[begin:end]. A name consists of
// letters, digits, '_', '-' and '.', has at most MaxPlaceholder bytes and may have spaces around
// it. Anything else between braces is plain text. The time is proportional to the length of s.
func NextPlaceholder(s string, offset int) (begin, end int, name string, ok bool) {
	for {
		i := strings.Index(s[offset:], "{{")
		if i < 0 {
			return 0, 0, "", false
		}
		begin = offset + i
		start := begin + 2
		for start < len(s) && s[start] == ' ' {
			start++
		}
		at := start
		for at < len(s) && isNameByte(s[at]) {
			at++
		}
		name = s[start:at]
		for at < len(s) && s[at] == ' ' {
			at++
		}
		if name != "" && len(name) <= MaxPlaceholder && strings.HasPrefix(s[at:], "}}") {
			return begin, at + 2, name, true
		}
		offset = begin + 1 // continue one byte later: "{{{name}}" has a placeholder there
	}
}

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}
