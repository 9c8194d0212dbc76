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

// The index of a list names what the list holds by keys, highest first. A list
// is spread over partitions: buckets of listLength, each of listShards. Which of
// them hold entries is noted in the table buckets.
//
// Entries are removed one by one, and the tombstone of each stays for listGrace
// (gc_grace_seconds of the table). Cassandra refuses a read that meets 100,000 of
// them, so a list bears 2,600 removals a second. A removal that a node missed for
// longer than listGrace may come undone. So an entry proves nothing: a reader of a
// list reads the row that the entry names, and strikes entries without a row.
const (
	listLength = 6 * hourMs
	listShards = 16
	listGrace  = 10 * time.Minute

	// tidyBehind is how old an entry or a note must be before a walk may remove it
	// because its row is missing. Removals carry a timestamp that far in the past, so
	// none hides a row that is written meanwhile.
	tidyBehind = time.Minute
)

// listEntry is one entry of a list. ms never falls while keys rise.
type listEntry struct {
	list string
	ms   int64 // decides about the bucket
	key  []byte
}

func listBucket(ms int64) int64 {
	if ms < 0 {
		return -1
	}
	return ms / listLength
}

func listShard(key []byte) int64 { return int64(shardOfBase(key, listShards)) }

// part is the partition of an entry as it is noted.
func (e *listEntry) part() int64 { return listBucket(e.ms)*listShards + listShard(e.key) }

// partition names the partition that the entry is in.
func (e *listEntry) partition() string { return "listings/" + e.list + "/" + itoa(int(e.part())) }

// listPart is the bucket and the shard of a note. Buckets may be below 0.
func listPart(n int64) (bucket int64, shard int16) {
	shard = int16(n & (listShards - 1))
	return (n - int64(shard)) / listShards, shard
}

// addToList adds entries that are kept until keeps, ms since 1970 (0: until they are
// struck). It returns when they can be found.
func addToList(ctx context.Context, s *Store, keeps int64, es ...listEntry) error {
	began := time.Now()
	note := func(e *listEntry, cached bool) error { return noteBucket(ctx, s, e.list, e.part(), keeps, cached) }
	err := parallel(len(es), func(i int) error {
		e := &es[i]
		// A walk of another process may have forgotten a bucket that is long over.
		if err := note(e, (listBucket(e.ms)+1)*listLength > began.UnixMilli()); err != nil {
			return err
		}
		return s.combiner.do(ctx, e.partition(), stmt{
			`INSERT INTO listings (list, bucket, shard, id) VALUES (?, ?, ?, ?) USING TTL ? AND TIMESTAMP ?`,
			[]any{e.list, listBucket(e.ms), int16(listShard(e.key)), e.key, ttl(keeps), s.clock.now()},
		})
	})
	if err == nil && time.Since(began) > tidyBehind/2 {
		// A walk may have found a bucket empty between its note and its entry.
		err = parallel(len(es), func(i int) error { return note(&es[i], false) })
	}
	return err
}

// removeFromList removes entries that were added before a timestamp.
func removeFromList(ctx context.Context, s *Store, at int64, es ...listEntry) error {
	return parallel(len(es), func(i int) error {
		e := &es[i]
		return s.combiner.do(ctx, e.partition(), stmt{
			`DELETE FROM listings USING TIMESTAMP ? WHERE list = ? AND bucket = ? AND shard = ? AND id = ?`,
			[]any{at, e.list, listBucket(e.ms), int16(listShard(e.key)), e.key},
		})
	})
}

// settledBefore is the timestamp of removals of what leads nowhere.
func settledBefore(s *Store) int64 { return s.clock.now() - s.tidyBehind.Microseconds() }

// over reports whether a partition is old enough to be forgotten once it is
// empty: no process has its note cached.
func over(part int64) bool {
	bucket, _ := listPart(part)
	return (bucket+1)*listLength < time.Now().Add(-3*bucketsKept).UnixMilli()
}

// forgetEmptyBucket forgets each partition of a list that is over and empty.
func forgetEmptyBucket(ctx context.Context, s *Store, list string, parts []int64) error {
	return parallel(len(parts), func(i int) error {
		if !over(parts[i]) {
			return nil
		}
		at := settledBefore(s) // before the look
		var key []byte
		bucket, shard := listPart(parts[i])
		ok, err := s.get(ctx, `SELECT id FROM listings WHERE list = ? AND bucket = ? AND shard = ? LIMIT 1`, []any{list, bucket, shard}, &key)
		if err != nil || ok {
			return err
		}
		return forgetBucketAt(ctx, s, at, list, parts[i])
	})
}

// partSet collects partitions whose entries were struck. Safe for concurrent use.
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

// forgetBucket removes the notes of partitions that are empty by now.
func (p *partSet) forget(ctx context.Context, s *Store) error {
	for list, parts := range p.parts {
		if err := forgetEmptyBucket(ctx, s, list, slices.Collect(maps.Keys(parts))); err != nil {
			return err
		}
	}
	return nil
}

// walkList calls fn with the keys of a list, highest first, behind one whose time is
// ms (nil: from the highest), some at a time, until fn says false. want is about
// how many are needed.
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

// pick walks a list as Store.walk does and returns the first max of the values that get
// finds for its keys.
func pick[V any](ctx context.Context, s *Store, list string, behind []byte, ms int64, max int, get func(key []byte) (v V, ok bool, err error)) (out []V, err error) {
	if max <= 0 {
		return nil, nil
	}
	type found struct {
		v  V
		ok bool
	}
	err = walkList(ctx, s, list, behind, ms, max, func(keys [][]byte) (bool, error) {
		for len(keys) > 0 && len(out) < max {
			n := min(len(keys), 2*(max-len(out))+20) // get may pass over many
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

// listCursor is where a walk stands in one partition.
type listCursor struct {
	shard int16
	ahead [][]byte
	last  []byte // of ahead, when it was read
	done  bool   // there is nothing behind ahead
}

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

// advanceList reads the next keys of a partition. It forgets an empty partition whose
// time is over.
func advanceList(ctx context.Context, s *Store, list string, bucket int64, c *listCursor, n int) error {
	at, where, args := settledBefore(s), ``, []any(nil)
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
	case c.last == nil && over(part):
		return forgetBucketAt(ctx, s, at, list, part)
	}
	return nil
}

// readListed returns keys of a partition, highest first unless more says otherwise. more and
// args say which.
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

// mergeLists takes keys from cursors, highest first, until one is empty that may
// have more; done: none has.
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

// countListed returns how many entries a list holds, and stops soon after most.
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
		if err := forgetEmptyBucket(ctx, s, list, empty); err != nil {
			return 0, err
		}
		if n > most {
			break
		}
	}
	return n, nil
}
