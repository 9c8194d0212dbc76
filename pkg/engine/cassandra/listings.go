package cassandra

import (
	"bytes"
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

// A list contains the keys of rows. It is read from the highest key down. A list has one bucket
// for each period of listLength, and each bucket has listShards partitions. The table buckets has
// a note for each partition that may have entries.
//
// Entries are removed one by one. Each removal leaves a tombstone for listGrace (gc_grace_seconds
// of the table). Cassandra refuses a read that finds 100,000 tombstones in a partition. So at most
// 2,600 entries of a list can be removed in a second.
//
// If a node misses a removal for longer than listGrace, the entry may appear again. So an entry
// does not prove that its row exists. A reader of a list also reads the row of each entry, and
// removes an entry that has no row.
const (
	listLength = 6 * hourMs
	listShards = 16
	listGrace  = 10 * time.Minute

	// A walk (walkList) removes entries that have no row, and notes of empty partitions.
	// The removal has a timestamp that is tidyBehind before now. So it affects only entries
	// and notes that are older than tidyBehind, and not an entry that is written during the
	// walk.
	tidyBehind = time.Minute
)

// listEntry is one entry of a list. The keys must be in the same order as their times (ms).
type listEntry struct {
	list string
	ms   int64 // determines the bucket
	key  []byte
}

func listBucket(ms int64) int64 {
	if ms < 0 {
		return -1
	}
	return ms / listLength
}

func listShard(key []byte) int64 { return int64(shardOfBase(key, listShards)) }

// part returns the number that the entry's partition has in the table buckets.
func (e *listEntry) part() int64 { return listBucket(e.ms)*listShards + listShard(e.key) }

// partition returns the name of the entry's partition for the combiner.
func (e *listEntry) partition() string { return "listings/" + e.list + "/" + itoa(int(e.part())) }

// listPart returns the bucket and the shard of the partition with number n. The bucket may
// be negative.
func listPart(n int64) (bucket int64, shard int16) {
	shard = int16(n & (listShards - 1))
	return (n - int64(shard)) / listShards, shard
}

// addToList adds entries that are kept until endMs, ms since 1970. If endMs is 0, they are
// kept until they are removed. When addToList returns nil, readers find the entries.
func addToList(ctx context.Context, s *Store, endMs int64, es ...listEntry) error {
	began := time.Now()
	note := func(e *listEntry, useCache bool) error { return noteBucket(ctx, s, e.list, e.part(), endMs, useCache) }
	err := parallel(len(es), func(i int) error {
		e := &es[i]
		// A walk of another process may have removed the note of an old bucket. So the
		// cache is used only for the current bucket.
		if err := note(e, (listBucket(e.ms)+1)*listLength > began.UnixMilli()); err != nil {
			return err
		}
		return s.combiner.submit(ctx, e.partition(), stmt{
			`INSERT INTO listings (list, bucket, shard, id) VALUES (?, ?, ?, ?) USING TTL ? AND TIMESTAMP ?`,
			[]any{e.list, listBucket(e.ms), int16(listShard(e.key)), e.key, ttl(endMs), s.clock.now()},
		})
	})
	if err == nil && time.Since(began) > tidyBehind/2 {
		// Storing the note and the entry took long. In between, a walk may have found the bucket
		// empty and removed the note. So the note is stored again.
		err = parallel(len(es), func(i int) error { return note(&es[i], false) })
	}
	return err
}

// removeFromList removes entries that were added before timestamp.
func removeFromList(ctx context.Context, s *Store, timestamp int64, es ...listEntry) error {
	return parallel(len(es), func(i int) error {
		e := &es[i]
		return s.combiner.submit(ctx, e.partition(), stmt{
			`DELETE FROM listings USING TIMESTAMP ? WHERE list = ? AND bucket = ? AND shard = ? AND id = ?`,
			[]any{timestamp, e.list, listBucket(e.ms), int16(listShard(e.key)), e.key},
		})
	})
}

// tidyTimestamp returns the timestamp for the removal of entries that have no row, and of
// notes of empty partitions.
func tidyTimestamp(s *Store) int64 { return s.clock.now() - s.tidyBehind.Microseconds() }

// isListPartOver reports whether a partition is so old that no process has its note in the
// cache. The note of such a partition may be removed when the partition is empty.
func isListPartOver(part int64) bool {
	bucket, _ := listPart(part)
	return (bucket+1)*listLength < time.Now().Add(-3*bucketsKept).UnixMilli()
}

// forgetEmptyParts removes the note of each partition that is empty and for which
// isListPartOver returns true.
func forgetEmptyParts(ctx context.Context, s *Store, list string, parts []int64) error {
	return parallel(len(parts), func(i int) error {
		if !isListPartOver(parts[i]) {
			return nil
		}
		at := tidyTimestamp(s) // before the read, so that the removal does not remove a later entry's note
		var key []byte
		bucket, shard := listPart(parts[i])
		ok, err := s.get(ctx, `SELECT id FROM listings WHERE list = ? AND bucket = ? AND shard = ? LIMIT 1`, []any{list, bucket, shard}, &key)
		if err != nil || ok {
			return err
		}
		return forgetBucketAt(ctx, s, at, list, parts[i])
	})
}

// partSet collects the partitions from which entries were removed. The method add is safe
// for concurrent use.
type partSet struct {
	mu    sync.Mutex
	parts map[string]map[int64]bool // by list
}

func (p *partSet) add(es []listEntry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.parts == nil {
		p.parts = map[string]map[int64]bool{}
	}
	for i := range es {
		if p.parts[es[i].list] == nil {
			p.parts[es[i].list] = map[int64]bool{}
		}
		p.parts[es[i].list][es[i].part()] = true
	}
}

// forgetEmpty removes the notes of the collected partitions that are empty now. No add may
// run at the same time.
func (p *partSet) forgetEmpty(ctx context.Context, s *Store) error {
	for list, parts := range p.parts {
		if err := forgetEmptyParts(ctx, s, list, slices.Collect(maps.Keys(parts))); err != nil {
			return err
		}
	}
	return nil
}

// walkList calls fn with the keys of a list, highest key first, several keys in each call. It stops
// when fn returns false. It continues after lastKey, the last key of an earlier walk, whose time is
// ms. If lastKey is nil, it begins at the highest key. The parameter wanted is the approximate
// number of keys that the caller needs.
func walkList(ctx context.Context, s *Store, list string, lastKey []byte, ms int64, wanted int, fn func(keys [][]byte) (bool, error)) error {
	upTo := int64(math.MaxInt64)
	if lastKey != nil {
		upTo = listBucket(ms)*listShards + listShards - 1
	}
	bucket, shards := int64(math.MinInt64), []int16(nil)
	flush := func() (bool, error) {
		if len(shards) == 0 {
			return true, nil
		}
		from := lastKey
		if bucket != listBucket(ms) {
			from = nil
		}
		return walkListBucket(ctx, s, list, bucket, shards, from, wanted, fn)
	}
	more := true
	err := eachBucket(ctx, s, list, math.MinInt64, upTo, true, func(n int64) (_ bool, err error) {
		at, shard := listPart(n)
		if at != bucket {
			if more, err = flush(); err != nil || !more {
				return false, err
			}
			bucket, shards = at, nil
		}
		shards = append(shards, shard)
		return true, nil
	})
	if err == nil && more {
		_, err = flush()
	}
	return err
}

// collectListed walks a list as walkList does and calls get for each key. It returns the
// first max values for which get returns ok = true.
func collectListed[V any](ctx context.Context, s *Store, list string, lastKey []byte, ms int64, max int, get func(key []byte) (v V, ok bool, err error)) (out []V, err error) {
	if max <= 0 {
		return nil, nil
	}
	type found struct {
		v  V
		ok bool
	}
	err = walkList(ctx, s, list, lastKey, ms, max, func(keys [][]byte) (bool, error) {
		for len(keys) > 0 && len(out) < max {
			n := min(len(keys), 2*(max-len(out))+20) // more than needed, because get may return false for many keys
			all, err := readEach(keys[:n], func(key []byte) (f found, err error) {
				f.v, f.ok, err = get(key)
				return f, err
			})
			if err != nil {
				return false, err
			}
			keys = keys[n:]
			for i := range all {
				if all[i].ok && len(out) < max {
					out = append(out, all[i].v)
				}
			}
		}
		return len(out) < max, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// listCursor is the position of a walk in one partition.
type listCursor struct {
	shard int16
	ahead [][]byte // keys that were read and not yet passed to fn
	last  []byte   // the last key that was read
	done  bool     // the partition has no keys after last
}

// walkListBucket does what walkList does, for one bucket. It returns false if fn returned
// false.
func walkListBucket(ctx context.Context, s *Store, list string, bucket int64, shards []int16, lastKey []byte, wanted int, fn func([][]byte) (bool, error)) (bool, error) {
	cs := make([]listCursor, len(shards))
	for i := range cs {
		cs[i] = listCursor{shard: shards[i], last: lastKey}
	}
	n := min(pageSize, wanted/len(cs)+8)
	for {
		err := parallel(len(cs), func(i int) error {
			if c := &cs[i]; len(c.ahead) == 0 && !c.done {
				return advanceList(ctx, s, list, bucket, c, n)
			}
			return nil
		})
		if err != nil {
			return false, err
		}
		page, done := mergeLists(cs)
		if len(page) > 0 {
			if more, err := fn(page); err != nil || !more {
				return false, err
			}
		}
		if done {
			return true, nil
		}
	}
}

// advanceList reads the next keys of a partition. If the partition is empty and
// isListPartOver returns true, advanceList removes the note of the partition.
func advanceList(ctx context.Context, s *Store, list string, bucket int64, c *listCursor, n int) error {
	at, where, args := tidyTimestamp(s), ``, []any(nil)
	if c.last != nil {
		where, args = ` AND id < ?`, []any{c.last}
	}
	ahead, err := readListed(ctx, s, list, bucket, c.shard, where+` LIMIT ?`, append(args, n)...)
	if err != nil {
		return err
	}
	c.ahead = ahead
	c.done = len(c.ahead) < n
	part := bucket*listShards + int64(c.shard)
	switch {
	case len(c.ahead) > 0:
		c.last = c.ahead[len(c.ahead)-1]
	case c.last == nil && isListPartOver(part):
		return forgetBucketAt(ctx, s, at, list, part)
	}
	return nil
}

// readListed returns keys of a partition, highest key first. The parameter suffix is the
// end of the CQL statement; it selects the keys and may change the order. The parameter
// args contains its arguments.
func readListed(ctx context.Context, s *Store, list string, bucket int64, shard int16, suffix string, args ...any) (keys [][]byte, err error) {
	err = s.rows(ctx, func(scan func(...any) bool) error {
		for {
			var key []byte
			if !scan(&key) {
				return nil
			}
			keys = append(keys, key)
		}
	}, `SELECT id FROM listings WHERE list = ? AND bucket = ? AND shard = ?`+suffix, append([]any{list, bucket, shard}, args...)...)
	return keys, err
}

// mergeLists removes keys from the cursors and returns them, highest key first. It stops when a
// cursor has no more keys but its partition may have more. The result done is true if no partition
// has more keys.
func mergeLists(cs []listCursor) (page [][]byte, done bool) {
	for {
		best := -1
		for i := range cs {
			switch c := &cs[i]; {
			case len(c.ahead) == 0 && !c.done:
				return page, false
			case len(c.ahead) > 0 && (best < 0 || bytes.Compare(c.ahead[0], cs[best].ahead[0]) > 0):
				best = i
			}
		}
		if best < 0 {
			return page, true
		}
		page, cs[best].ahead = append(page, cs[best].ahead[0]), cs[best].ahead[1:]
	}
}

// countListed returns the number of entries of a list. It stops soon after the count is
// greater than limit.
func countListed(ctx context.Context, s *Store, list string, limit int) (n int, err error) {
	parts, err := readBuckets(ctx, s, list, math.MinInt64, math.MaxInt64)
	if err != nil {
		return 0, err
	}
	for some := range slices.Chunk(parts, maxParallel) {
		held, err := readEach(some, func(part int64) (n int64, err error) {
			bucket, shard := listPart(part)
			_, err = s.get(ctx, `SELECT count(*) FROM listings WHERE list = ? AND bucket = ? AND shard = ?`, []any{list, bucket, shard}, &n)
			return n, err
		})
		if err != nil {
			return 0, err
		}
		var empty []int64
		for i, k := range held {
			if n += int(k); k == 0 {
				empty = append(empty, some[i])
			}
		}
		if err := forgetEmptyParts(ctx, s, list, empty); err != nil {
			return 0, err
		}
		if n > limit {
			break
		}
	}
	return n, nil
}
