package notify

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// eachField calls the function fn with every field of a protobuf message. The function gets the
// value of a varint as v, and the bytes of a length-delimited field as s. eachField skips other
// wire types, which a later schema may use.
func eachField(b []byte, fn func(num protowire.Number, v uint64, s []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrCorrupt, protowire.ParseError(n))
		}
		b = b[n:]
		var v uint64
		var s []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			s, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return fmt.Errorf("%w: field %d: %w", ErrCorrupt, num, protowire.ParseError(n))
		}
		b = b[n:]
		if typ != protowire.VarintType && typ != protowire.BytesType {
			continue
		}
		if err := fn(num, v, s); err != nil {
			return err
		}
	}
	return nil
}

// The functions below encode fields of the usual sizes themselves instead of calling protowire. So an
// envelope takes 121 ns instead of 274 ns (BenchmarkAppendEnvelope).

func appendUint(b []byte, num protowire.Number, v uint64) []byte {
	switch {
	case v == 0:
		return b
	case v < 0x80 && num < 16:
		return append(b, byte(num)<<3|byte(protowire.VarintType), byte(v))
	}
	return binary.AppendUvarint(appendTag(b, num, protowire.VarintType), v)
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return append(appendLength(b, num, len(s)), s...)
}

func appendBytes(b []byte, num protowire.Number, s []byte) []byte {
	if len(s) == 0 {
		return b
	}
	return append(appendLength(b, num, len(s)), s...)
}

// appendLength appends the tag of field num and the length n of its value.
func appendLength(b []byte, num protowire.Number, n int) []byte {
	if n < 0x80 && num < 16 {
		return append(b, byte(num)<<3|byte(protowire.BytesType), byte(n))
	}
	return binary.AppendUvarint(appendTag(b, num, protowire.BytesType), uint64(n))
}

func appendTag(b []byte, num protowire.Number, t protowire.Type) []byte {
	if num < 16 {
		return append(b, byte(num)<<3|byte(t))
	}
	return binary.AppendUvarint(b, protowire.EncodeTag(num, t))
}

// alias returns b as a string without a copy. This is safe because no code changes a record after the
// record was read.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
