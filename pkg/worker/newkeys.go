package worker

import (
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// newKeys knows of original envelopes of a partition that they surely have no outcome
// row, so that accept need not read one. It belongs to one assignment of the partition,
// and only the goroutine that calls accept uses it. A key has no row if no owner has
// claimed it:
//
//   - This owner has not: accept has not met the key.
//   - No owner before has. It claims nothing once this member was given the partition
//     (log.Held), and this record was appended after that (Msg.AfterAssign). A copy of
//     the record may have been appended before that: a request that is repeated keeps
//     its ids. So the request must have been made later, too.
//
// The second copy of an original is always in the same partition of the lane's topic, so
// no process but the partition's owners claims it. That does not hold for retries and
// replays, whose rows are read.
//
// The time of a request is by the clock of the process that took it. Where that clock is
// ahead of ours, a copy appended before may look as if it were made after. So what was
// made within clockMargin after the begin is not believed, and neither is an id from the
// future. What this owner reads within clockMargin is therefore never believed.
type newKeys struct {
	began time.Time // when this member was given the partition

	// newer gets the keys. Once it is full it becomes older, and what older was is
	// dropped. A key whose request was made up to dropped (ms since 1970) may be among
	// the dropped ones.
	newer, older keySet
	dropped      int64
}

const (
	// clockMargin is how far ahead of ours the clocks of other processes may be.
	// docs/failures-cluster.md says what happens beyond it.
	clockMargin = 5 * time.Second
	// clockAhead is how far ahead an id is not yet from the future.
	clockAhead = time.Second

	// keySetSize is how many keys a keySet takes: with keySetBits bits for each, and
	// keySetHashes of them set, it knows 0.2% of other keys falsely when full. It
	// takes 64 KiB.
	keySetSize   = 1 << 15
	keySetBits   = 16
	keySetHashes = 5
)

// keySet is a Bloom filter.
type keySet struct {
	bits   []uint64 // nil: empty
	count  int
	latest int64 // when the latest request of its keys was made, ms since 1970
}

// meet notes an original and reports whether it surely has no outcome row. after says
// that its record was appended after the begin, held how long ago that was by the
// monotonic clock.
func (n *newKeys) meet(c *notify.Chunk, after bool, now time.Time, held time.Duration) bool {
	made := c.Base.Time().UnixMilli()
	hash := notify.Mix(chunkHash(c))
	met := n.newer.has(hash) || n.older.has(hash)
	if !met {
		if n.newer.count == keySetSize {
			n.dropped = max(n.dropped, n.older.latest)
			n.newer, n.older = keySet{bits: n.older.bits}, n.newer
			clear(n.newer.bits)
		}
		n.newer.add(hash, made)
	}
	// A clock that was set since has shifted the begin.
	began := max(n.began.UnixMilli(), now.Add(-held).UnixMilli())
	return !met && after && made > max(began+clockMargin.Milliseconds(), n.dropped) && made <= now.Add(clockAhead).UnixMilli()
}

func (s *keySet) add(hash uint64, made int64) {
	if s.bits == nil {
		s.bits = make([]uint64, keySetSize*keySetBits/64)
	}
	step := notify.Mix(hash) | 1
	for range keySetHashes {
		at := hash % (keySetSize * keySetBits)
		s.bits[at/64] |= 1 << (at % 64)
		hash += step
	}
	s.count++
	s.latest = max(s.latest, made)
}

func (s *keySet) has(hash uint64) bool {
	if s.count == 0 {
		return false
	}
	step := notify.Mix(hash) | 1
	for range keySetHashes {
		at := hash % (keySetSize * keySetBits)
		if s.bits[at/64]&(1<<(at%64)) == 0 {
			return false
		}
		hash += step
	}
	return true
}

// chunkHash is a hash of a chunk.
func chunkHash(c *notify.Chunk) uint64 {
	return notify.ColumnDigest(c.Base[:]) + uint64(c.Partition)<<32 + uint64(c.Block)
}
