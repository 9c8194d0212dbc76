package provider

import (
	"math"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Encoding is what a rendered text is put into.
type Encoding uint8

const (
	// Plain leaves text and values as they are.
	Plain Encoding = iota
	// HTML escapes values; the text itself is markup and stays.
	HTML
	// JSON escapes text and values for the inside of a JSON string.
	JSON
)

// Template is an inline text with {{name}} placeholders (notify.NextPlaceholder),
// parsed once per call.
type Template struct {
	parts []part
	names []string // of the variables, once each, in the order they are met
	enc   Encoding
}

type part struct {
	text string // encoded already
	name int    // place in names of the variable that follows; noName at the end
}

const noName = -1

// ParseTemplate never fails: what is no placeholder is text. It takes time in
// proportion to s.
func ParseTemplate(s string, enc Encoding) Template {
	t := Template{enc: enc}
	start := 0 // of the text not yet in a part
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
		t.parts = append(t.parts, part{text: t.encodeText(s[start:open]), name: place})
		start = end
	}
	if start < len(s) || len(t.parts) == 0 {
		t.parts = append(t.parts, part{text: t.encodeText(s[start:]), name: noName})
	}
	return t
}

func (t *Template) encodeText(s string) string {
	if t.enc != JSON {
		return s
	}
	return string(appendJSON(nil, s))
}

// Static reports whether every receiver gets the same.
func (t *Template) Static() bool { return len(t.names) == 0 }

// Empty reports whether the text was empty.
func (t *Template) Empty() bool { return t.Static() && t.parts[0].text == "" }

// Names are the names of the variables the template uses, once each; not to be
// changed.
func (t *Template) Names() []string { return t.names }

// Append renders the template, as at most most bytes: a text of a few kilobytes
// that names a long variable in every line would else be gigabytes. A text that is
// longer is notify.KindTooLarge; a variable that is missing, or is no string, number
// or boolean, is notify.KindInvalid.
func (t *Template) Append(dst []byte, v *Variables, most int) ([]byte, error) {
	most = min(most, math.MaxInt-len(dst)) + len(dst)
	for i := range t.parts {
		p := &t.parts[i]
		if dst = append(dst, p.text...); len(dst) > most {
			return dst, errTooLong
		}
		if p.name == noName {
			continue
		}
		val, err := v.value(t.names[p.name])
		if err != nil {
			return dst, err
		}
		if dst = appendEncoded(dst, val, t.enc); len(dst) > most {
			return dst, errTooLong
		}
	}
	return dst, nil
}

var errTooLong = &notify.Error{Kind: notify.KindTooLarge, Code: "payload_too_large", Msg: "with its variables the text is longer than its provider takes"}

// Substitute renders the template with each placeholder replaced by the tag of
// its variable's place in Names, for providers that put the values in themselves.
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

// appendJSON appends s for the inside of a JSON string. Bytes that are no UTF-8
// become U+FFFD.
func appendJSON[T string | []byte](dst []byte, s T) []byte {
	at := len(dst)
	dst = appendQuoted(dst, s)
	n := copy(dst[at:], dst[at+1:len(dst)-1])
	return dst[:at+n]
}

// appendQuoted appends s as a JSON string, as appendJSON does.
func appendQuoted[T string | []byte](dst []byte, s T) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error is of bytes that are no UTF-8
	return dst
}
