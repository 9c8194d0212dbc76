package intake

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
)

// seen finds users that come twice in a request. Nearly all come once, and of those
// a sieve says so: 16-bit tags of their hashes, four to a word, which with 50,000
// users is a quarter of the second-level cache and tells one in 50,000 wrongly of
// somebody it does not know. Whom it seems to know is looked for among the users of
// the same partition, where a user who came before must be; and where many are looked
// for, because they do come twice, a map of all users is made. So no collision drops
// a real receiver. The hash is keyed by a secret: nobody can make a request whose
// users all meet in one word.
//
// A table of ordinals and their places, with a tag in what an ordinal leaves free,
// took 22 ns a user where the sieve takes 5: four times the memory, and a branch
// nobody can foretell that waits for it.
type seen struct {
	seed   maphash.Seed
	k0, k1 uint64
	sieve  []uint64          // a power of two; a tag of zero is free, and a word's are filled from the lowest
	keep   []uint64          // the longest sieve so far
	users  int               // that came
	walked int               // bytes of partitions that were looked through
	places map[uint64]uint64 // by hash, once many come twice: partition 16, offset 48 of a user
}

const (
	firstWords = 1 << 11
	keptWords  = 1 << 20 // a larger sieve is not kept for the next request: 8 MiB
	maxGuess   = 1 << 20 // users the sieve is made for before they are seen

	each16 = 1<<48 | 1<<32 | 1<<16 | 1
	high16 = each16 << 15
)

func newSeen() seen {
	return seen{seed: maphash.MakeSeed(), k0: rand.Uint64(), k1: rand.Uint64()}
}

// begin starts a request of about n users.
func (s *seen) begin(n int) {
	if len(s.keep) > keptWords {
		s.keep = nil
	}
	s.users, s.walked, s.places = 0, 0, nil
	s.resize(max(firstWords, 1<<bits.Len(uint(min(n, maxGuess)/2))))
}

// resize empties the sieve and makes it of so many words.
func (s *seen) resize(words int) {
	if len(s.keep) < words {
		s.keep = make([]uint64, words)
	}
	s.sieve = s.keep[:words]
	clear(s.sieve)
}

// hash hashes any user; mix gives the same for the users it takes.
func (s *seen) hash(user []byte) uint64 {
	if len(user) > 16 {
		return maphash.Bytes(s.seed, user)
	}
	var b [16]byte
	copy(b[:], user)
	return s.mix(binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:]), len(user))
}

// mix hashes up to 16 bytes, padded with zeros to two words.
func (s *seen) mix(a, b uint64, n int) uint64 {
	hi, lo := bits.Mul64(a^s.k0, b^s.k1)
	hi, lo = bits.Mul64(lo^s.k1, hi^s.k0^uint64(n))
	return hi ^ lo
}

// first reports whether user, whose hash is h and whose bytes are about to be added
// to cols[part], comes for the first time.
func (s *seen) first(h uint64, user []byte, part uint16, cols []column) bool {
	if s.places != nil {
		return s.firstPlace(h, user, part, cols)
	}
	if s.users >= 2*len(s.sieve) {
		s.grow(cols)
	}
	if s.pass(h) {
		s.users++
		return true
	}
	// To look through partitions may take as long as to look twice through all of
	// them: a million who come once need half of that, and nobody gets more.
	if s.walked += len(cols[part].buf); s.walked > 16<<10+32*s.users {
		s.place(cols)
		return s.firstPlace(h, user, part, cols)
	}
	if among(user, cols[part].buf) {
		return false
	}
	s.users++
	return true
}

// end forgets what only this request needs.
func (s *seen) end() { s.places = nil }

// pass puts the tag of a hash into the sieve; false: it is there.
func (s *seen) pass(h uint64) bool {
	tag := max(h>>48, 1)
	for at := h; ; at++ {
		w := &s.sieve[at&uint64(len(s.sieve)-1)]
		was := *w
		if x := was ^ tag*each16; (x-each16)&^x&high16 != 0 {
			return false
		}
		if free := (was - each16) &^ was & high16; free != 0 {
			*w = was | tag<<(bits.TrailingZeros64(free)-15)
			return true
		}
	}
}

// grow makes the sieve twice as long.
func (s *seen) grow(cols []column) {
	s.resize(2 * len(s.sieve))
	for i := range cols {
		for b := cols[i].buf; len(b) > 0; {
			var user []byte
			user, b = cutUser(b)
			s.pass(s.hash(user))
		}
	}
}

// place makes the map of all users.
func (s *seen) place(cols []column) {
	s.places = make(map[uint64]uint64, s.users)
	for i := range cols {
		for rest := cols[i].buf; len(rest) > 0; {
			at := len(cols[i].buf) - len(rest)
			var user []byte
			user, rest = cutUser(rest)
			s.places[s.hash(user)] = uint64(i)<<48 | uint64(at)
		}
	}
}

// firstPlace is first with the map.
func (s *seen) firstPlace(h uint64, user []byte, part uint16, cols []column) bool {
	if at, ok := s.places[h]; ok {
		if other, _ := cutUser(cols[at>>48].buf[at&(1<<48-1):]); string(other) == string(user) {
			return false
		}
		return !among(user, cols[part].buf) // two users of one hash
	}
	s.places[h] = uint64(part)<<48 | uint64(len(cols[part].buf))
	return true
}

// among reports whether a column holds a user.
func among(user, column []byte) bool {
	for len(column) > 0 {
		var other []byte
		if other, column = cutUser(column); string(other) == string(user) {
			return true
		}
	}
	return false
}

// cutUser takes the first receiver off a column the splitter wrote. A reader of
// receivers would not do: their indexes begin again with each chunk.
func cutUser(b []byte) (user, rest []byte) {
	_, n := binary.Uvarint(b)
	flags, m := binary.Uvarint(b[n:])
	b = b[n+m:]
	user, b = b[:flags>>2], b[flags>>2:]
	for range bits.OnesCount64(flags & 3) { // an address, variables
		size, n := binary.Uvarint(b)
		b = b[n+int(size):]
	}
	return user, b
}
