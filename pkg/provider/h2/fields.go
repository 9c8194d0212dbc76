package h2

import (
	"bytes"

	"golang.org/x/net/http2/hpack"
)

// Field is one header field. A sensitive field is never put into HPACK's table.
type Field = hpack.HeaderField

// Fields are header fields that many requests share. They are encoded once per connection and then
// copied. So a caller should use one Fields for many requests.
type Fields struct {
	pseudo, regular []Field
	size            uint32 // size as a header list (RFC 9113, 6.5.2), without the path
}

// NewFields returns the fields of POSTs to an authority. The parameter regular contains the fields
// besides the pseudo-header fields; their names must be in lower case.
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

// AppendField appends an encoded field that is not put into HPACK's table, because its value is
// different in each request. It does not use Huffman coding. Huffman coding would shorten a
// hexadecimal text by a fifth, but its CPU time costs more than these bytes.
func AppendField[T string | []byte](dst []byte, name string, value T) []byte {
	dst = append(dst, 0) // literal without indexing, new name
	dst = appendString(dst, name)
	return appendString(dst, value)
}

func appendString[T string | []byte](dst []byte, s T) []byte {
	dst = appendInt(dst, 7, 0, len(s))
	return append(dst, s...)
}

// appendInt appends n as an HPACK integer (RFC 7541, 5.1). The parameter bits is how many of the
// lowest bits of the first byte belong to the integer. The other bits of that byte come from the
// parameter first.
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

// pathIndex is the first byte of the field :path. It names the field by its index in HPACK's static
// table and says that the value follows and is not put into the table.
const pathIndex = 4

// tableSize is the largest part of the server's HPACK table that the encoder uses, in bytes.
const tableSize = 4096

// maxEncodings limits the number of stored encodings. When one more is to be stored, all stored
// encodings are dropped first.
const maxEncodings = 64

// encoder encodes the header blocks of a connection.
//
// It adds a field to the table only while the table has room, so that the table never evicts an
// entry. An eviction would change indexes, and the stored encodings would be wrong.
type encoder struct {
	enc       *hpack.Encoder
	out       bytes.Buffer
	limit     uint32              // size that the table may use, in bytes
	used      uint32              // bytes of the table that are used
	update    bool                // the next block must begin with the new table size
	inTable   map[Field]bool      // fields in the table
	encodings map[*Fields]encoded // the stored encoding of each Fields
}

type encoded struct{ pseudo, regular []byte }

func newEncoder() *encoder {
	e := &encoder{limit: tableSize, inTable: map[Field]bool{}, encodings: map[*Fields]encoded{}}
	e.enc = hpack.NewEncoder(&e.out)
	return e
}

// setLimit applies the server's SETTINGS_HEADER_TABLE_SIZE. If the limit changes, it empties the
// table.
func (e *encoder) setLimit(v uint32) {
	if v = min(v, tableSize); v == e.limit {
		return
	}
	e.enc.SetMaxDynamicTableSize(0)
	e.enc.SetMaxDynamicTableSizeLimit(v)
	e.enc.SetMaxDynamicTableSize(v)
	e.limit, e.used, e.update = v, 0, true
	clear(e.inTable)
	clear(e.encodings)
}

// appendBlock appends the header block of the request r to dst.
func (e *encoder) appendBlock(dst []byte, r *Request) []byte {
	k, ok := e.encodings[r.Fields]
	if !ok {
		k = e.encode(r.Fields)
	}
	dst = append(dst, k.pseudo...)
	dst = append(dst, pathIndex)
	dst = appendString(dst, r.Path)
	dst = append(dst, k.regular...)
	return append(dst, r.OwnFields...)
}

// encode encodes the fields f. It stores the result unless the encoding changed the table.
func (e *encoder) encode(f *Fields) encoded {
	stable := !e.update
	e.update = false
	e.out.Reset()
	write := func(fields []Field) {
		for _, x := range fields {
			if !x.Sensitive && !e.inTable[x] {
				if e.used+x.Size() > e.limit {
					x.Sensitive = true
				} else {
					// A field of the static table needs no room but is counted too. That does no harm.
					e.used += x.Size()
					e.inTable[x] = true
					stable = false
				}
			}
			_ = e.enc.WriteField(x) // writing to memory does not fail
		}
	}
	write(f.pseudo)
	n := e.out.Len()
	write(f.regular)
	b := bytes.Clone(e.out.Bytes())
	k := encoded{b[:n:n], b[n:]}
	switch {
	case !stable:
		clear(e.encodings) // a new table entry changes the indexes in the stored encodings
	case len(e.encodings) < maxEncodings:
		e.encodings[f] = k
	default:
		clear(e.encodings)
		e.encodings[f] = k
	}
	return k
}
