package term

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/itchyny/gojq"
	"go.yaml.in/yaml/v3"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Formats are the values of -o.
var Formats = []string{"table", "json", "jsonl", "yaml"}

// Printer writes results in the format that the user chose with -o.
type Printer struct {
	Out       io.Writer
	Format    string // one of Formats
	JQ        string // filter, applied to the JSON form
	NoHeaders bool

	// AuditID is the number of the row in the audit log in which the server recorded the operation.
	// Print adds it to a JSON object as the field audit_id. A table does not show it. Empty: the
	// operation was not recorded.
	AuditID string

	// Paint adds colour to a cell of a table. The parameter header is true for the cells of the
	// header row. Paint may add only terminal escapes, which take no columns. nil: no colour.
	Paint func(cell string, header Header) string
	// Width is the number of columns of the terminal. 0: there is no terminal, and tables are not
	// cut. If a table is too wide, Printer drops the columns whose headers are in Optional, in that
	// order. If the table is still too wide, Printer cuts its last column.
	Width    int
	Optional []string
}

// Header is true if a cell is in the header row, which holds the names of the columns.
type Header bool

// Check returns a usage error if the format or the filter is wrong. Call it before any work.
func (p *Printer) Check() error {
	if !slices.Contains(Formats, p.Format) {
		return Usage("-o %q is not a format; the formats are %s", p.Format, strings.Join(Formats, ", "))
	}
	if p.JQ != "" {
		if _, err := gojq.Parse(p.JQ); err != nil {
			return Usage("--jq: the filter is not valid: %v", err)
		}
	}
	return nil
}

// Table is the form of a result that people read. Its first row is the header.
type Table [][]string

// List is the JSON form of every list. It is an object and not an array, so that a later release can
// add a field.
type List struct {
	Items []json.RawMessage `json:"items"`
}

// Print writes the parameter table if the format is "table", and v in every other format. If v is a
// list, Print writes it as a List, except in the format "jsonl": then it writes each item of the
// list as one line, and applies JQ to each line.
func (p *Printer) Print(v any, table Table) error {
	if p.JQ == "" && p.Format == "table" {
		return p.table(table)
	}
	items, isList, err := itemsOf(v)
	switch {
	case err != nil:
		return err
	case isList && p.Format == "jsonl":
		for _, item := range items {
			if err := p.Line(item, nil); err != nil {
				return err
			}
		}
		return nil
	case isList:
		v = List{items}
	}
	if v, err = p.withAuditID(v); err != nil {
		return err
	}
	if p.JQ != "" {
		return p.filter(v)
	}
	switch p.Format {
	case "json":
		return p.json(v, "  ")
	case "jsonl":
		return p.json(v, "")
	case "yaml":
		return p.yaml(v)
	}
	return nil
}

// itemsOf returns the items of v in JSON. The result isList is false if v is not a list.
func itemsOf(v any) (items []json.RawMessage, isList bool, err error) {
	if t := reflect.TypeOf(v); t == nil || t.Kind() != reflect.Slice {
		return nil, false, nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, false, err
	}
	switch b.Bytes()[0] {
	case '[':
		err := json.Unmarshal(b.Bytes(), &items)
		return items, true, err
	case 'n': // null: a list without items
		return []json.RawMessage{}, true, nil
	}
	return nil, false, nil // JSON of an object
}

// Record writes one object. In the format "table" it prints the name and the value of each field,
// and omits fields that have no value.
func (p *Printer) Record(v any, fields Table) error {
	if p.JQ != "" || p.Format != "table" {
		return p.Print(v, nil)
	}
	var t Table
	for _, f := range fields {
		if len(f) > 1 && f[1] != "" {
			t = append(t, f)
		}
	}
	return p.rows(t, Header(false))
}

// Line writes one item of a stream. In the format "table" it writes the text that the function line
// returns. In every other format it writes v as a line of JSON.
func (p *Printer) Line(v any, line func() string) error {
	if p.JQ == "" && p.Format == "table" {
		_, err := fmt.Fprintln(p.Out, line())
		return err
	}
	v, err := p.withAuditID(v)
	if err != nil {
		return err
	}
	if p.JQ != "" {
		return p.filter(v)
	}
	return p.json(v, "")
}

// withAuditID returns v with audit_id as its first field. It returns v unchanged if AuditID is
// empty, if v is not an object, or if Printer writes a table.
func (p *Printer) withAuditID(v any) (any, error) {
	if p.AuditID == "" || p.JQ == "" && p.Format == "table" {
		return v, nil
	}
	b, err := json.Marshal(v)
	if err != nil || len(b) == 0 || b[0] != '{' {
		return v, err
	}
	id, err := json.Marshal(p.AuditID)
	if err != nil {
		return nil, err
	}
	head := append([]byte(`{"audit_id":`), id...)
	if b[1] != '}' {
		head = append(head, ',')
	}
	return json.RawMessage(append(head, b[1:]...)), nil
}

