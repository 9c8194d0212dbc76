package main

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// eachItem calls fn with every item of a file and the number of the line on which the item begins.
// If the first character of the file is "[", the file is a single JSON array. Otherwise it is
// NDJSON. The parameter name is the name of the file in error messages. The function fn must not
// keep an item after it returns.
func eachItem(r io.Reader, name string, fn func(line int, item []byte) error) error {
	in := bufio.NewReader(r)
	if mark, err := in.Peek(3); err == nil && string(mark) == "\xef\xbb\xbf" {
		_, _ = in.Discard(3) // cannot fail: the bytes were peeked
	}
	line := 1
	for {
		b, err := in.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case b == '\n':
			line++
		case b == ' ' || b == '\t' || b == '\r':
		default:
			_ = in.UnreadByte() // cannot fail after a ReadByte
			if b == '[' {
				return eachElement(in, name, line, fn)
			}
			return eachLine(in, name, line, fn)
		}
	}
}

func eachLine(in io.Reader, name string, line int, fn func(line int, item []byte) error) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	for ; lines.Scan(); line++ {
		if item := bytes.TrimSpace(lines.Bytes()); len(item) > 0 {
			if err := fn(line, item); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return term.Usage("%s:%d: the line is larger than 1 MiB", name, line)
	} else if err != nil {
		return err
	}
	return nil
}

// eachElement reads an array element by element, so that the array may be larger than the memory.
// If an element has several lines, eachElement passes it to fn as a single line.
func eachElement(in io.Reader, name string, line int, fn func(line int, item []byte) error) error {
	at, elements := &lineCounter{r: in, line: line}, 0
	dec := json.NewDecoder(at)
	bad := func(err error) error {
		var syntax *json.SyntaxError
		switch {
		case errors.As(err, &syntax):
			return term.Usage("%s: element %d of the array: %v", name, elements+1, err)
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return term.Usage("%s: the array is not closed", name)
		}
		return err
	}
	if _, err := dec.Token(); err != nil { // the opening bracket
		return bad(err)
	}
	var element json.RawMessage
	var item bytes.Buffer
	for ; dec.More(); elements++ {
		if err := dec.Decode(&element); err != nil {
			return bad(err)
		}
		n := at.lineOf(dec.InputOffset() - int64(len(element)))
		if len(element) > maxLine {
			return term.Usage("%s:%d: the element is larger than 1 MiB", name, n)
		}
		item.Reset()
		if err := json.Compact(&item, element); err != nil {
			return bad(err)
		}
		if err := fn(n, item.Bytes()); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return bad(err)
	}
	end := dec.InputOffset()
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return term.Usage("%s:%d: there is text after the array", name, at.lineOf(end))
	}
	return nil
}

// lineCounter counts the lines of what the JSON decoder reads. The decoder reads further than the
// current element. So lineOf finds the line of an element later, from the offset of the element.
type lineCounter struct {
	r    io.Reader
	read int64   // bytes that were read
	ends []int64 // offsets of the line ends after the offset of the latest call of lineOf
	line int     // number of the line that ends at ends[0]
}

func (c *lineCounter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	for i, x := range b[:n] {
		if x == '\n' {
			c.ends = append(c.ends, c.read+int64(i))
		}
	}
	c.read += int64(n)
	return n, err
}

// lineOf returns the number of the line at an offset. The offset must not be lower than the offset
// of the call before.
func (c *lineCounter) lineOf(offset int64) int {
	k := 0
	for k < len(c.ends) && c.ends[k] < offset {
		k++
	}
	c.line, c.ends = c.line+k, c.ends[k:]
	return c.line
}

// inputFile is an open file, or standard input.
type inputFile struct {
	io.Reader
	close func() error
}

// receiverFormats are the values of --fanout-format.
var receiverFormats = []string{"auto", "lines", "ndjson", "csv"}

// headSize is how many bytes of a file are read to detect its format and to recognise the file.
const headSize = 64 << 10

// receiverFormat returns the format of a file of receivers. It is the format that the user asked
// for, or else the format that the file's name or first line shows.
func receiverFormat(asked, name string, head []byte) (string, error) {
	if !slices.Contains(receiverFormats, asked) {
		return "", term.Usage("--fanout-format %q must be one of %s", asked, strings.Join(receiverFormats, ", "))
	}
	if asked != "auto" {
		return asked, nil
	}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".csv":
		return "csv", nil
	case ".ndjson", ".jsonl":
		return "ndjson", nil
	}
	head = bytes.TrimSpace(bytes.TrimPrefix(head, bom))
	line, _, _ := bytes.Cut(head, []byte("\n"))
	line = bytes.TrimSpace(line)
	switch {
	case bytes.HasPrefix(line, []byte("{")):
		return "ndjson", nil
	case string(line) == "user_id" || bytes.HasPrefix(line, []byte("user_id,")) || bytes.HasPrefix(line, []byte(`"user_id"`)):
		return "csv", nil
	}
	return "lines", nil
}

var bom = []byte("\xef\xbb\xbf")

// badLine is an error in a line of a file of receivers. Reading can continue after this error.
type badLine struct {
	name string
	line int
	what string
}

func (e *badLine) Error() string { return fmt.Sprintf("%s:%d: %s", e.name, e.line, e.what) }

