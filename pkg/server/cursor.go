package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"

	"github.com/notifyd/notifyd/pkg/notify"
)

// cursors seals the places where listings go on. A cursor is bound to the
// listing, whose it is and who asked: another caller's, or a changed one, is
// refused, so that an engine never sees bytes it did not write.
type cursors struct{ key []byte }

const macSize = 16

// seal returns an opaque cursor; "" for a nil place, the end.
func (c cursors) seal(place []byte, bound ...string) string {
	if place == nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(append(c.mac(place, bound), place...))
}

// open is the inverse of seal: nil for "", the beginning.
func (c cursors) open(s string, bound ...string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	bad := notify.Invalid("bad_cursor", "cursor", "this cursor is not one of this listing")
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < macSize {
		return nil, bad
	}
	place := b[macSize:]
	if !hmac.Equal(b[:macSize], c.mac(place, bound)) {
		return nil, bad
	}
	return place, nil
}

func (c cursors) mac(place []byte, bound []string) []byte {
	h := hmac.New(sha256.New, c.key)
	var n [8]byte
	for _, s := range bound {
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	h.Write(place)
	return h.Sum(nil)[:macSize]
}
