package notify

import "encoding/binary"

// Target is one address to which a worker must send.
type Target struct {
	Addr    uint8 // ordinal among the receiver's addresses at the time of the look-up
	Of      uint8 // number of the receiver's addresses at the time of the look-up
	Address []byte
}

// A derived envelope may have to reach only some of a receiver's addresses. Then the address field
// of the receiver is a list. The list starts with a zero byte, which no real address does. Each
// entry of the list is a Target: one byte Addr, one byte Of, the length of the address as a
// uvarint, and the address.

// AppendTargets appends an address field that lists the targets ts.
func AppendTargets(b []byte, ts []Target) []byte {
	b = append(b, 0)
	for _, t := range ts {
		b = append(b, t.Addr, t.Of)
		b = binary.AppendUvarint(b, uint64(len(t.Address)))
		b = append(b, t.Address...)
	}
	return b
}

// AddressFromRequest reports whether an address field contains an address that came with the
// request. A field with a list of targets never contains such an address, because the addresses in
// a list come from the user's profile.
func AddressFromRequest(field []byte) bool { return len(field) > 0 && field[0] != 0 }

// Targets appends the targets of an address field to dst. If the field is one plain address, this
// address is the only target. If the field is empty, Targets appends nothing, because the worker
// then looks up the addresses. It returns ErrCorrupt for a damaged list.
func Targets(dst []Target, field []byte) ([]Target, error) {
	if len(field) == 0 {
		return dst, nil
	}
	if field[0] != 0 {
		return append(dst, Target{Of: 1, Address: field}), nil
	}
	for b := field[1:]; len(b) > 0; {
		if len(b) < 3 {
			return dst, ErrCorrupt
		}
		t := Target{Addr: b[0], Of: b[1]}
		var ok bool
		if t.Address, b, ok = cutBytes(b[2:]); !ok {
			return dst, ErrCorrupt
		}
		dst = append(dst, t)
	}
	return dst, nil
}
