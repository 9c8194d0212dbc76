package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/notifyd/notifyd/pkg/term"
)

// TestEachItem: NDJSON and a JSON array give the same items, each with the line on
// which it begins, however the file is cut by reads.
func TestEachItem(t *testing.T) {
	t.Parallel()
	big := `{"a":"` + strings.Repeat("x", maxLine) + `"}`
	for name, x := range map[string]struct{ in, want, err string }{
		"lines":              {"{\"a\":1}\n\n  {\"b\":2}  \r\nx", `1:{"a":1} 3:{"b":2} 4:x`, ""},
		"lines with a mark":  {"\xef\xbb\xbf\n{\"a\":1}", `2:{"a":1}`, ""},
		"nothing":            {" \n\t", "", ""},
		"array":              {`[{"a":1},{"b":[2, 3]}]`, `1:{"a":1} 1:{"b":[2,3]}`, ""},
		"array over lines":   {"\xef\xbb\xbf\n [\n{\n \"a\" : \"x ] y\"\n} ,\n\n{\"b\":2}\n]\n\n", `3:{"a":"x ] y"} 7:{"b":2}`, ""},
		"empty array":        {"[ ]", "", ""},
		"array of others":    {"[1,\n\"x\"]", `1:1 2:"x"`, ""},
		"array without end":  {"[{\"a\":1},\n", `1:{"a":1}`, "in: the array is not closed"},
		"cut element":        {"[{\"a\":1},\n{\"b\"", `1:{"a":1}`, "in: the array is not closed"},
		"not JSON":           {"[{\"a\":1},\n{b}]", `1:{"a":1}`, "in: element 2 of the array: invalid character 'b' "},
		"two arrays":         {"[{\"a\":1}]\n[]", `1:{"a":1}`, "in:1: there is text after the array"},
		"large line":         {"x\n" + big, `1:x`, "in:2: the line is larger than 1 MiB"},
		"large element":      {"[1,\n" + big + "]", `1:1`, "in:2: the element is larger than 1 MiB"},
		"a comma at the end": {"[1,\n]", "1:1", "in: element 2 of the array: invalid character ']' "},
	} {
		readers := []io.Reader{strings.NewReader(x.in)}
		if len(x.in) < 1000 { // byte by byte a long line takes long
			readers = append(readers, iotest.OneByteReader(strings.NewReader(x.in)))
		}
		for _, r := range readers {
			var got []string
			err := eachItem(r, "in", func(line int, item []byte) error {
				got = append(got, fmt.Sprintf("%d:%s", line, item))
				return nil
			})
			if g := strings.Join(got, " "); g != x.want {
				t.Errorf("%s: %s, want %s", name, g, x.want)
			}
			switch {
			case x.err == "" && err != nil, x.err != "" && (err == nil || !strings.HasPrefix(err.Error(), x.err)):
				t.Errorf("%s: error %v, want %q", name, err, x.err)
			case err != nil && term.ExitCode(err) != term.ExitUsage:
				t.Errorf("%s: exit %d", name, term.ExitCode(err))
			}
		}
	}
}
