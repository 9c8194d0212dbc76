package provider

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Variables contains the values of placeholders. The variables of a request are shared by all
// receivers, and each receiver may have variables of its own. If both have a variable of the same
// name, the receiver's variable is used. The zero value contains no variables. Only one goroutine
// at a time may use a Variables. Fork makes another Variables with the same shared variables.
type Variables struct {
	shared   []variable // never written after SharedVariables
	sharedAt map[string]int
	own      []variable
	ownAt    map[string]int
	buf      []byte // decoded strings of the receiver's own variables
}

// linearSearchMax is the largest number of variables that are searched one by one. More variables
// get an index by name (sharedAt, ownAt). Otherwise a text that uses a thousand variables would
// cause a million comparisons.
const linearSearchMax = 16

// indexByName returns a map from each variable's name to its index in vs. It clears and uses the
// map m, or makes a map if m is nil. For up to linearSearchMax variables it adds nothing, so the
// map is empty or nil.
func indexByName(vs []variable, m map[string]int) map[string]int {
	clear(m)
	if len(vs) <= linearSearchMax {
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

// variable is a name and its value. Its slices share memory with the object from which it was read,
// or with the buffer of decoded strings.
type variable struct {
	name []byte
	raw  []byte // the value as JSON
	text []byte // decoded value of a string, number or boolean; nil for other values
}

// SharedVariables reads the variables of a request from a JSON object. If the object is nil, there
// are no variables.
func SharedVariables(object []byte) (Variables, error) {
	vs, _, err := parseVariables(nil, nil, object)
	return Variables{shared: vs, sharedAt: indexByName(vs, nil)}, err
}

// Fork returns a Variables with the shared variables of v and no variables of a receiver.
func (v *Variables) Fork() Variables { return Variables{shared: v.shared, sharedAt: v.sharedAt} }

// SetOwn replaces the receiver's own variables. They share memory with the parameter object.
func (v *Variables) SetOwn(object []byte) error {
	var err error
	v.own, v.buf, err = parseVariables(v.own[:0], v.buf[:0], object)
	v.ownAt = indexByName(v.own, v.ownAt)
	return err
}

func (v *Variables) find(name string) *variable {
	if found := findVariable(v.own, v.ownAt, name); found != nil {
		return found
	}
	return findVariable(v.shared, v.sharedAt, name)
}

func findVariable(vs []variable, at map[string]int, name string) *variable {
	if len(vs) > linearSearchMax {
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

// value returns the text of a variable. It returns an error if the variable is missing or is not a
// string, number or boolean.
func (v *Variables) value(name string) ([]byte, error) {
	found := v.find(name)
	if found == nil {
		return nil, notify.Invalid("missing_variable", "variables."+name, "the text uses a variable that is not given")
	}
	if found.text == nil {
		return nil, notify.Invalid("bad_variable", "variables."+name, "must be a string, a number or a boolean, because the text uses it")
	}
	return found.text, nil
}

// valueForm says how appendObject writes a variable.
type valueForm uint8

const (
	asGiven   valueForm = iota // as the JSON in the request
	asStrings                  // as a JSON string; objects, lists and null become a string with their JSON text
)

// appendObject appends all variables as one JSON object. If the receiver and the request both have
// a variable of the same name, it appends only the receiver's variable. It reports whether there is
// any variable.
func (v *Variables) appendObject(dst []byte, form valueForm) ([]byte, bool) {
	n := 0
	dst = append(dst, '{')
	put := func(x *variable) {
		if n > 0 {
			dst = append(dst, ',')
		}
		n++
		dst = appendQuoted(dst, x.name)
		dst = append(dst, ':')
		dst = x.appendValue(dst, form)
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

func (x *variable) appendValue(dst []byte, form valueForm) []byte {
	switch {
	case form == asGiven:
		return append(dst, x.raw...)
	case x.text != nil:
		return appendQuoted(dst, x.text)
	}
	return appendQuoted(dst, x.raw)
}

type variableDecoder struct {
	in  bytes.Reader
	dec *jsontext.Decoder
}

var decoders = sync.Pool{New: func() any { d := new(variableDecoder); d.dec = jsontext.NewDecoder(&d.in); return d }}

// errVariables does not wrap the decoder's error, which may quote the input.
var errVariables = notify.Invalid("bad_variables", "variables", "must be one JSON object without duplicate names")

// parseVariables appends the members of a JSON object to dst, and decoded strings to buf. It
// returns an error for duplicate names, invalid UTF-8 or data after the object.
func parseVariables(dst []variable, buf, object []byte) ([]variable, []byte, error) {
	if len(object) == 0 {
		return dst, buf, nil
	}
	d := decoders.Get().(*variableDecoder)
	defer decoders.Put(d)
	d.in.Reset(object)
	d.dec.Reset(&d.in)
	defer d.in.Reset(nil)
	if tok, err := d.dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return dst, buf, errVariables
	}
	// read returns the next value as a slice of object.
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
		// If buf grows, earlier texts keep the old array, which stays valid.
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
