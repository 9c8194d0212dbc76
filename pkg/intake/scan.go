package intake

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/go-json-experiment/json/jsontext"
)

// A hand-written scanner for the one long array of a fan-out. It accepts what
// the strict library accepts (FuzzFanoutJSON holds them against each other) at
// a tenth of its cost: strings without escapes are found eight bytes at a time
// and never copied. Everything rare (escapes, nested objects, the head) goes to
// the library.

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plainEnd returns the first position from i on that holds a quote, a
// backslash, a control character (DEL too) or a byte outside ASCII, or len(b).
func plainEnd(b []byte, i int) int {
	for i+8 <= len(b) {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, slash := x^(ones*'"'), x^(ones*'\\')
		// Each term has the high bit of the first such byte set; bits above
		// the first may be wrong (borrows) and are not looked at.
		m := (quote-ones)&^quote | (slash-ones)&^slash | (x-ones*0x20)&^x | (x + ones) | x
		if m &= highs; m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
		i += 8
	}
	for i < len(b) && b[i] >= 0x20 && b[i] < 0x7f && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the position behind the string that starts at b[i], which
// is a quote; false when it does not end. What is in it is not checked.
func skipString(b []byte, i int) (int, bool) {
	for i++; ; {
		i = plainEnd(b, i)
		switch {
		case i >= len(b):
			return i, false
		case b[i] == '"':
			return i + 1, true
		case b[i] == '\\':
			i += 2
		default:
			i++
		}
	}
}

// skipValue returns the position behind the value that starts at b[i]. It only
// finds where it ends; whoever uses the value checks it.
func skipValue(b []byte, i int) (int, bool) {
	if i >= len(b) {
		return i, false
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		for depth := 0; i < len(b); {
			switch b[i] {
			case '"':
				var ok bool
				if i, ok = skipString(b, i); !ok {
					return i, false
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1, true
				}
			}
			i++
		}
		return i, false
	}
	start := i
	for i < len(b) && b[i] != ',' && b[i] != ']' && b[i] != '}' && skipSpace(b, i) == i {
		i++
	}
	return i, i > start
}

// stringAt reads the string that starts at b[i]. It aliases b unless the
// string has escapes. Invalid strings are refused as the library does.
func stringAt(b []byte, i int) (s []byte, end int, err error) {
	j := plainEnd(b, i+1)
	if j < len(b) && b[j] == '"' {
		return b[i+1 : j : j], j + 1, nil
	}
	end, ok := skipString(b, i)
	if !ok {
		return nil, end, badJSON(end, "the string does not end")
	}
	s, err = jsontext.AppendUnquote(nil, b[i:end])
	if err != nil {
		return nil, i, invalid("bad_json", "", fmt.Sprintf("not a valid string at byte %d", i))
	}
	return s, end, nil
}

func badJSON(at int, msg string) error {
	return invalid("bad_json", "", fmt.Sprintf("not valid JSON at byte %d: %s", at, msg))
}

// topLevel finds the value of the member called name in the object b, without
// checking anything but the object's own commas and colons. start is -1 when
// there is none.
func topLevel(b []byte, name string) (start int, err error) {
	i := skipSpace(b, 0)
	if i == len(b) {
		return 0, invalid("bad_json", "", "the body is empty")
	}
	if b[i] != '{' {
		return 0, invalid("wrong_type", "", "the body must be an object")
	}
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
		return -1, nil
	}
	for {
		if i = skipSpace(b, i); i >= len(b) || b[i] != '"' {
			return 0, badJSON(i, "a field name is expected")
		}
		key, end, err := stringAt(b, i)
		if err != nil {
			return 0, err
		}
		if i = skipSpace(b, end); i >= len(b) || b[i] != ':' {
			return 0, badJSON(i, "a colon is expected")
		}
		i = skipSpace(b, i+1)
		if string(key) == name {
			return i, nil
		}
		end, ok := skipValue(b, i)
		if !ok {
			return 0, badJSON(end, "a value is expected")
		}
		if i = skipSpace(b, end); i < len(b) && b[i] == '}' {
			return -1, nil
		}
		if i >= len(b) || b[i] != ',' {
			return 0, badJSON(i, "a comma or a closing brace is expected")
		}
		i++
	}
}
