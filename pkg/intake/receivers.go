package intake

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/notify"
)

// scanArray adds the receivers of the JSON array that starts at b[i] to f. It returns the position
// after the array.
func scanArray(b []byte, i int, f *splitter) (int, error) {
	if i >= len(b) || b[i] != '[' {
		if i+4 <= len(b) && string(b[i:i+4]) == "null" {
			return i + 4, nil
		}
		return i, invalid("wrong_type", "receivers", "must be an array")
	}
	if i = skipSpace(b, i+1); i < len(b) && b[i] == ']' {
		return i + 1, nil
	}
	for {
		var err error
		if i, err = scanReceiver(b, i, 2, f); err != nil {
			return i, f.atReceiver(err)
		}
		if i < len(b) && b[i] != ',' {
			i = skipSpace(b, i)
		}
		switch {
		case i >= len(b):
			return i, badJSON(i, "the array of receivers does not end")
		case b[i] == ']':
			return i + 1, nil
		case b[i] != ',':
			return i, badJSON(i, "a comma is expected after a receiver")
		}
		if i++; i < len(b) && b[i] <= ' ' {
			i = skipSpace(b, i)
		}
	}
}

// scanLines adds the receivers of b from position i, one per line, to f.
func scanLines(b []byte, i int, f *splitter) error {
	for {
		if i = skipSpace(b, i); i == len(b) {
			return nil
		}
		end, err := scanReceiver(b, i, 0, f)
		if err == nil && b[i] == '{' && bytes.IndexByte(b[i:end], '\n') >= 0 {
			err = badJSON(i, "a receiver must not have a line break in it")
		}
		if err != nil {
			return f.atReceiver(err)
		}
		for end < len(b) && (b[end] == ' ' || b[end] == '\t' || b[end] == '\r') {
			end++
		}
		if end < len(b) && b[end] != '\n' {
			return f.atReceiver(badJSON(end, "a line break is expected after a receiver"))
		}
		i = end
	}
}

// scanReceiver reads one receiver, a user id or an object. The parameter depth is the number of
// values that enclose it.
func scanReceiver(b []byte, i, depth int, f *splitter) (int, error) {
	if i >= len(b) {
		return i, badJSON(i, "a receiver is expected")
	}
	switch b[i] {
	case '"':
		if j := plainEnd(b, i+1); j < len(b) && b[j] == '"' {
			f.addPlain(b, i+1, j)
			return j + 1, nil
		}
		user, end, err := stringAt(b, i)
		if err != nil {
			return i, err
		}
		f.addReceiver(user, nil, nil)
		return end, nil
	case '{':
		return scanObject(b, i, depth+1, f)
	}
	return i, invalid("wrong_type", "", fmt.Sprintf("a receiver must be a user id or an object; the value at byte %d is neither", i))
}

func scanObject(b []byte, i, depth int, f *splitter) (int, error) {
	var user, address, vars []byte
	var seen [3]bool
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
		f.addReceiver(nil, nil, nil)
		return i + 1, nil
	}
	for {
		if i = skipSpace(b, i); i >= len(b) || b[i] != '"' {
			return i, badJSON(i, "a field name is expected")
		}
		key, end, err := stringAt(b, i)
		if err != nil {
			return i, err
		}
		if i = skipSpace(b, end); i >= len(b) || b[i] != ':' {
			return i, badJSON(i, "a colon is expected")
		}
		i = skipSpace(b, i+1)
		field := 0
		switch string(key) {
		case "user_id":
			user, i, err = stringOrNull(b, i, "user_id")
		case "address":
			field = 1
			address, i, err = stringOrNull(b, i, "address")
		case "variables":
			field = 2
			vars, i, err = objectOrNull(b, i, depth)
		default:
			return i, invalid("unknown_field", request.FieldPath(jsontext.Pointer("").AppendToken(string(key))), "there is no such field")
		}
		if err != nil {
			return i, err
		}
		if seen[field] {
			return i, invalid("duplicate_key", string(key), "the field is given twice")
		}
		seen[field] = true
		if i = skipSpace(b, i); i < len(b) && b[i] == '}' {
			f.addReceiver(user, address, vars)
			return i + 1, nil
		}
		if i >= len(b) || b[i] != ',' {
			return i, badJSON(i, "a comma or a closing brace is expected")
		}
		i++
	}
}

