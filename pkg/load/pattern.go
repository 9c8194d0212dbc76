package load

import "bytes"

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

// putUser writes the number of a user over b, eight digits.
func putUser(b []byte, u uint64) {
	_ = b[7]
	hi, lo := uint32(u)/10_000, uint32(u)%10_000
	p, q, r, s := hi/100*2, hi%100*2, lo/100*2, lo%100*2
	b[0], b[1], b[2], b[3] = twoDigits[p], twoDigits[p+1], twoDigits[q], twoDigits[q+1]
	b[4], b[5], b[6], b[7] = twoDigits[r], twoDigits[r+1], twoDigits[s], twoDigits[s+1]
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

// twoDigits holds 00 to 99.
var twoDigits = func() (t [200]byte) {
	for i := range 100 {
		t[2*i], t[2*i+1] = byte('0'+i/10), byte('0'+i%10)
	}
	return t
}()

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
	for _, x := range [4]uint64{u, mix(u), mix(u + 1), mix(u + 2)} {
		for i := 60; i >= 0; i -= 4 {
			b = append(b, hex[x>>i&15])
		}
	}
	return b
}
