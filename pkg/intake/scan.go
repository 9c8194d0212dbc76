package intake

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/request"
)

// This is a hand-written scanner for the long array of a fan-out. It accepts exactly what the
// strict JSON library accepts (FuzzFanoutJSON compares them), at a tenth of the cost. It finds the
// end of a string without escapes eight bytes at a time and never copies the string. The library
// reads the rare cases: escapes, nested objects and the head.

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plainEnd returns the first position, from i on, of a byte that is a quote, a backslash, a control
// character (also DEL) or outside ASCII. If there is no such byte, it returns len(b).
func plainEnd(b []byte, i int) int {
	for i+8 <= len(b) {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, slash := x^(ones*'"'), x^(ones*'\\')
		// Each term sets the high bit of the first byte that it searches for. High bits above the
		// first one that is set may be wrong because of borrows, but only the first one is used.
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

// skipString returns the position after the string that starts at b[i], which is a quote. It
// returns false if the string does not end. It does not check the content.
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

// skipValue returns the position after the value that starts at b[i]. It only finds the end. The
// code that uses the value must check it.
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

// stringAt reads the string that starts at b[i]. The result s shares memory with b unless the
// string has escapes. stringAt refuses the same strings as the JSON library.
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
		return nil, i, invalid("bad_json", "", fmt.Sprintf("the string at byte %d is not valid", i))
	}
	return s, end, nil
}

func badJSON(at int, msg string) error {
	return invalid("bad_json", "", fmt.Sprintf("not valid JSON at byte %d: %s", at, msg))
}