func stringOrNull(b []byte, i int, field string) ([]byte, int, error) {
	switch {
	case i < len(b) && b[i] == '"':
		s, end, err := stringAt(b, i)
		return s, end, prefixField(field, err)
	case i+4 <= len(b) && string(b[i:i+4]) == "null":
		return nil, i + 4, nil
	}
	return nil, i, invalid("wrong_type", field, "must be a string")
}

func objectOrNull(b []byte, i, depth int) ([]byte, int, error) {
	if i+4 <= len(b) && string(b[i:i+4]) == "null" {
		return nil, i + 4, nil
	}
	if i >= len(b) || b[i] != '{' {
		return nil, i, invalid("wrong_type", "variables", "must be an object")
	}
	end, ok := skipValue(b, i)
	if !ok {
		return nil, i, badJSON(end, "the variables do not end")
	}
	v := b[i:end:end]
	if request.Nesting(v)+depth > request.MaxDepth {
		return nil, i, tooDeep("variables")
	}
	if err := checkValue(v); err != nil {
		return nil, i, prefixField("variables", err)
	}
	return v, end, nil
}

// checkValue returns an error unless v is exactly one valid JSON value.
func checkValue(v []byte) error {
	if jsontext.Value(v).IsValid() {
		return nil
	}
	var x jsontext.Value
	dec := jsontext.NewDecoder(bytes.NewReader(v))
	x, err := dec.ReadValue()
	if err == nil { // then other data follows the value
		return badJSON(len(x), "nothing may follow the value")
	}
	return request.DecodeError(err)
}

// columnReceivers adds the receivers of a packed column (protobuf) to f.
func columnReceivers(column []byte, count uint32, f *splitter) error {
	rd := notify.ReadReceivers(column)
	for r := (notify.Receiver{}); rd.Next(&r); {
		if r.Index != f.index {
			return invalid("bad_column", fmt.Sprintf("receivers[%d]", f.index), fmt.Sprintf("has the index %d; indexes must run from 0 to count-1 without gaps", r.Index))
		}
		if r.Address == nil && r.Variables == nil && plainEnd(r.User, 0) == len(r.User) {
			end := len(column) - len(rd.Rest())
			f.addPlain(column, end-len(r.User), end)
			continue
		}
		if !utf8.Valid(r.User) || !utf8.Valid(r.Address) {
			return invalid("bad_utf8", fmt.Sprintf("receivers[%d]", f.index), "must be valid UTF-8")
		}
		vars, err := objectBytes(r.Variables, "variables", 0)
		if err != nil {
			return f.atReceiver(err)
		}
		f.addReceiver(r.User, r.Address, vars)
	}
	if rd.Err() != nil {
		return invalid("bad_column", fmt.Sprintf("receivers[%d]", f.index), "the packed column is damaged")
	}
	if f.index != count {
		return invalid("bad_column", "count", fmt.Sprintf("is %d, but the column contains %d receivers", count, f.index))
	}
	return nil
}

// prefixField puts the path field before the field name that the error err contains. For example,
// it makes receivers[7].address from receivers[7] and address.
func prefixField(field string, err error) error {
	e, ok := errors.AsType[*notify.Error](err)
	if !ok {
		return err
	}
	c := *e
	switch {
	case c.Field == "":
		c.Field = field
	case c.Field[0] == '[':
		c.Field = field + c.Field
	default:
		c.Field = field + "." + c.Field
	}
	return &c
}
