package load

import (
	"bytes"
	"encoding/binary"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// pattern is a text that contains the eight digits of a user number in some places. To write the
// text for a user, copy it and overwrite the digits. This takes a fifth of the time of appending
// the pieces of the text one by one.
type pattern struct {
	text     []byte
	digitsAt []int // offset of the first digit of each place
}

// newPattern joins the parts to one text. The parts must be written for user 0. newPattern finds
// the places of the user number by its digits: eight zeros in a row.
func newPattern(parts ...[]byte) (p pattern) {
	p.text = bytes.Join(parts, nil)
	for i := 0; ; {
		j := bytes.Index(p.text[i:], []byte("00000000"))
		if j < 0 {
			return p
		}
		p.digitsAt = append(p.digitsAt, i+j)
		i += j + 8
	}
}

func (p *pattern) append(b []byte, u uint64) []byte {
	from := len(b)
	b = append(b, p.text...)
	for _, at := range p.digitsAt {
		putUser(b[from+at:from+at+8], u)
	}
	return b
}

// appendUsers appends the pattern once for each user of a series. The parameter size is the
// number of users in the series, and u is the first of them. Each further user is greater by
// stride, modulo the number of all users. If the pattern has at most 16 bytes and one place for
// digits, appendUsers builds it in two 64-bit words. This takes 4.1 ns a user; the method append
// takes 9.8 ns (BenchmarkBodies).
func (p *pattern) appendUsers(b []byte, u, stride, users uint64, size int) []byte {
	n := len(p.text)
	if n > 16 || len(p.digitsAt) != 1 {
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
	digits := p.digitsAt[0]
	for range size {
		to := b[from : from+16]
		binary.LittleEndian.PutUint64(to, lo)
		binary.LittleEndian.PutUint64(to[8:], hi) // the next user overwrites the bytes after the pattern
		binary.LittleEndian.PutUint64(to[digits:], eightDigits(u))
		from += n
		if u += stride; u >= users {
			u -= users
		}
	}
	return b[:from]
}

// singleBodies makes the bodies of single messages one after the other, in one buffer. The numbers
// of the messages are a constant distance apart. If only the user differs between the bodies,
// singleBodies finds the next user with an addition and overwrites only the user's digits. This
// takes a third of the time of making each body alone (BenchmarkSingles).
type singleBodies struct {
	d        *data
	body     []byte   // the last body; valid until the method next is called again
	whole    *pattern // nil: data.appendRequest makes each body
	nextUser uint64   // user of the next message
	userStep uint64   // distance from the user of one message to the user of the next
}

func (d *data) singles(buf []byte, first, apart uint64) singleBodies {
	s := singleBodies{d: d, body: buf[:0], nextUser: d.userAt(first), userStep: apart % d.users * d.stride % d.users}
	whole := &d.variants[0].whole
	if len(d.variants) == 1 && whole.text != nil && d.step.Users.Pick == "each" && d.step.Triggers == 0 && d.kindOf(first) == kindSingle {
		s.whole, s.body = whole, append(s.body, whole.text...)
	}
	return s
}

// next makes the body of message n in the buffer. The numbers must come in order, one call for each
// message.
func (s *singleBodies) next(n uint64, intended time.Duration) {
	if s.whole == nil {
		s.body = s.d.appendRequest(s.body[:0], n, n, 1, intended)
		return
	}
	for _, at := range s.whole.digitsAt {
		putUser(s.body[at:at+8], s.nextUser)
	}
	if s.nextUser += s.userStep; s.nextUser >= s.d.users {
		s.nextUser -= s.d.users
	}
}

// putUser writes the eight digits of a user number over b.
func putUser(b []byte, u uint64) { binary.LittleEndian.PutUint64(b, eightDigits(u)) }

// eightDigits returns the digits of a number below 10^8 in ASCII, with the first digit in the
// lowest byte. It splits the number three times: into groups of four digits, then two digits, then
// one digit. Each step splits all groups in the word at once, with multiplications instead of
// divisions: x*10486>>20 is x/100 for x < 10,000, and x*103>>10 is x/10 for x < 100.
func eightDigits(u uint64) uint64 {
	v := u/10_000 | u%10_000<<32
	q := v * 10486 >> 20 & 0x7f_0000_007f
	v = q | (v-100*q)<<16
	q = v * 103 >> 10 & 0x000f_000f_000f_000f
	v = q | (v-10*q)<<8
	return v | 0x3030_3030_3030_3030
}

// makePatterns sets the patterns of a variant. A message with a push address has no pattern,
// because the address is a hash of the user and does not contain the user's digits.
func (d *data) makePatterns(v *variant) {
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
	if l := d.step.Scheduled; d.step.Payload.Text == "" || d.step.Ordered || l != nil || bytes.Contains(d.textPool, []byte("00000000")) {
		return
	}
	v.whole = newPattern(v.head, d.textPool, v.tail.text, []byte("}"))
}

// maxUsers is the number of different user ids with eight digits.
const maxUsers = 100_000_000

// appendUser appends a user id of constant width, for example "u00001234".
func appendUser(b []byte, u uint64) []byte {
	b = append(b, "u00000000"...)
	putUser(b[len(b)-8:], u)
	return b
}

// appendAddress appends the address of user u on a channel, in the form that the simulators
// accept.
func appendAddress(b []byte, channel string, u uint64) []byte {
	switch channel {
	case "sms":
		// The constant part of the address must not contain eight zeros in a row, because
		// newPattern takes these for the user's digits.
		b = append(b, "+9993500000000"...)
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
