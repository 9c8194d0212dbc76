package provider

import (
	"math"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Encoding says how rendered text is escaped.
type Encoding uint8

const (
	// Plain escapes nothing.
	Plain Encoding = iota
	// HTML escapes values. The template's own text is markup and is not changed.
	HTML
	// JSON escapes text and values for use inside a JSON string.
	JSON
)

// Template is an inline text with {{name}} placeholders (see notify.NextPlaceholder). It is parsed
// once per call.
type Template struct {
	parts []templatePart
	names []string // names of the variables, without duplicates, in the order of first use
	enc   Encoding
}

// templatePart is a piece of text and the variable that follows it.
type templatePart struct {
	text string // the text before the variable, already encoded
	name int    // index in Template.names of the variable that follows; noName: no variable follows
}

const noName = -1

// ParseTemplate parses s. It never fails: text that is not a valid placeholder is kept as text. Its
// running time is proportional to the length of s.
func ParseTemplate(s string, enc Encoding) Template {
	t := Template{enc: enc}
	start := 0 // start of the text that is not in a part yet
	var places map[string]int
	for {
		open, end, name, ok := notify.NextPlaceholder(s, start)
		if !ok {
			break
		}
		if places == nil {
			places = map[string]int{}
		}
		place, known := places[name]
		if !known {
			place = len(t.names)
			places[name] = place
			t.names = append(t.names, name)
		}
		t.parts = append(t.parts, templatePart{text: t.encodeText(s[start:open]), name: place})
		start = end
	}
	if start < len(s) || len(t.parts) == 0 {
		t.parts = append(t.parts, templatePart{text: t.encodeText(s[start:]), name: noName})
	}
	return t
}

func (t *Template) encodeText(s string) string {
	if t.enc != JSON {
		return s
	}
	return string(appendJSON(nil, s))
}

// Static reports whether the text has no variables, so that every receiver gets the same text.
func (t *Template) Static() bool { return len(t.names) == 0 }

// Empty reports whether the text was empty.
func (t *Template) Empty() bool { return t.Static() && t.parts[0].text == "" }

// Names returns the names of the template's variables, without duplicates. The caller must not
// change the slice.
func (t *Template) Names() []string { return t.names }

// Append renders the template and appends it to dst. The rendered text may have at most maxBytes
// bytes. Without this limit, a text of a few kilobytes that uses a long variable in every line could
// become gigabytes. Append returns notify.KindTooLarge if the rendered text is longer. It returns
// notify.KindInvalid if a variable is missing or is not a string, number or boolean.
func (t *Template) Append(dst []byte, v *Variables, maxBytes int) ([]byte, error) {
	maxLen := min(maxBytes, math.MaxInt-len(dst)) + len(dst)
	for i := range t.parts {
		p := &t.parts[i]
		if dst = append(dst, p.text...); len(dst) > maxLen {
			return dst, errTooLong
		}
		if p.name == noName {
			continue
		}
		val, err := v.value(t.names[p.name])
		if err != nil {
			return dst, err
		}
		if dst = appendEncoded(dst, val, t.enc); len(dst) > maxLen {
			return dst, errTooLong
		}
	}
	return dst, nil
}

var errTooLong = &notify.Error{Kind: notify.KindTooLarge, Code: "payload_too_large", Msg: "the text is longer than the provider accepts, after its variables were filled in"}

// Substitute returns the text with a tag in place of each placeholder. The function tag returns the
// tag of a variable; its argument is the variable's index in Names. Substitute is for providers that
// insert the values themselves.
func (t *Template) Substitute(tag func(place int) string) string {
	var b strings.Builder
	for i := range t.parts {
		b.WriteString(t.parts[i].text)
		if t.parts[i].name != noName {
			b.WriteString(tag(t.parts[i].name))
		}
	}
	return b.String()
}

func appendEncoded[T string | []byte](dst []byte, s T, enc Encoding) []byte {
	switch enc {
	case HTML:
		return appendHTML(dst, s)
	case JSON:
		return appendJSON(dst, s)
	}
	return append(dst, s...)
}

func appendHTML[T string | []byte](dst []byte, s T) []byte {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '&':
			dst = append(dst, "&amp;"...)
		case '<':
			dst = append(dst, "&lt;"...)
		case '>':
			dst = append(dst, "&gt;"...)
		case '"':
			dst = append(dst, "&#34;"...)
		case '\'':
			dst = append(dst, "&#39;"...)
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// appendJSON appends s escaped for use inside a JSON string. Bytes that are not valid UTF-8
// become U+FFFD.
func appendJSON[T string | []byte](dst []byte, s T) []byte {
	at := len(dst)
	dst = appendQuoted(dst, s)
	n := copy(dst[at:], dst[at+1:len(dst)-1])
	return dst[:at+n]
}

// appendQuoted appends s as a JSON string. Bytes that are not valid UTF-8 become U+FFFD.
func appendQuoted[T string | []byte](dst []byte, s T) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error only reports invalid UTF-8, which was replaced
	return dst
}
