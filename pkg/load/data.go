package load

import (
	"strconv"
)

// data makes the bodies: a pure function of (seed, sequence).
type data struct {
	s      Scenario
	prefix []byte // of a receiver's or item's JSON
	head   []byte // of a fan-out's
	shift  uint64 // where the seed begins in the users
	step   uint64 // between the users of neighbours: coprime to Users
}

func newData(s Scenario) *data {
	d := &data{s: s}
	h := mix(s.Seed)
	d.shift = h % s.Users
	// A step that shares no factor with Users visits every user once before it
	// repeats one: a fan-out has no duplicates, and load spreads.
	for d.step = 2_654_435_761%s.Users | 1; gcd(d.step, s.Users) != 1; d.step += 2 {
	}
	content := `"content":{"title":"Hello","body":` + strconv.Quote(s.Body)
	if s.Channel == "sms" {
		content = `"content":{"body":` + strconv.Quote(s.Body)
	}
	d.head = []byte(`{"channel":"` + s.Channel + `","category":"` + s.Category + `",` + content + `},"receivers":[`)
	d.prefix = []byte(`{"channel":"` + s.Channel + `","category":"` + s.Category + `",` + content)
	return d
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// user is the number of the user of message seq.
func (d *data) user(seq uint64) uint64 {
	return (d.shift + seq%d.s.Users*d.step) % d.s.Users
}

// request appends the body of the request whose first message is seq.
func (d *data) request(b []byte, seq uint64, n int) []byte {
	switch d.s.Target {
	case Single:
		return d.item(b, seq)
	case Batch:
		b = append(b, '[')
		for i := range n {
			if i > 0 {
				b = append(b, ',')
			}
			b = d.item(b, seq+uint64(i))
		}
		return append(b, ']')
	}
	b = append(b, d.head...)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		u := d.user(seq + uint64(i))
		if !d.s.Address {
			b = append(b, '"')
			b = appendUser(b, u)
			b = append(b, '"')
			continue
		}
		b = append(b, `{"user_id":"`...)
		b = appendUser(b, u)
		b = append(b, `","address":"`...)
		b = d.appendAddress(b, u)
		b = append(b, `"}`...)
	}
	return append(b, `]}`...)
}

// item appends one notification.
func (d *data) item(b []byte, seq uint64) []byte {
	u := d.user(seq)
	b = append(b, d.prefix...)
	if d.s.Ordered && d.s.Channel == "push" {
		// The round in which the user's turn comes again is its sequence.
		b = append(b, `,"data":{"usr":"`...)
		b = appendUser(b, u)
		b = append(b, `","seq":"`...)
		b = strconv.AppendUint(b, seq/d.s.Users+1, 10)
		b = append(b, `"}`...)
	}
	b = append(b, `},"to":{"user_id":"`...)
	b = appendUser(b, u)
	b = append(b, '"')
	if d.s.Address {
		b = append(b, `,"address":"`...)
		b = d.appendAddress(b, u)
		b = append(b, '"')
	}
	return append(b, `}}`...)
}

// appendUser appends a user id of constant width, e.g. "u00001234".
func appendUser(b []byte, u uint64) []byte {
	b = append(b, "u00000000"...)
	for i := len(b) - 1; u > 0; i-- {
		b[i] = byte('0' + u%10)
		u /= 10
	}
	return b
}

// appendAddress appends the address of user u on the scenario's channel, of the
// form the simulators take.
func (d *data) appendAddress(b []byte, u uint64) []byte {
	switch d.s.Channel {
	case "sms":
		b = append(b, "+9990000000000"...)
		for i := len(b) - 1; u > 0; i-- {
			b[i] = byte('0' + u%10)
			u /= 10
		}
		return b
	case "email":
		b = append(b, 'u')
		b = strconv.AppendUint(b, u, 10)
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
