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

// A list holds the keys of rows, highest first. It is spread over partitions: buckets of
// listLength, each with listShards shards. The table buckets notes which partitions hold
// entries.
//
// Entries are removed one by one. The tombstone of each stays for listGrace
// (gc_grace_seconds of the table). Cassandra refuses a read that meets 100,000 tombstones,
// so a list can have 2,600 removals a second. If a node misses a removal for longer than
// listGrace, the entry may come back. So an entry proves nothing: the reader of a list reads
// the row that the entry names, and removes entries without a row.
const (
	listLength = 6 * hourMs
	listShards = 16
	listGrace  = 10 * time.Minute

	// tidyBehind is how old an entry or a note must be before a walk may remove it because
	// its row is missing. Such a removal has a timestamp that far in the past, so it does not
	// hide an entry that is written meanwhile.
	tidyBehind = time.Minute
)

// listEntry is one entry of a list. An entry with a greater key must not have a smaller ms.
type listEntry struct {
	list string
	ms   int64 // decides the bucket
	key  []byte
}

func listBucket(ms int64) int64 {
	if ms < 0 {
		return -1
	}
	return ms / listLength
}

func listShard(key []byte) int64 { return int64(shardOfBase(key, listShards)) }

// part returns the number of the entry's partition in the table buckets.
func (e *listEntry) part() int64 { return listBucket(e.ms)*listShards + listShard(e.key) }

// partition returns a name of the entry's partition for the combiner.
func (e *listEntry) partition() string { return "listings/" + e.list + "/" + itoa(int(e.part())) }

// listPart returns the bucket and the shard of a partition number. Buckets may be negative.
func listPart(n int64) (bucket int64, shard int16) {
	shard = int16(n & (listShards - 1))
	return (n - int64(shard)) / listShards, shard
}

// addToList adds entries that are kept until keeps, ms since 1970 (0: until they are
// removed). It returns when they can be found.
func addToList(ctx context.Context, s *Store, keeps int64, es ...listEntry) error {
	began := time.Now()
	note := func(e *listEntry, cached bool) error { return noteBucket(ctx, s, e.list, e.part(), keeps, cached) }
	err := parallel(len(es), func(i int) error {
		e := &es[i]
		// A walk of another process may have removed the note of an old bucket, so the cache is
		// used only for the current one.
		if err := note(e, (listBucket(e.ms)+1)*listLength > began.UnixMilli()); err != nil {
			return err
		}
		return s.combiner.submit(ctx, e.partition(), stmt{
			`INSERT INTO listings (list, bucket, shard, id) VALUES (?, ?, ?, ?) USING TTL ? AND TIMESTAMP ?`,
			[]any{e.list, listBucket(e.ms), int16(listShard(e.key)), e.key, ttl(keeps), s.clock.now()},
		})
	})
	if err == nil && time.Since(began) > tidyBehind/2 {
		// A walk may have found the bucket empty between the note and the entry, and removed
		// the note.
		err = parallel(len(es), func(i int) error { return note(&es[i], false) })
	}
	return err
}

// removeFromList removes entries that were added before the timestamp at.
func removeFromList(ctx context.Context, s *Store, at int64, es ...listEntry) error {
	return parallel(len(es), func(i int) error {
		e := &es[i]
		return s.combiner.submit(ctx, e.partition(), stmt{
			`DELETE FROM listings USING TIMESTAMP ? WHERE list = ? AND bucket = ? AND shard = ? AND id = ?`,
			[]any{at, e.list, listBucket(e.ms), int16(listShard(e.key)), e.key},
		})
	})
}

// tidyTimestamp returns the timestamp for removals of entries and notes without a row.
func tidyTimestamp(s *Store) int64 { return s.clock.now() - s.tidyBehind.Microseconds() }

// isListPartOver reports whether a partition is so old that its note may be removed once it
// is empty: no process has the note in its cache.
func isListPartOver(part int64) bool {
	bucket, _ := listPart(part)
	return (bucket+1)*listLength < time.Now().Add(-3*bucketsKept).UnixMilli()
}

