package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/notifyd/notifyd/pkg/term"
)

// eachItem calls fn with every item of a file and the number of the line on which it
// begins. The file is NDJSON, or one JSON array if its first character is "[". name is
// that of the file in errors. fn must not keep item.
func eachItem(r io.Reader, name string, fn func(line int, item []byte) error) error {
	in := bufio.NewReader(r)
	if mark, err := in.Peek(3); err == nil && string(mark) == "\xef\xbb\xbf" {
		_, _ = in.Discard(3) // it was peeked
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
			_ = in.UnreadByte() // after a ReadByte
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
		return term.Usage("%s:%d: the line is over 1 MiB", name, line)
	} else if err != nil {
		return err
	}
	return nil
}

// eachElement reads an array element by element, so that its size is not bounded by
// memory. An element that spans lines is passed on as one.
func eachElement(in io.Reader, name string, line int, fn func(line int, item []byte) error) error {
	at, elements := &lineCounter{r: in, line: line}, 0
	dec := json.NewDecoder(at)
	bad := func(err error) error {
		var syntax *json.SyntaxError
		switch {
		case errors.As(err, &syntax):
			return term.Usage("%s: element %d of the array: %v", name, elements+1, err)
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return term.Usage("%s: the array has no end", name)
		}
		return err
	}
	if _, err := dec.Token(); err != nil { // the bracket
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
			return term.Usage("%s:%d: the element is over 1 MiB", name, n)
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
		return term.Usage("%s:%d: something follows the array", name, at.lineOf(end))
	}
	return nil
}

// lineCounter remembers where lines end in what was read ahead of a decoder.
type lineCounter struct {
	r    io.Reader
	read int64   // bytes
	ends []int64 // offsets of line ends that lineOf has not passed
	line int     // number of the line before the first of ends
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

// lineOf returns the line of an offset, which must not be less than at the last call.
func (c *lineCounter) lineOf(offset int64) int {
	k := 0
	for k < len(c.ends) && c.ends[k] < offset {
		k++
	}
	c.line, c.ends = c.line+k, c.ends[k:]
	return c.line
}
