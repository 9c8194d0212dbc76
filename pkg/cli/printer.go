package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

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
}

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
		t = t[1:]
	}
	w := tabwriter.NewWriter(p.Out, 0, 8, 2, ' ', 0)
	for _, row := range t {
		clean := make([]string, len(row))
		for i, cell := range row {
			clean[i] = strings.Map(printable, cell)
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(clean, "\t"), "\t"))
	}
	return w.Flush()
}

// printable keeps what comes from outside from steering the terminal.
func printable(r rune) rune {
	switch {
	case r == '\n' || r == '\t' || r == '\r':
		return ' '
	case r < 0x20 || r == 0x7f || (r >= 0x80 && r < 0xa0):
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
