package load

import (
	"bytes"
	"encoding/binary"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// pattern is text with the eight digits of a user in some places. Copying it and
// writing digits over it costs a fifth of appending the parts.
type pattern struct {
	text []byte
	at   []int // of the first digit
}

// newPattern finds the digits' places in text written for user 0.
func newPattern(parts ...[]byte) (p pattern) {
	p.text = bytes.Join(parts, nil)
	for i := 0; ; {
		j := bytes.Index(p.text[i:], []byte("00000000"))
		if j < 0 {
			return p
		}
		p.at = append(p.at, i+j)
		i += j + 8
	}
}

func (p *pattern) append(b []byte, u uint64) []byte {
	from := len(b)
	b = append(b, p.text...)
	for _, at := range p.at {
		putUser(b[from+at:from+at+8], u)
	}
	return b
}

// walk appends the pattern for so many users, one after the other, stride numbers
// apart and around at users. A pattern of a user id is two words, of which the digits
// take the place of some bytes: 4.1 ns a user where append takes 9.8 (BenchmarkBodies).
func (p *pattern) walk(b []byte, u, stride, users uint64, size int) []byte {
	n := len(p.text)
	if n > 16 || len(p.at) != 1 {
		for range size {
			b = p.append(b, u)
			if u += stride; u >= users {
				u -= users
			}
		}
		return b
	}
	from := len(b)
	b = slices.Grow(b, size*n+16)[:from+size*n+16]
	var text [16]byte
	copy(text[:], p.text)
	lo, hi := binary.LittleEndian.Uint64(text[:8]), binary.LittleEndian.Uint64(text[8:])
	digits := p.at[0]
	for range size {
		to := b[from : from+16]
		binary.LittleEndian.PutUint64(to, lo)
		binary.LittleEndian.PutUint64(to[8:], hi) // what is beyond the pattern is the next one's
		binary.LittleEndian.PutUint64(to[digits:], eightDigits(u))
		from += n
		if u += stride; u >= users {
			u -= users
		}
	}
	return b[:from]
}

// singles makes the bodies of single messages whose numbers are so many apart, in one
// buffer. Where only the user differs, that is found by adding, and its digits alone are
// written: a third of what a body takes by itself (BenchmarkSingles).
type singles struct {
	d     *data
	body  []byte   // the last one
	whole *pattern // nil: they are made by request
	u     uint64   // of the next one
	far   uint64   // to the user after
}

func (d *data) singles(buf []byte, first, apart uint64) singles {
	s := singles{d: d, body: buf[:0], u: d.nth(first), far: apart % d.users * d.stride % d.users}
	whole := &d.variants[0].whole
	if len(d.variants) == 1 && whole.text != nil && d.step.Users.Pick == "each" && d.step.Triggers == 0 && d.kind(first) == kindSingle {
		s.whole, s.body = whole, append(s.body, whole.text...)
	}
	return s
}

// next makes the body of message n, which is the next one.
func (s *singles) next(n uint64, intended time.Duration) {
	if s.whole == nil {
		s.body = s.d.request(s.body[:0], n, n, 1, intended)
		return
	}
	for _, at := range s.whole.at {
		putUser(s.body[at:at+8], s.u)
	}
	if s.u += s.far; s.u >= s.d.users {
		s.u -= s.d.users
	}
}

// putUser writes the number of a user over b, eight digits.
func putUser(b []byte, u uint64) { binary.LittleEndian.PutUint64(b, eightDigits(u)) }

// eightDigits returns the digits of a number below 10^8 in ASCII, the first one in the
// lowest byte. The number is cut in halves, all of a step at once: at four digits, at
// two, at one. The factors are reciprocals: x*10486>>20 is x/100 for x < 10,000, and
// x*103>>10 is x/10 for x < 100.
func eightDigits(u uint64) uint64 {
	v := u/10_000 | u%10_000<<32
	q := v * 10486 >> 20 & 0x7f_0000_007f
	v = q | (v-100*q)<<16
	q = v * 103 >> 10 & 0x000f_000f_000f_000f
	v = q | (v-10*q)<<8
	return v | 0x3030_3030_3030_3030
}

// patterns fills in those of a variant. A push address is a hash of the user all
// over: it has none.
func (d *data) patterns(v *variant) {
	if d.step.Addresses && v.channel == "push" {
		return
	}
	who := []byte(`"u00000000"`)
	if d.step.Addresses {
		who = append([]byte(`{"user_id":"u00000000","address":"`), appendAddress(nil, v.channel, 0)...)
		who = append(who, `"}`...)
	}
	v.receiver = newPattern(who, []byte(","))
	to := []byte(`{"user_id":"u00000000"}`)
	if d.step.Addresses {
		to = who
	}
	v.tail = newPattern([]byte(`},"to":`), to)
	if l := d.step.Scheduled; d.step.Payload.Text == "" || d.step.Ordered || l != nil || bytes.Contains(d.pool, []byte("00000000")) {
		return
	}
	v.whole = newPattern(v.head, d.pool, v.tail.text, []byte("}"))
}

// maxUsers is how many user ids have eight digits.
const maxUsers = 100_000_000

// appendUser appends a user id of constant width, e.g. "u00001234".
func appendUser(b []byte, u uint64) []byte {
	b = append(b, "u00000000"...)
	putUser(b[len(b)-8:], u)
	return b
}

// appendAddress appends the address of user u on a channel, of the form the
// simulators take.
func appendAddress(b []byte, channel string, u uint64) []byte {
	switch channel {
	case "sms":
		b = append(b, "+9993500000000"...) // no run of eight zeros but the user's
		putUser(b[len(b)-8:], u)
		return b
	case "email":
		b = appendUser(b, u)
		return append(b, "@example.invalid"...)
	}
	b = append(b, "apns:"...)
	const hex = "0123456789abcdef"
	for _, x := range [4]uint64{u, notify.Mix(u), notify.Mix(u + 1), notify.Mix(u + 2)} {
		for i := 60; i >= 0; i -= 4 {
			b = append(b, hex[x>>i&15])
		}
	}
	return b
}
