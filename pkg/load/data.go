package load

import (
	"hash/fnv"
	"math"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// kind is the kind of a request.
type kind uint8

const (
	kindSingle kind = iota
	kindBatch
	kindFanout
	kindTrigger
)

// data makes the bodies of a step. A body depends only on the seed and the sequence number. The
// body of a scheduled message also depends on the start of the run.
type data struct {
	step     *Step
	seed     uint64
	users    uint64
	shift    uint64 // number of the user of the first message; it depends on the seed
	stride   uint64 // distance between the users of consecutive messages; coprime to the number of users
	variants []variant
	bounds   []float64 // bounds[i] is the sum of the shares of the variants up to variant i
	textPool []byte    // text from which payloads are cut
	callback string    // callback URL of triggers, with a trailing ?due=
	origin   time.Time // the run's start
	// orderBase is added to the sequence number of each message. It is larger in each later run,
	// because the simulators compare the messages of a user with those of earlier runs, too.
	orderBase uint64
	zipf      zipf
}

// variant is one channel and category of a mix.
type variant struct {
	channel, category string
	head              []byte // body up to the text

	// These patterns are texts in which only the user changes. The pattern receiver is the text of
	// one receiver of a fan-out, with a comma at its end. The pattern whole is the body of a single
	// message, and tail is the part of this body from the receiver to the end. A pattern without
	// text is not used.
	receiver, tail, whole pattern
}

func newData(s *Step, seed uint64) *data {
	d := &data{step: s, seed: notify.Mix(seed ^ notify.Mix(hashText(s.Name))), users: uint64(s.Users.Count)}
	d.shift = notify.Mix(d.seed) % d.users
	// The stride must have no common factor with the number of users. Then userAt(0), userAt(1) and so
	// on return every user before they repeat a user: a fan-out has no duplicates, and all users get
	// load.
	for d.stride = (2_654_435_761%d.users | 1) % max(d.users, 2); gcd(d.stride, d.users) != 1; d.stride++ {
	}
	shares := s.Mix
	if len(shares) == 0 {
		shares = []Share{{1, s.Channel, s.Category}}
	}
	sum := 0.0
	for _, sh := range shares {
		sum += sh.Weight
	}
	acc := 0.0
	for _, sh := range shares {
		acc += sh.Weight / sum
		head := `{"channel":"` + sh.Channel + `","category":"` + sh.Category + `","content":{`
		if sh.Channel != "sms" {
			head += `"title":"Hello",`
		}
		d.variants = append(d.variants, variant{channel: sh.Channel, category: sh.Category, head: []byte(head + `"body":`)})
		d.bounds = append(d.bounds, acc)
	}
	if s.Payload.Text != "" {
		d.textPool = strconv.AppendQuote(nil, s.Payload.Text)
	} else {
		d.textPool = randomText(d.seed, max(s.Payload.Bytes, s.Payload.Max)+1<<14)
	}
	for i := range d.variants {
		d.makePatterns(&d.variants[i])
	}
	d.zipf = newZipf(float64(d.users), s.Users.Skew)
	return d
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// hashText returns the same hash in every process, unlike maphash.
func hashText(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// The names of the independent random draws for a sequence number.
const (
	drawVariant = iota + 1
	drawUser
	drawHot
	drawLength
	drawText
	drawLater
	drawSpread
	drawTrigger
)

// draw returns a random number in [0, 1). The number depends only on the seed and on the parameters
// what and n.
func (d *data) draw(what, n uint64) float64 {
	return float64(notify.Mix(d.seed^notify.Mix(what<<56^n))>>11) / (1 << 53)
}

// randomText returns a text without characters that JSON must escape.
func randomText(seed uint64, n int) []byte {
	const letters = "etaoinshrdlucmfwypvbgkqjxz"
	b := make([]byte, n)
	word := 0
	for i := range b {
		h := notify.Mix(seed + uint64(i))
		if word > 2 && h%6 == 0 {
			b[i], word = ' ', 0
			continue
		}
		word++
		b[i] = letters[min((h>>8)%26, (h>>32)%26)] // choose common letters more often, as in real text
	}
	return b
}

// zipf draws users at random, by their rank. Rank 1 is the most frequent user. The share of a rank
// is proportional to rank^-skew. zipf inverts the continuous form of the distribution. So it needs
// only one random number for a user, and no state.
type zipf struct{ users, skew, top float64 }

func newZipf(users, skew float64) zipf {
	return zipf{users, skew, math.Pow(users+1, 1-skew) - 1}
}

func (z zipf) rank(u float64) uint64 {
	var x float64
	if math.Abs(z.skew-1) < 1e-9 {
		x = math.Pow(z.users+1, u)
	} else {
		x = math.Pow(1+u*z.top, 1/(1-z.skew))
	}
	return min(uint64(max(x-1, 0)), uint64(z.users)-1)
}

// ZipfShare returns the share of all messages that the most frequent users get, if a step picks
// users by a Zipf distribution with this skew. The parameter users is the number of all users,
// and top the number of the most frequent users.
func ZipfShare(users, skew, top float64) float64 {
	if math.Abs(skew-1) < 1e-9 {
		return math.Log(top+1) / math.Log(users+1)
	}
	return (math.Pow(top+1, 1-skew) - 1) / newZipf(users, skew).top
}

// userAt returns the user at position n of the walk that visits all users.
func (d *data) userAt(n uint64) uint64 { return (d.shift + n%d.users*d.stride) % d.users }

// user returns the number of the user who gets the message with the number seq.
func (d *data) user(seq uint64) uint64 {
	switch d.step.Users.Pick {
	case "uniform":
		return uint64(d.draw(drawUser, seq) * float64(d.users))
	case "zipf":
		return d.userAt(d.zipf.rank(d.draw(drawUser, seq)))
	case "hot":
		if d.draw(drawHot, seq) < d.step.Users.Share {
			return d.userAt(0)
		}
		return uint64(d.draw(drawUser, seq) * float64(d.users))
	}
	return d.userAt(seq)
}

func (d *data) variant(n uint64) *variant {
	if len(d.variants) == 1 {
		return &d.variants[0]
	}
	u := d.draw(drawVariant, n)
	for i, b := range d.bounds {
		if u < b {
			return &d.variants[i]
		}
	}
	return &d.variants[len(d.variants)-1]
}

// kindOf returns the kind of request n.
func (d *data) kindOf(n uint64) kind {
	switch d.step.bodies() {
	case Batch, Kafka:
		return kindBatch
	case Fanout:
		return kindFanout
	case Trigger:
		return kindTrigger
	}
	if t := d.step.Triggers; t > 0 && d.draw(drawTrigger, n) < t {
		return kindTrigger
	}
	return kindSingle
}

// scheduledTime returns the time for which the messages of request n are scheduled. It returns
// false if they are due at once.
func (d *data) scheduledTime(n uint64, intended time.Duration) (time.Time, bool) {
	l := d.step.Scheduled
	if l == nil || l.Share < 1 && d.draw(drawLater, n) >= l.Share {
		return time.Time{}, false
	}
	due := intended + l.After.of()
	if l.At > 0 {
		due = l.At.of()
	}
	due += time.Duration(d.draw(drawSpread, n) * float64(l.Spread))
	return d.origin.Add(due).Truncate(time.Millisecond), true // the API has this precision
}

// appendRequest appends the body of request n to b. The first message of the request has the number
// seq.
func (d *data) appendRequest(b []byte, n, seq uint64, size int, intended time.Duration) []byte {
	switch d.kindOf(n) {
	case kindTrigger:
		return d.appendTrigger(b, n, seq, intended)
	case kindSingle:
		due, later := d.scheduledTime(n, intended)
		return d.appendItem(b, seq, due, later)
	case kindBatch:
		due, later := d.scheduledTime(n, intended)
		b = append(b, '[')
		for i := range size {
			if i > 0 {
				b = append(b, ',')
			}
			b = d.appendItem(b, seq+uint64(i), due, later)
		}
		return append(b, ']')
	}
	return d.appendFanout(b, n, seq, size, intended)
}

func (d *data) appendFanout(b []byte, n, seq uint64, size int, intended time.Duration) []byte {
	v := d.variant(n)
	b = append(b, v.head...)
	b = d.appendText(b, n)
	b = append(b, '}')
	if due, later := d.scheduledTime(n, intended); later {
		b = appendTime(b, due)
	}
	b = append(b, `,"receivers":[`...)
	// Find the next user with an addition, because userAt divides twice, which would be a third of
	// the work for a receiver.
	u := d.userAt(seq)
	if v.receiver.text != nil {
		b = v.receiver.appendUsers(b, u, d.stride, d.users, size)
		return append(b[:len(b)-1], `]}`...)
	}
	for range size {
		b = append(b, `{"user_id":"`...)
		b = appendUser(b, u)
		b = append(b, `","address":"`...)
		b = appendAddress(b, v.channel, u)
		b = append(b, `"},`...)
		if u += d.stride; u >= d.users {
			u -= d.users
		}
	}
	return append(b[:len(b)-1], `]}`...)
}

// appendItem appends the body of one notification to b.
func (d *data) appendItem(b []byte, seq uint64, due time.Time, later bool) []byte {
	u := d.user(seq)
	v := d.variant(seq)
	if v.whole.text != nil {
		return v.whole.append(b, u)
	}
	b = append(b, v.head...)
	b = d.appendText(b, seq)
	if d.step.Ordered && v.channel == "push" {
		// The messages of a user are numbered: the number is the round through all users in which
		// the message is sent.
		b = append(b, `,"data":{"usr":"`...)
		b = appendUser(b, u)
		b = append(b, `","seq":"`...)
		b = strconv.AppendUint(b, d.orderBase+seq/d.users+1, 10)
		b = append(b, `"}`...)
	}
	if v.tail.text != nil {
		b = v.tail.append(b, u)
	} else {
		b = append(b, `},"to":{"user_id":"`...)
		b = appendUser(b, u)
		b = append(b, `","address":"`...)
		b = appendAddress(b, v.channel, u)
		b = append(b, `"}`...)
	}
	if later {
		b = appendTime(b, due)
	}
	return append(b, '}')
}

// appendText appends the text of message n, in quotes, to b.
func (d *data) appendText(b []byte, n uint64) []byte {
	p := &d.step.Payload
	if p.Text != "" {
		return append(b, d.textPool...)
	}
	size := p.Bytes
	if p.Max > size {
		size += int(d.draw(drawLength, n) * float64(p.Max-size+1))
	}
	at := int(d.draw(drawText, n) * (1 << 14))
	b = append(b, '"')
	b = append(b, d.textPool[at:at+size]...)
	return append(b, '"')
}

// appendTrigger appends the body that registers a callback. The callback URL contains the due time,
// so that the receiver can measure how late the callback is.
func (d *data) appendTrigger(b []byte, n, seq uint64, intended time.Duration) []byte {
	due, later := d.scheduledTime(n, intended)
	if !later {
		due = d.origin.Add(intended).Truncate(time.Millisecond)
	}
	b = append(b, `{"callback_url":"`...)
	b = append(b, d.callback...)
	b = strconv.AppendInt(b, due.UnixMilli(), 10)
	b = append(b, `","fire_at":"`...)
	b = due.UTC().AppendFormat(b, timeFormat)
	b = append(b, `","exact":true,"payload":{"n":`...)
	b = strconv.AppendUint(b, seq, 10)
	b = append(b, `,"text":`...)
	b = d.appendText(b, seq)
	return append(b, `}}`...)
}

const timeFormat = "2006-01-02T15:04:05.000Z07:00"

func appendTime(b []byte, at time.Time) []byte {
	b = append(b, `,"scheduled_at":"`...)
	b = at.UTC().AppendFormat(b, timeFormat)
	return append(b, '"')
}