// readReceivers reads the receivers one by one, in bounded memory. For a wrong line it yields a
// *badLine and continues. After any other error it stops.
func readReceivers(r io.Reader, name, format string) iter.Seq2[api.Receiver, error] {
	if format == "csv" {
		return readCSV(r, name)
	}
	parse := parseLine
	if format == "ndjson" {
		parse = parseObject
	}
	return func(yield func(api.Receiver, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(make([]byte, 64<<10), maxLine)
		n := 0
		for lines.Scan() {
			n++
			line := lines.Bytes()
			if n == 1 {
				line = bytes.TrimPrefix(line, bom)
			}
			line = bytes.TrimSpace(line)
			if len(line) == 0 {
				continue
			}
			rcv, what := parse(line)
			if what == "" {
				what = receiverProblem(&rcv)
			}
			if !yieldReceiver(yield, rcv, name, n, what) {
				return
			}
		}
		if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
			yield(api.Receiver{}, term.Usage("%s:%d: the line is larger than 1 MiB", name, n+1))
		} else if err != nil {
			yield(api.Receiver{}, err)
		}
	}
}

func yieldReceiver(yield func(api.Receiver, error) bool, r api.Receiver, name string, line int, what string) bool {
	if what != "" {
		return yield(api.Receiver{}, &badLine{name, line, what})
	}
	return yield(r, nil)
}

func parseLine(line []byte) (api.Receiver, string) {
	return api.Receiver{UserID: string(line)}, ""
}

func parseObject(line []byte) (api.Receiver, string) {
	var r api.Receiver
	var err error
	if line[0] == '"' {
		err = jsonv2.Unmarshal(line, &r.UserID)
	} else {
		err = jsonv2.Unmarshal(line, &r, jsonv2.RejectUnknownMembers(true))
	}
	if err != nil {
		var se *jsonv2.SemanticError
		if errors.As(err, &se) && se.JSONPointer != "" {
			what := "has the wrong type"
			if errors.Is(se.Err, jsonv2.ErrUnknownName) {
				what = "is not known; a receiver has user_id, address, variables"
			}
			return api.Receiver{}, fmt.Sprintf("field %s %s", strings.TrimPrefix(string(se.JSONPointer), "/"), what)
		}
		return api.Receiver{}, `not a JSON object {"user_id","address","variables"}`
	}
	switch v := r.Variables; {
	case len(v) == 0:
	case v[0] == 'n':
		r.Variables = nil
	case v[0] != '{':
		return r, "variables is not an object"
	}
	return r, ""
}

// receiverProblem returns why the server would refuse r. It returns "" if the server would accept
// r.
func receiverProblem(r *api.Receiver) string {
	switch {
	case r.UserID == "" && r.Address == "":
		return "has neither a user_id nor an address"
	case len(r.UserID) > notify.MaxUserID:
		return fmt.Sprintf("the user id is longer than %d bytes", notify.MaxUserID)
	case !utf8.ValidString(r.UserID) || !utf8.ValidString(r.Address):
		return "is not valid UTF-8"
	case strings.ContainsFunc(r.UserID, func(c rune) bool { return c < 0x20 || c == 0x7f }):
		return "the user id has control characters"
	case len(r.Address) > notify.MaxAddress:
		return fmt.Sprintf("the address is longer than %d bytes", notify.MaxAddress)
	case len(r.Variables) > notify.MaxVariables:
		return fmt.Sprintf("the variables are larger than %d bytes", notify.MaxVariables)
	}
	return ""
}

// readCSV reads CSV with a header line. The columns user_id and address describe the receiver. Each
// other column is a variable with the name of the column. An empty value sets no variable.
func readCSV(r io.Reader, name string) iter.Seq2[api.Receiver, error] {
	return func(yield func(api.Receiver, error) bool) {
		rows := csv.NewReader(r)
		rows.ReuseRecord = true
		rows.FieldsPerRecord = -1 // checked below, where the error can name the line
		header, err := rows.Read()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return
			}
			yield(api.Receiver{}, csvError(name, err))
			return
		}
		cols := slices.Clone(header)
		cols[0] = strings.TrimPrefix(cols[0], string(bom))
		for i := range cols {
			cols[i] = strings.TrimSpace(cols[i])
		}
		if what := badHeader(cols); what != "" {
			yield(api.Receiver{}, term.Usage("%s:1: %s", name, what))
			return
		}
		for {
			row, err := rows.Read()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(api.Receiver{}, csvError(name, err))
				return
			}
			line, _ := rows.FieldPos(0)
			if len(row) != len(cols) {
				if !yieldReceiver(yield, api.Receiver{}, name, line, fmt.Sprintf("has %d fields, but the header has %d", len(row), len(cols))) {
					return
				}
				continue
			}
			rcv := receiverFromRow(cols, row)
			if !yieldReceiver(yield, rcv, name, line, receiverProblem(&rcv)) {
				return
			}
		}
	}
}

func badHeader(cols []string) string {
	seen := map[string]bool{}
	for _, c := range cols {
		if c == "" {
			return "a column of the header has no name"
		}
		if seen[c] {
			return fmt.Sprintf("the header names %q twice", c)
		}
		seen[c] = true
	}
	if !seen["user_id"] && !seen["address"] {
		return "the header has neither user_id nor address"
	}
	return ""
}

func receiverFromRow(cols, row []string) (r api.Receiver) {
	var vars map[string]string
	for i, v := range row {
		switch {
		case cols[i] == "user_id":
			r.UserID = strings.Clone(strings.TrimSpace(v))
		case cols[i] == "address":
			r.Address = strings.Clone(strings.TrimSpace(v))
		case v != "":
			if vars == nil {
				vars = make(map[string]string, len(cols))
			}
			vars[cols[i]] = v
		}
	}
	if vars != nil {
		r.Variables, _ = json.Marshal(vars) // cannot fail for strings; sorts the variables by name
	}
	return r
}

func csvError(name string, err error) error {
	if pe, ok := errors.AsType[*csv.ParseError](err); ok {
		return term.Usage("%s:%d: %v", name, pe.Line, pe.Err)
	}
	return err
}
