package h2

import (
	"bytes"

	"golang.org/x/net/http2/hpack"
)

// Field is one header field. Sensitive ones stay out of the table of HPACK.
type Field = hpack.HeaderField

// Fields are header fields that many requests share. They are encoded once a
// connection and copied from then on, so make one for many requests.
type Fields struct {
	pseudo, regular []Field
	size            uint32 // as a header list (RFC 9113, 6.5.2), the path not counted
}

// NewFields returns the fields of POSTs to an authority. Names are in lower case.
func NewFields(scheme, authority string, regular ...Field) *Fields {
	f := &Fields{regular: regular, pseudo: []Field{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: scheme}, {Name: ":authority", Value: authority},
	}}
	for _, l := range [][]Field{f.pseudo, regular} {
		for i := range l {
			f.size += l[i].Size()
		}
	}
	return f
}

// AppendField appends a field that is not to be remembered by the other side: it
// changes from request to request. Huffman coding would save a fifth of a
// hexadecimal text, for more time than its bytes cost.
func AppendField[T string | []byte](dst []byte, name string, value T) []byte {
	dst = append(dst, 0) // literal without indexing, new name
	dst = appendString(dst, name)
	return appendString(dst, value)
}

func appendString[T string | []byte](dst []byte, s T) []byte {
	dst = appendInt(dst, 7, 0, len(s))
	return append(dst, s...)
}

// appendInt appends n with a prefix of some bits (RFC 7541, 5.1).
func appendInt(dst []byte, bits, first byte, n int) []byte {
	most := 1<<bits - 1
	if n < most {
		return append(dst, first|byte(n))
	}
	dst = append(dst, first|byte(most))
	for n -= most; n >= 128; n >>= 7 {
		dst = append(dst, byte(n)|0x80)
	}
	return append(dst, byte(n))
}

// pathIndex is :path in the static table, as a literal without indexing.
const pathIndex = 4

// tableSize is the most the encoder uses of the other side's table, in bytes.
const tableSize = 4096

// fieldsKept bounds the encodings kept; beyond it all are forgotten.
const fieldsKept = 64

// encoder encodes the header blocks of a connection.
//
// It puts a field into the table only where there is room: an encoding that was
// kept would be wrong once an entry has moved.
type encoder struct {
	enc    *hpack.Encoder
	out    bytes.Buffer
	limit  uint32 // size of the table in use
	used   uint32
	update bool // the next block begins with the table's new size
	inside map[Field]bool
	kept   map[*Fields]encoded
}

type encoded struct{ pseudo, regular []byte }

func newEncoder() *encoder {
	e := &encoder{limit: tableSize, inside: map[Field]bool{}, kept: map[*Fields]encoded{}}
	e.enc = hpack.NewEncoder(&e.out)
	return e
}

// setLimit obeys SETTINGS_HEADER_TABLE_SIZE: the table is emptied.
func (e *encoder) setLimit(v uint32) {
	if v = min(v, tableSize); v == e.limit {
		return
	}
	e.enc.SetMaxDynamicTableSize(0)
	e.enc.SetMaxDynamicTableSizeLimit(v)
	e.enc.SetMaxDynamicTableSize(v)
	e.limit, e.used, e.update = v, 0, true
	clear(e.inside)
	clear(e.kept)
}

// append appends the header block of r.
func (e *encoder) append(dst []byte, r *Request) []byte {
	k, ok := e.kept[r.Fields]
	if !ok {
		k = e.encode(r.Fields)
	}
	dst = append(dst, k.pseudo...)
	dst = append(dst, pathIndex)
	dst = appendString(dst, r.Path)
	dst = append(dst, k.regular...)
	return append(dst, r.Own...)
}

// encode encodes fields, and keeps the result unless it changed the table.
func (e *encoder) encode(f *Fields) encoded {
	stable := !e.update
	e.update = false
	e.out.Reset()
	write := func(fields []Field) {
		for _, x := range fields {
			if !x.Sensitive && !e.inside[x] {
				if e.used+x.Size() > e.limit {
					x.Sensitive = true
				} else {
					// (counted also where the static table has it already)
					e.used += x.Size()
					e.inside[x] = true
					stable = false
				}
			}
			_ = e.enc.WriteField(x) // to memory
		}
	}
	write(f.pseudo)
	n := e.out.Len()
	write(f.regular)
	b := bytes.Clone(e.out.Bytes())
	k := encoded{b[:n:n], b[n:]}
	switch {
	case !stable:
		clear(e.kept) // what they count from has moved
	case len(e.kept) < fieldsKept:
		e.kept[f] = k
	default:
		clear(e.kept)
		e.kept[f] = k
	}
	return k
}
