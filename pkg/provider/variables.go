package provider

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Variables are what placeholders stand for: a receiver's own before the shared
// ones of the request. The zero value has none. One goroutine at a time may use
// it; Fork makes another over the same shared ones.
type Variables struct {
	shared   []variable // never written after SharedVariables
	sharedAt map[string]int
	own      []variable
	ownAt    map[string]int
	buf      []byte // decoded strings of own
}

// few is how many variables are looked through one by one. Of more, their places
// are kept by name (sharedAt, ownAt): a text may name a thousand of a thousand.
const few = 16

// placesOf are the places of the variables by name, in m if there is one; nil for
// few.
func placesOf(vs []variable, m map[string]int) map[string]int {
	clear(m)
	if len(vs) <= few {
		return m
	}
	if m == nil {
		m = make(map[string]int, len(vs))
	}
	for i := range vs {
		m[string(vs[i].name)] = i
	}
	return m
}

// variable aliases the object it was read from, or the buffer beside it.
type variable struct {
	name []byte
	raw  []byte // the value as JSON
	text []byte // decoded, of strings, numbers and booleans; nil of others
}

// SharedVariables reads the variables of a request: a JSON object, or nil.
func SharedVariables(object []byte) (Variables, error) {
	vs, _, err := parseVariables(nil, nil, object)
	return Variables{shared: vs, sharedAt: placesOf(vs, nil)}, err
}

// Fork returns Variables with the shared ones of v and none of its own.
func (v *Variables) Fork() Variables { return Variables{shared: v.shared, sharedAt: v.sharedAt} }

// SetOwn reads a receiver's variables in place of the last one's. They alias
// object.
func (v *Variables) SetOwn(object []byte) error {
	var err error
	v.own, v.buf, err = parseVariables(v.own[:0], v.buf[:0], object)
	v.ownAt = placesOf(v.own, v.ownAt)
	return err
}

func (v *Variables) find(name string) *variable {
	if found := named(v.own, v.ownAt, name); found != nil {
		return found
	}
	return named(v.shared, v.sharedAt, name)
}

func named(vs []variable, at map[string]int, name string) *variable {
	if len(vs) > few {
		if i, ok := at[name]; ok {
			return &vs[i]
		}
		return nil
	}
	for i := range vs {
		if string(vs[i].name) == name {
			return &vs[i]
		}
	}
	return nil
}

// value is the text of a variable.
func (v *Variables) value(name string) ([]byte, error) {
	found := v.find(name)
	if found == nil {
		return nil, notify.Invalid("missing_variable", "variables."+name, "the text uses a variable that is not given")
	}
	if found.text == nil {
		return nil, notify.Invalid("bad_variable", "variables."+name, "a variable of a text is a string, a number or a boolean")
	}
	return found.text, nil
}

// values is what AppendObject writes of a variable.
type values uint8

const (
	asGiven   values = iota // any JSON
	asStrings               // JSON strings; objects, lists and null as their text
)

// appendObject appends all variables as one JSON object, own before shared, and
// reports whether there are any.
func (v *Variables) appendObject(dst []byte, as values) ([]byte, bool) {
	n := 0
	dst = append(dst, '{')
	put := func(x *variable) {
		if n > 0 {
			dst = append(dst, ',')
		}
		n++
		dst = appendQuoted(dst, x.name)
		dst = append(dst, ':')
		dst = x.appendValue(dst, as)
	}
	for i := range v.own {
		put(&v.own[i])
	}
next:
	for i := range v.shared {
		for j := range v.own {
			if bytes.Equal(v.own[j].name, v.shared[i].name) {
				continue next
			}
		}
		put(&v.shared[i])
	}
	return append(dst, '}'), n > 0
}

func (x *variable) appendValue(dst []byte, as values) []byte {
	switch {
	case as == asGiven:
		return append(dst, x.raw...)
	case x.text != nil:
		return appendQuoted(dst, x.text)
	}
	return appendQuoted(dst, x.raw)
}

type decoder struct {
	in  bytes.Reader
	dec *jsontext.Decoder
}

var decoders = sync.Pool{New: func() any { d := new(decoder); d.dec = jsontext.NewDecoder(&d.in); return d }}

// errVariables does not wrap the decoder's error, which may quote the input.
var errVariables = notify.Invalid("bad_variables", "variables", "variables are one JSON object, each name once")

// parseVariables appends the members of a JSON object to dst, and decoded
// strings to buf. Duplicate names, bad UTF-8 and trailing data are errors.
func parseVariables(dst []variable, buf, object []byte) ([]variable, []byte, error) {
	if len(object) == 0 {
		return dst, buf, nil
	}
	d := decoders.Get().(*decoder)
	defer decoders.Put(d)
	d.in.Reset(object)
	d.dec.Reset(&d.in)
	defer d.in.Reset(nil)
	if tok, err := d.dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return dst, buf, errVariables
	}
	// read returns the next value as it stands in object.
	read := func() ([]byte, error) {
		v, err := d.dec.ReadValue()
		end := int(d.dec.InputOffset())
		return object[end-len(v) : end], err
	}
	unquote := func(raw []byte) (text []byte, err error) {
		if bytes.IndexByte(raw, '\\') < 0 {
			return raw[1 : len(raw)-1], nil
		}
		at := len(buf)
		buf, err = jsontext.AppendUnquote(buf, raw)
		// (a buffer that had to grow leaves earlier texts in the old one)
		return buf[at:len(buf):len(buf)], err
	}
	for d.dec.PeekKind() == '"' {
		var v variable
		raw, err := read()
		if err == nil {
			v.name, err = unquote(raw)
		}
		if err == nil {
			v.raw, err = read()
		}
		if err != nil {
			return dst, buf, errVariables
		}
		switch v.raw[0] {
		case '"':
			if v.text, err = unquote(v.raw); err != nil {
				return dst, buf, errVariables
			}
		case '{', '[', 'n':
		default:
			v.text = v.raw
		}
		dst = append(dst, v)
	}
	if tok, err := d.dec.ReadToken(); err != nil || tok.Kind() != '}' {
		return dst, buf, errVariables
	}
	if _, err := d.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return dst, buf, errVariables
	}
	return dst, buf, nil
}
