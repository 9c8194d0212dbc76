package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/itchyny/gojq"
	"go.yaml.in/yaml/v3"
)

// Formats are the values of -o.
var Formats = []string{"table", "json", "jsonl", "yaml"}

// Printer writes results in the format the user asked for.
type Printer struct {
	Out       io.Writer
	Format    string // one of Formats
	JQ        string // filter, applied to the JSON form
	NoHeaders bool

	// Paint colours a cell of a table; header says whether it is one of the
	// first row. It adds only what takes no room. nil: no colour.
	Paint func(cell string, header Header) string
}

// Header says whether a cell names its column.
type Header bool

// Check reports a wrong format or filter before any work is done.
func (p *Printer) Check() error {
	if !slices.Contains(Formats, p.Format) {
		return Usage("-o %q: formats are %s", p.Format, strings.Join(Formats, ", "))
	}
	if p.JQ != "" {
		if _, err := gojq.Parse(p.JQ); err != nil {
			return Usage("--jq: %v", err)
		}
	}
	return nil
}

// Table is what a human sees: the first row is the header.
type Table [][]string

// Print writes v: as the table in that format, else v itself. A list in jsonl
// is one line an item.
func (p *Printer) Print(v any, table func() Table) error {
	if p.JQ != "" {
		return p.filter(v)
	}
	switch p.Format {
	case "json":
		return p.json(v, "  ")
	case "jsonl":
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		var list []json.RawMessage
		if json.Unmarshal(b, &list) != nil {
			list = []json.RawMessage{b}
		}
		for _, item := range list {
			if _, err := fmt.Fprintf(p.Out, "%s\n", item); err != nil {
				return err
			}
		}
		return nil
	case "yaml":
		plain, err := plain(v)
		if err != nil {
			return err
		}
		enc := yaml.NewEncoder(p.Out)
		enc.SetIndent(2)
		defer enc.Close()
		return enc.Encode(plain)
	}
	return p.table(table())
}

// Record writes one thing: to a human as a list of names and values, of which
// those without a value are left out.
func (p *Printer) Record(v any, fields func() Table) error {
	if p.JQ != "" || p.Format != "table" {
		return p.Print(v, nil)
	}
	var t Table
	for _, f := range fields() {
		if len(f) > 1 && f[1] != "" {
			t = append(t, f)
		}
	}
	return p.rows(t, Header(false))
}

// Line writes one item of a stream: a JSON line unless the format is table,
// then text.
func (p *Printer) Line(v any, text func() string) error {
	if p.JQ != "" {
		return p.filter(v)
	}
	if p.Format == "table" {
		_, err := fmt.Fprintln(p.Out, text())
		return err
	}
	return p.json(v, "")
}

func (p *Printer) json(v any, indent string) error {
	enc := json.NewEncoder(p.Out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	return enc.Encode(v)
}

func (p *Printer) table(t Table) error {
	if p.NoHeaders && len(t) > 0 {
		return p.rows(t[1:], Header(false))
	}
	return p.rows(t, Header(true))
}

// rows lays cells out in columns. The widths are counted before anything is
// coloured, and the last cell of a row is not filled up.
func (p *Printer) rows(t Table, first Header) error {
	var widths []int
	for _, row := range t {
		for i, cell := range row {
			row[i] = strings.Map(printable, cell)
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	var b bytes.Buffer
	for n, row := range t {
		for len(row) > 0 && row[len(row)-1] == "" {
			row = row[:len(row)-1]
		}
		for i, cell := range row {
			fill := 0
			if i < len(row)-1 {
				fill = widths[i] - utf8.RuneCountInString(cell) + 2
			}
			if p.Paint != nil {
				cell = p.Paint(cell, first && n == 0)
			}
			b.WriteString(cell)
			b.WriteString(strings.Repeat(" ", fill))
		}
		b.WriteByte('\n')
	}
	_, err := p.Out.Write(b.Bytes())
	return err
}

// Clean takes what steers a terminal out of a text that came from outside.
func Clean(s string) string { return strings.Map(printable, s) }

// printable keeps what comes from outside from steering the terminal.
func printable(r rune) rune {
	switch {
	case r == '\n' || r == '\t' || r == '\r':
		return ' '
	case r < 0x20 || (r >= 0x7f && r < 0xa0):
		return -1
	}
	return r
}

func (p *Printer) filter(v any) error {
	q, err := gojq.Parse(p.JQ)
	if err != nil {
		return Usage("--jq: %v", err)
	}
	in, err := plain(v)
	if err != nil {
		return err
	}
	for it := q.Run(in); ; {
		out, ok := it.Next()
		if !ok {
			return nil
		}
		if err, bad := out.(error); bad {
			return Usage("--jq: %v", err)
		}
		if s, is := out.(string); is {
			fmt.Fprintln(p.Out, s)
			continue
		}
		b, err := gojq.Marshal(out)
		if err != nil {
			return err
		}
		fmt.Fprintf(p.Out, "%s\n", b)
	}
}

// plain turns v into maps, lists and scalars by way of its JSON form.
func plain(v any) (any, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out any
	dec := json.NewDecoder(bytes.NewReader(b))
	err = dec.Decode(&out)
	return out, err
}