// forgetEmptyParts removes the notes of those partitions of a list that are over and empty.
func forgetEmptyParts(ctx context.Context, s *Store, list string, parts []int64) error {
	return parallel(len(parts), func(i int) error {
		if !isListPartOver(parts[i]) {
			return nil
		}
		at := tidyTimestamp(s) // before the read, so that a later entry is not hidden
		var key []byte
		bucket, shard := listPart(parts[i])
		ok, err := s.get(ctx, `SELECT id FROM listings WHERE list = ? AND bucket = ? AND shard = ? LIMIT 1`, []any{list, bucket, shard}, &key)
		if err != nil || ok {
			return err
		}
		return forgetBucketAt(ctx, s, at, list, parts[i])
	})
}

// partSet collects the partitions from which entries were removed. add is safe for
// concurrent use.
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

// forgetEmpty removes the notes of the collected partitions that are empty by now. No add
// may run at the same time.
func (p *partSet) forgetEmpty(ctx context.Context, s *Store) error {
	for list, parts := range p.parts {
		if err := forgetEmptyParts(ctx, s, list, slices.Collect(maps.Keys(parts))); err != nil {
			return err
		}
	}
	return nil
}

// walkList calls fn with the keys of a list, highest first, some at a time, until fn returns
// false. It begins after the key behind, whose time is ms (nil: at the highest key). want is
// about how many keys the caller needs.
func walkList(ctx context.Context, s *Store, list string, behind []byte, ms int64, want int, fn func(keys [][]byte) (bool, error)) error {
	upTo := int64(math.MaxInt64)
	if behind != nil {
		upTo = listBucket(ms)*listShards + listShards - 1
	}
	bucket, shards := int64(math.MinInt64), []int16(nil)
	flush := func() (bool, error) {
		if len(shards) == 0 {
			return true, nil
		}
		from := behind
		if bucket != listBucket(ms) {
			from = nil
		}
		return walkListBucket(ctx, s, list, bucket, shards, from, want, fn)
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

// collectListed walks a list as walkList does and calls get for its keys. It returns the first
// max values for which get returns ok.
func collectListed[V any](ctx context.Context, s *Store, list string, behind []byte, ms int64, max int, get func(key []byte) (v V, ok bool, err error)) (out []V, err error) {
	if max <= 0 {
		return nil, nil
	}
	type found struct {
		v  V
		ok bool
	}
	err = walkList(ctx, s, list, behind, ms, max, func(keys [][]byte) (bool, error) {
		for len(keys) > 0 && len(out) < max {
			n := min(len(keys), 2*(max-len(out))+20) // more than needed, because get may reject many
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

// walkListBucket is walkList for one bucket. It returns false if fn did.
func walkListBucket(ctx context.Context, s *Store, list string, bucket int64, shards []int16, behind []byte, want int, fn func([][]byte) (bool, error)) (bool, error) {
	cs := make([]listCursor, len(shards))
	for i := range cs {
		cs[i] = listCursor{shard: shards[i], last: behind}
	}
	n := min(pageSize, want/len(cs)+8)
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

// advanceList reads the next keys of a partition. It removes the note of an empty partition
// that is over.
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

// readListed returns keys of a partition, highest first. The condition more, with args,
// selects them and may change the order.
func readListed(ctx context.Context, s *Store, list string, bucket int64, shard int16, more string, args ...any) (keys [][]byte, err error) {
	err = s.rows(ctx, func(scan func(...any) bool) error {
		for {
			var key []byte
			if !scan(&key) {
				return nil
			}
			keys = append(keys, key)
		}
	}, `SELECT id FROM listings WHERE list = ? AND bucket = ? AND shard = ?`+more, append([]any{list, bucket, shard}, args...)...)
	return keys, err
}

// mergeLists takes keys from the cursors, highest first, until a cursor is empty whose
// partition may have more. done: no partition has more.
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

// countListed returns the number of entries of a list. It stops counting soon after most.
func countListed(ctx context.Context, s *Store, list string, most int) (n int, err error) {
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
		if n > most {
			break
		}
	}
	return n, nil
}
