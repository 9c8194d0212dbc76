package store

import (
	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Record packs and unpacks one kind of record. The function fields lists the fields of the record.
// Because all engines use this function, both to pack and to unpack, they all have the same packed
// form.
type Record[V any] struct {
	what    string
	version byte
	fields  func(*codec.Codec, *V)
}

// Pack returns the bytes of a record. The first byte is the version.
func (r *Record[V]) Pack(v *V) []byte {
	return codec.Pack(r.version, func(c *codec.Codec) { r.fields(c, v) })
}

// Unpack decodes bytes that Pack returned. It does not change fields of v that the record does not
// describe. It returns notify.ErrNewer if a newer release wrote the bytes, and notify.ErrCorrupt if the
// bytes are damaged.
func (r *Record[V]) Unpack(b []byte, v *V) error {
	if codec.Unpack(b, r.version, func(c *codec.Codec) { r.fields(c, v) }) {
		return nil
	}
	return notify.Unread("store", r.what, b, r.version)
}
