package notify

import "encoding/binary"

// Target is one address a receiver is to be reached at.
type Target struct {
	Addr    uint8 // ordinal among the receiver's addresses when they were resolved
	Of      uint8 // how many there were
	Address []byte
}

// A derived envelope may have to reach some of a receiver's addresses and not
// the others: its address field then is a list, marked by a zero byte no real
// address begins with: {ordinal, of, uvarint length, address}...

// AppendTargets appends the address field that names exactly these targets.
func AppendTargets(b []byte, ts []Target) []byte {
	b = append(b, 0)
	for _, t := range ts {
		b = append(b, t.Addr, t.Of)
		b = binary.AppendUvarint(b, uint64(len(t.Address)))
		b = append(b, t.Address...)
	}
	return b
}

// Given reports whether an address field holds the address of the request: a list
// is of a user's own addresses, for a request names one at most.
func Given(field []byte) bool { return len(field) > 0 && field[0] != 0 }

// Targets appends the targets an address field names to dst: the list, or the
// one plain address. A nil field names none: they are to be looked up.
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
