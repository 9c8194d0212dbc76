package worker

import (
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// newKeys decides which original envelopes of a partition cannot have an outcome row yet. accept
// need not read a row for them. A newKeys belongs to one assignment of the partition. Only the
// goroutine that calls accept uses it. An envelope has no row if no owner has claimed it:
//
//   - This owner has not claimed it if accept has not seen its key before.
//   - No earlier owner has claimed it if the request was made after the assignment. An earlier
//     owner claims nothing after this member was given the partition (log.AwaitOwnership), and this
//     record was appended after the assignment (Msg.AfterAssign). But a repeated request keeps its
//     ids, so another copy of the record may have been appended before the assignment. Therefore
//     the time of the request is checked too.
//
// The second copy of an original is always in the same partition of the lane's topic, so only
// owners of this partition can claim it. This is not true for retries and replays; their rows are
// always read.
//
// The time of a request comes from the clock of the process that accepted it. If that clock is
// ahead of ours, a request made before the assignment may seem to be made after it. So envelopes
// made within clockMargin after the assignment may have been claimed, and their rows are read. The
// same applies to ids from the future. So in the time clockMargin after the assignment, the row of
// every envelope is read.
type newKeys struct {
	began time.Time // when this member was given the partition

	// New keys are added to the set newer. When newer is full, it becomes the set older, and the
	// former older set is dropped. dropped is the latest request time of all dropped keys, in ms
	// since 1970. A request made at that time or earlier may have been seen.
	newer, older keySet
	dropped      int64
}

const (
	// clockMargin is how far ahead of our clock the clocks of other processes may be.
	// docs/failures-cluster.md says what happens if a clock is further ahead.
	clockMargin = 5 * time.Second
	// clockAhead is how far ahead of our clock an id may be.
	clockAhead = time.Second

	// keySetSize is the number of keys in a full keySet. The set has keySetBits bits for each key,
	// and each key sets keySetHashes bits. A full set wrongly reports 0.2% of other keys as seen.
	// It takes 64 KiB.
	keySetSize   = 1 << 15
	keySetBits   = 16
	keySetHashes = 5
)

// keySet is a Bloom filter.
type keySet struct {
	bits   []uint64 // nil: empty
	count  int
	latest int64 // time of the latest request whose key is in the set, in ms since 1970
}

// noteIsNew notes an original and reports whether it cannot have an outcome row. appendedAfter means
// that the original's record was appended after the assignment. assignedFor is the age of the
// assignment, by the monotonic clock.
func (n *newKeys) noteIsNew(c *notify.Chunk, appendedAfter bool, now time.Time, assignedFor time.Duration) bool {
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
	// If the wall clock was set after the assignment, compute the assignment time by the new clock
	// too.
	began := max(n.began.UnixMilli(), now.Add(-assignedFor).UnixMilli())
	return !met && appendedAfter && made > max(began+clockMargin.Milliseconds(), n.dropped) && made <= now.Add(clockAhead).UnixMilli()
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

// chunkHash returns a hash of a chunk.
func chunkHash(c *notify.Chunk) uint64 {
	return notify.ColumnDigest(c.Base[:]) + uint64(c.Partition)<<32 + uint64(c.Block)
}