func (p *Printer) json(v any, indent string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := p.Out.Write(escapeLines(b.Bytes()))
	return err
}

func (p *Printer) yaml(v any) error {
	plain, err := plain(v)
	if err != nil {
		return err
	}
	var n yaml.Node
	if err := n.Encode(plain); err != nil {
		return err
	}
	quoteControls(&n)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(&n), enc.Close()); err != nil {
		return err
	}
	_, err = p.Out.Write(escapeLines(b.Bytes()))
	return err
}

// quoteControls makes the encoder put double quotes around each text with control characters.
// escapeLines will escape these characters, and YAML allows escapes only between double quotes.
func quoteControls(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && notify.HasControl(n.Value) {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, inner := range n.Content {
		quoteControls(inner)
	}
}

func (p *Printer) table(t Table) error {
	t = p.fitWidth(t)
	if p.NoHeaders && len(t) > 0 {
		return p.rows(t[1:], Header(false))
	}
	return p.rows(t, Header(true))
}

// fitWidth drops Optional columns and cuts the last column until t fits the terminal. It leaves at
// least 8 characters of the last column, so a table may still be wider than a narrow terminal.
func (p *Printer) fitWidth(t Table) Table {
	if p.Width <= 0 || len(t) == 0 {
		return t
	}
	for _, name := range p.Optional {
		if tableWidth(t) <= p.Width {
			return t
		}
		at := slices.Index(t[0], name)
		if at < 0 {
			continue
		}
		for i, row := range t {
			if at < len(row) {
				t[i] = slices.Delete(slices.Clone(row), at, at+1)
			}
		}
	}
	last := len(t[0]) - 1
	room := p.Width - (tableWidth(t) - columnWidths(t)[last])
	const least = 8 // with fewer characters a cell is useless to the reader
	if tableWidth(t) <= p.Width || room < least {
		return t
	}
	for _, row := range t {
		if last < len(row) && utf8.RuneCountInString(row[last]) > room {
			row[last] = string([]rune(row[last])[:room-1]) + "\u2026"
		}
	}
	return t
}

// columnWidths returns the width of each column of t, in characters.
func columnWidths(t Table) (widths []int) {
	for _, row := range t {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(Clean(cell)))
		}
	}
	return widths
}

// tableWidth returns the length of t's longest line.
func tableWidth(t Table) (n int) {
	ws := columnWidths(t)
	for _, row := range t {
		line := 0
		for i := range row {
			if row[i] != "" { // the last filled cell of a row gets no spaces after it
				line = 2 * i
				for _, w := range ws[:i] {
					line += w
				}
				line += utf8.RuneCountInString(Clean(row[i]))
			}
		}
		n = max(n, line)
	}
	return n
}

// rows prints the rows of a table in columns. It computes the widths of the columns before Paint
// adds escapes. It adds no spaces after the last cell of a row.
func (p *Printer) rows(t Table, first Header) error {
	for _, row := range t {
		for i, cell := range row {
			row[i] = Clean(cell)
		}
	}
	widths := columnWidths(t)
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

// Clean makes text from outside safe for one line of a terminal. It replaces line ends and tabs by
// spaces. It replaces characters that control the terminal or the direction of text by visible
// escapes. Otherwise one name could look like another.
func Clean(s string) string { return notify.EscapeControls(oneLine.Replace(s)) }

var oneLine = strings.NewReplacer("\n", " ", "\t", " ", "\r", " ")

// escapeLines applies EscapeControls to each line of JSON, or of YAML after quoteControls. Each
// character that it escapes is between double quotes, where the escape means the same character.
func escapeLines(b []byte) []byte {
	lines := bytes.SplitAfter(b, []byte("\n"))
	for i, line := range lines {
		text, end := bytes.CutSuffix(line, []byte("\n"))
		if text = []byte(notify.EscapeControls(string(text))); end {
			text = append(text, '\n')
		}
		lines[i] = text
	}
	return bytes.Join(lines, nil)
}

func (p *Printer) filter(v any) error {
	q, err := gojq.Parse(p.JQ)
	if err != nil {
		return Usage("--jq: the filter is not valid: %v", err)
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
			return Usage("--jq: the filter failed: %v", err)
		}
		if s, is := out.(string); is {
			if p.Width > 0 { // Out is a terminal, which would obey control characters in the text
				s = string(escapeLines([]byte(s)))
			}
			fmt.Fprintln(p.Out, s)
			continue
		}
		b, err := gojq.Marshal(out)
		if err != nil {
			return err
		}
		fmt.Fprintf(p.Out, "%s\n", escapeLines(b))
	}
}

// plain converts v into maps, lists and scalars. It encodes v as JSON and decodes the JSON.
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