// findMember returns the position of the value of the member called name in the object b, or -1 if
// there is no such member. It checks only the commas and colons of the object itself.
func findMember(b []byte, name string) (start int, err error) {
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

// The JSON library takes 900 ns for a notification, and half of this time is for copies of strings.
// The 900 ns were half of a batch's cost. fastNote reads plain notifications in 250 ns. It either
// reads the body exactly as decodeNote would (FuzzNote), or returns false. Then the library reads
// the body and makes the error.

// Field numbers of a notification. eachMember uses them to find duplicate fields.
const (
	fieldChannel = iota
	fieldCategory
	fieldTo
	fieldContent
	fieldScheduled
	fieldExpires
)

// fastNote decodes b into n. The strings and slices of n share memory with b.
func fastNote(b []byte, n *note) bool {
	end, ok := fastNoteAt(b, skipSpace(b, 0), n)
	return ok && skipSpace(b, end) == len(b)
}

// fastNoteAt decodes the notification that begins at b[i] and returns the position after it. So a
// batch is scanned only once.
func fastNoteAt(b []byte, i int, n *note) (end int, ok bool) {
	*n = note{}
	var channel, category []byte
	end, ok = eachMember(b, i, func(key []byte, i int) (field uint, end int, ok bool) {
		switch string(key) {
		case "channel":
			channel, end, ok = fastString(b, i)
			return fieldChannel, end, ok
		case "category":
			category, end, ok = fastString(b, i)
			return fieldCategory, end, ok
		case "to":
			end, ok = fastTo(b, i, n)
			return fieldTo, end, ok
		case "content":
			end, ok = fastContent(b, i, n)
			return fieldContent, end, ok
		case "scheduled_at":
			n.scheduled, end, ok = fastTime(b, i, notBefore)
			return fieldScheduled, end, ok
		case "expires_at":
			n.expires, end, ok = fastTime(b, i, millis)
			return fieldExpires, end, ok
		}
		return 0, 0, false
	})
	if !ok {
		return i, false
	}
	var err error
	n.channel, n.category, err = parseLane(alias(channel), alias(category))
	return end, err == nil
}

func fastTo(b []byte, i int, n *note) (int, bool) {
	return eachMember(b, i, func(key []byte, i int) (field uint, end int, ok bool) {
		switch string(key) {
		case "user_id":
			n.user, end, ok = fastString(b, i)
			return 0, end, ok
		case "address":
			n.address, end, ok = fastString(b, i)
			return 1, end, ok
		case "variables":
			n.vars, end, ok = fastObject(b, i)
			return 2, end, ok
		}
		return 0, 0, false
	})
}

func fastContent(b []byte, i int, n *note) (int, bool) {
	c := &n.content
	return eachMember(b, i, func(key []byte, i int) (field uint, end int, ok bool) {
		var to *string
		switch string(key) {
		case "title":
			field, to = 0, &c.Title
		case "body":
			field, to = 1, &c.Body
		case "html":
			field, to = 2, &c.HTML
		case "template":
			field, to = 3, &c.Template
		case "collapse_key":
			field, to = 4, &c.CollapseKey
		case "from":
			field, to = 5, &c.From
		case "variables":
			c.Variables, end, ok = fastObject(b, i)
			return 6, end, ok
		case "data":
			c.Data, end, ok = fastObject(b, i)
			return 7, end, ok
		default:
			return 0, 0, false
		}
		s, end, ok := fastString(b, i)
		*to = alias(s)
		return field, end, ok
	})
}

// eachMember calls fn for every member of the object that starts at b[i], with the name and the
// position of the value. fn returns the number of the field and the position after the value.
// eachMember returns false if there is no object, if a field occurs twice, or if fn returns false.
func eachMember(b []byte, i int, fn func(key []byte, i int) (field uint, end int, ok bool)) (end int, ok bool) {
	if i >= len(b) || b[i] != '{' {
		return i, false
	}
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
		return i + 1, true
	}
	for had := uint(0); ; {
		if i = skipSpace(b, i); i >= len(b) || b[i] != '"' {
			return i, false
		}
		start := i + 1
		// A name ends at its next quote. A name with escapes does not equal any known name. So fn
		// returns false, and the library reads the body.
		for i = start; i < len(b) && b[i] != '"'; i++ {
		}
		if i == len(b) {
			return i, false
		}
		key := b[start:i]
		if i++; i == len(b) || b[i] != ':' {
			if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
				return i, false
			}
		}
		field, end, ok := fn(key, skipSpace(b, i+1))
		if !ok || had&(1<<field) != 0 {
			return i, false
		}
		had |= 1 << field
		if i = skipSpace(b, end); i < len(b) && b[i] == '}' {
			return i + 1, true
		}
		if i >= len(b) || b[i] != ',' {
			return i, false
		}
		i++
	}
}

func isNull(b []byte, i int) bool { return i+4 <= len(b) && string(b[i:i+4]) == "null" }

func fastString(b []byte, i int) (s []byte, end int, ok bool) {
	if isNull(b, i) {
		return nil, i + 4, true
	}
	if i >= len(b) || b[i] != '"' {
		return nil, i, false
	}
	s, end, err := stringAt(b, i)
	return s, end, err == nil
}

// fastObject reads a JSON object or null. Two other values enclose the object, which counts for
// the limit of nesting.
func fastObject(b []byte, i int) (v []byte, end int, ok bool) {
	if isNull(b, i) {
		return nil, i + 4, true
	}
	if i >= len(b) || b[i] != '{' {
		return nil, i, false
	}
	if end, ok = skipValue(b, i); !ok {
		return nil, i, false
	}
	v = b[i:end:end]
	return v, end, request.Nesting(v)+2 <= request.MaxDepth && checkValue(v) == nil
}

func fastTime(b []byte, i int, in func(*time.Time) int64) (ms int64, end int, ok bool) {
	if isNull(b, i) {
		return 0, i + 4, true
	}
	if i >= len(b) || b[i] != '"' {
		return 0, i, false
	}
	if end, ok = skipString(b, i); !ok {
		return 0, i, false
	}
	var t time.Time
	if json.Unmarshal(b[i:end], &t) != nil {
		return 0, i, false
	}
	return in(&t), end, true
}
