package intake

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
)

// userSieve finds users that occur twice in a request. Nearly all users occur once, and the sieve
// shows that quickly. The sieve contains a 16-bit tag of each user's hash, four tags in each word.
// With 50,000 users it fills a quarter of the second-level cache, and for one new user in 50,000 it
// wrongly reports that the user is there already.
//
// If the sieve reports that a user is there already, the userSieve searches the users of the same
// partition, where an earlier occurrence must be. If it must search too much, because many users
// really occur twice, it builds a map of all users. So equal tags never drop a receiver that occurs
// once. The hash uses a secret, so that a client cannot make a request whose users all fall into
// one word.
//
// An earlier version was a table of ordinals and offsets, with a tag in the free bits of an
// ordinal. It took 22 ns a user; the sieve takes 5 ns. The table needed four times the memory, and
// the CPU could not predict its branch.
type userSieve struct {
	seed   maphash.Seed
	k0, k1 uint64
	// sieve contains the tags. Its length is a power of two. A tag of 0 is free, and a word is
	// filled from its lowest tag.
	sieve []uint64
	// longest is the memory of the longest sieve so far. The slice sieve is the beginning of this
	// memory.
	longest     []uint64
	users       int // number of different users so far
	walkedBytes int // bytes of partitions that were searched
	// places is a map of all users, from the hash of a user to the place of the user: the
	// partition in the high 16 bits, the offset in the low 48 bits. It is nil until many users
	// occur twice.
	places map[uint64]uint64
}

const (
	firstWords = 1 << 11
	keptWords  = 1 << 20 // a larger sieve is not kept for the next request; 8 MiB
	maxGuess   = 1 << 20 // the first sieve is made for at most this many users

	each16 = 1<<48 | 1<<32 | 1<<16 | 1
	high16 = each16 << 15
)

func newSeen() userSieve {
	return userSieve{seed: maphash.MakeSeed(), k0: rand.Uint64(), k1: rand.Uint64()}
}

// reset begins a request with about n users.
func (s *userSieve) reset(n int) {
	if len(s.longest) > keptWords {
		s.longest = nil
	}
	s.users, s.walkedBytes, s.places = 0, 0, nil
	s.resize(max(firstWords, 1<<bits.Len(uint(min(n, maxGuess)/2))))
}

// resize clears the sieve and sets its length to the given number of words.
func (s *userSieve) resize(words int) {
	if len(s.longest) < words {
		s.longest = make([]uint64, words)
	}
	s.sieve = s.longest[:words]
	clear(s.sieve)
}

// hash returns the hash of any user id. For ids of up to 16 bytes it returns the same as the
// method mix.
func (s *userSieve) hash(user []byte) uint64 {
	if len(user) > 16 {
		return maphash.Bytes(s.seed, user)
	}
	var b [16]byte
	copy(b[:], user)
	return s.mix(binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:]), len(user))
}

// mix returns the hash of n bytes, at most 16, padded with zeros to the two words a and b.
func (s *userSieve) mix(a, b uint64, n int) uint64 {
	hi, lo := bits.Mul64(a^s.k0, b^s.k1)
	hi, lo = bits.Mul64(lo^s.k1, hi^s.k0^uint64(n))
	return hi ^ lo
}

// isFirst reports whether a user occurs for the first time. The parameter h is the user's hash.
// The caller adds the user to cols[part] after isFirst returns true.
func (s *userSieve) isFirst(h uint64, user []byte, part uint16, cols []column) bool {
	if s.places != nil {
		return s.isFirstByPlace(h, user, part, cols)
	}
	if s.users >= 2*len(s.sieve) {
		s.doubleSieve(cols)
	}
	if s.addTag(h) {
		s.users++
		return true
	}
	// The searches may read up to twice the bytes of all partitions. A million users that all occur
	// once need half of that. If the searches need more, build the map.
	if s.walkedBytes += len(cols[part].buf); s.walkedBytes > 16<<10+32*s.users {
		s.buildPlaces(cols)
		return s.isFirstByPlace(h, user, part, cols)
	}
	if columnHas(user, cols[part].buf) {
		return false
	}
	s.users++
	return true
}

// dropPlaces drops the map, which later requests do not need.
func (s *userSieve) dropPlaces() { s.places = nil }

// addTag adds the tag of a hash to the sieve. It returns false if the sieve already has the tag.
func (s *userSieve) addTag(h uint64) bool {
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

// doubleSieve doubles the length of the sieve and adds the tags of all users again.
func (s *userSieve) doubleSieve(cols []column) {
	s.resize(2 * len(s.sieve))
	for i := range cols {
		for b := cols[i].buf; len(b) > 0; {
			var user []byte
			user, b = cutUser(b)
			s.addTag(s.hash(user))
		}
	}
}

// buildPlaces builds the map of all users.
func (s *userSieve) buildPlaces(cols []column) {
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

// isFirstByPlace does the work of isFirst with the map.
func (s *userSieve) isFirstByPlace(h uint64, user []byte, part uint16, cols []column) bool {
	if at, ok := s.places[h]; ok {
		if other, _ := cutUser(cols[at>>48].buf[at&(1<<48-1):]); string(other) == string(user) {
			return false
		}
		return !columnHas(user, cols[part].buf) // two users with the same hash
	}
	s.places[h] = uint64(part)<<48 | uint64(len(cols[part].buf))
	return true
}

// columnHas reports whether a column contains a user.
func columnHas(user, column []byte) bool {
	for len(column) > 0 {
		var other []byte
		if other, column = cutUser(column); string(other) == string(user) {
			return true
		}
	}
	return false
}

// cutUser returns the user of the first receiver in a column, and the rest of the column after that
// receiver. It does not use notify.ReadReceivers, because the indexes begin again in each chunk.
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
