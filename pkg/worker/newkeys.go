package worker

import (
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// newKeys finds the original envelopes (not retries or replays) that certainly have no outcome row.
// The method accept of the partition reads no row for them. A newKeys belongs to one assignment of
// the partition to this member. Only the goroutine that calls accept uses it.
//
// An envelope has no row if no owner of the partition has claimed it. Two conditions together show this:
//
//   - This owner has not claimed it: accept has not seen its key before.
//   - No earlier owner has claimed it: the record was appended after the assignment
//     (Msg.AfterAssign), and the request was made after the assignment. An earlier owner claims
//     nothing after the assignment (log.AwaitOwnership). The time of the request is checked because
//     a repeated request has the same ids, so an older copy of the record may exist.
//
// All copies of an original are in the same partition of the lane's topic, so only owners of this
// partition can claim them. This is not true for retries and replays, so their rows are always
// read.
//
// The process that accepted a request sets its time. If the clock of that process is ahead of ours,
// a request from before the assignment may seem to be from after it. So rows are always read for
// requests with a time up to clockMargin after the assignment, and for requests with a time in the
// future.
type newKeys struct {
	began time.Time // when this member was given the partition

	// New keys are added to the set newer. When newer is full, it becomes older, and the keys in
	// the previous older set are dropped. The field dropped is the latest request time of all
	// dropped keys, in ms since 1970. For a request of that time or earlier, newKeys does not know
	// whether its key was seen.
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

// noteIsNew adds the key of an original envelope (not a retry or a replay) to the set. It returns
// true if the envelope certainly has no outcome row. appendedAfter means that the record was
// appended after the partition was assigned to this member. assignedFor is how long this member has
// had the partition, by the monotonic clock.
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
	// The wall clock may have been changed since the partition was assigned. Then compute the time
	// of the assignment by the new clock too.
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
