package provider

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Ref is the reference that notifyd sends with a call and that the provider returns in the receipt.
// It identifies the row of the call, and the receiver and address in that row.
type Ref struct {
	Key    notify.RowKey // row of the envelope; its Kind is not included
	Index  uint32        // index of the receiver in its request
	Addr   uint8         // number of the address among the receiver's addresses, from 0
	FanOut bool
}

// RefOf returns the Ref of an item of a call.
func RefOf(it *notify.Item) Ref {
	return Ref{Key: *it.Key, Index: it.Index, Addr: it.Addr, FanOut: it.FanOut}
}

// ID returns the id of the notification that the Ref belongs to.
func (r Ref) ID() notify.ID {
	if !r.FanOut {
		return notify.ID{Base: r.Key.Chunk.Base}
	}
	return notify.ID{Base: r.Key.Chunk.Base, Index: r.Index, FanOut: true}
}

const refVersion = 1

// refFan is a bit that is set for a receiver of a fan-out. It is in the byte of the version.
const refFan = 1 << 7

// MaxRef is the length of the longest encoded Ref, in bytes.
const MaxRef = 64

// EncodeRef returns r as opaque text that is safe in a URL. For a single notification the text has 36
// characters.
func EncodeRef(r Ref) string { return string(AppendRef(nil, r)) }

// AppendRef appends EncodeRef(r).
func AppendRef(dst []byte, r Ref) []byte {
	var in [MaxRef]byte
	b := append(in[:0], refVersion)
	if r.FanOut {
		b[0] |= refFan
	}
	b = append(b, r.Key.Chunk.Base[:]...)
	b = append(b, r.Addr)
	b = binary.AppendUvarint(b, uint64(r.Key.Chunk.Partition))
	b = binary.AppendUvarint(b, uint64(r.Key.Chunk.Block))
	b = binary.AppendUvarint(b, uint64(r.Key.Epoch))
	b = binary.AppendUvarint(b, uint64(r.Key.Attempt))
	b = binary.AppendUvarint(b, uint64(r.Key.Deferrals))
	b = binary.AppendUvarint(b, uint64(r.Key.First))
	b = binary.AppendUvarint(b, uint64(r.Index))
	return base64.RawURLEncoding.AppendEncode(dst, b)
}

var errRef = notify.Invalid("bad_ref", "ref", "must be a reference that notifyd made")

// DecodeRef decodes a text that EncodeRef has made. It returns errRef for any other text.
func DecodeRef(s string) (Ref, error) {
	var r Ref
	if len(s) > MaxRef || strings.ContainsAny(s, "\r\n") { // base64 would ignore line breaks
		return r, errRef
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < 18 || b[0]&^refFan != refVersion {
		return r, errRef
	}
	r.FanOut = b[0]&refFan != 0
	copy(r.Key.Chunk.Base[:], b[1:])
	r.Addr = b[17]
	b = b[18:]
	next := func(limit uint64) uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > limit || (n > 1 && b[n-1] == 0) {
			b, err = nil, errRef
			return 0
		}
		b = b[n:]
		return v
	}
	r.Key.Chunk.Partition = uint16(next(math.MaxUint16))
	r.Key.Chunk.Block = uint32(next(math.MaxUint32))
	r.Key.Epoch = uint16(next(math.MaxUint16))
	r.Key.Attempt = uint16(next(math.MaxUint16))
	r.Key.Deferrals = uint16(next(math.MaxUint16))
	r.Key.First = uint32(next(math.MaxUint32))
	r.Index = uint32(next(math.MaxUint32))
	if err != nil || len(b) > 0 {
		return Ref{}, errRef
	}
	return r, nil
}
