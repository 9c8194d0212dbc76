package cassandra

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	hourMs = 3_600_000
	// A bucket is a numbered part of a scope (a table, list or log), such as a minute of timers.
	// A note is a row of the table buckets. It says that a bucket may have rows until the end of
	// the note, which is a time. The end is rounded up to a multiple of noteRounding, so that a
	// bucket has few notes.
	noteRounding = 16 * engine.DayMs
)

// insertBucket stores a note. The column "keeps" contains the end of the note. It is part of the
// key, so the note does not replace another note of the bucket that ends later.
const insertBucket = `INSERT INTO buckets (scope, n, keeps) VALUES (?, ?, ?) USING TTL ?`

// bucketCache contains the notes that this process has stored recently. So noteBucket need
// not store the same note for each row.
type bucketCache struct {
	mu    sync.Mutex
	noted map[bucketKey]bucketNote
}

type bucketKey struct {
	scope string
	n     int64
}

type bucketNote struct {
	renewAt time.Time // when the note must be written again
	endMs   int64     // end of the note, ms since 1970; 0: the note has no end
}

const (
	bucketsKept = time.Hour // how long a note stays in the cache
	bucketsMax  = 1 << 16   // greatest number of notes in the cache; a full cache is emptied
)

// has reports whether this process has recently stored a note of bucket k whose end is
// endMs or later.
func (c *bucketCache) has(k bucketKey, endMs int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.noted[k]
	return ok && time.Now().Before(n.renewAt) && (n.endMs == 0 || endMs != 0 && endMs <= n.endMs)
}

func (c *bucketCache) add(k bucketKey, endMs int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noted == nil || len(c.noted) >= bucketsMax {
		c.noted = map[bucketKey]bucketNote{}
	}
	c.noted[k] = bucketNote{time.Now().Add(bucketsKept), endMs}
}

// noteBucket stores a note: bucket n of a scope may have rows until endMs, ms since 1970. If endMs
// is 0, the note has no end. Readers do not find rows whose bucket has no note, so a writer calls
// noteBucket before it acknowledges the rows. A note of a bucket without rows causes no harm.
//
// If useCache is true, noteBucket does not store a note again that is in the cache. The caller may
// set useCache only if no process can remove the note while rows are added.
func noteBucket(ctx context.Context, s *Store, scope string, n, endMs int64, useCache bool) error {
	k := bucketKey{scope, n}
	if endMs != 0 {
		endMs = (endMs/noteRounding + 1) * noteRounding
	}
	if useCache && s.buckets.has(k, endMs) {
		return nil
	}
	if err := s.write(ctx, s.clock.now(), stmt{insertBucket, []any{scope, n, endMs, ttl(endMs)}}); err != nil {
		return err
	}
	if useCache {
		s.buckets.add(k, endMs)
	}
	return nil
}

func forgetBucket(ctx context.Context, s *Store, scope string, n int64) error {
	return forgetBucketAt(ctx, s, s.clock.now(), scope, n)
}

// forgetBucketAt removes the notes of bucket n that were written before timestamp.
func forgetBucketAt(ctx context.Context, s *Store, timestamp int64, scope string, n int64) error {
	return s.write(ctx, timestamp, stmt{`DELETE FROM buckets WHERE scope = ? AND n = ?`, []any{scope, n}})
}

// eachBucket calls fn with each bucket in [low, high] of a scope, if the bucket has a note.
// It stops when fn returns false. The order is ascending, or descending if descending is
// true.
func eachBucket(ctx context.Context, s *Store, scope string, low, high int64, descending bool, fn func(n int64) (bool, error)) error {
	if low > high {
		return nil
	}
	order := ``
	if descending {
		order = ` ORDER BY n DESC`
	}
	s.counts.reads.Add(1)
	q := s.query(`SELECT n FROM buckets WHERE scope = ? AND n >= ? AND n <= ?`+order, scope, low, high)
	if descending {
		q = q.PageSize(50).Prefetch(0) // most callers that read in descending order need few buckets
	}
	return s.iterate(ctx, q, func(scan func(...any) bool) error {
		last, first := int64(0), true
		for n := int64(0); scan(&n); first = false {
			if n == last && !first {
				continue // another note of the same bucket
			}
			last = n
			if more, err := fn(n); err != nil || !more {
				return err
			}
		}
		return nil
	})
}

// readBuckets returns the buckets in [low, high] of a scope that have a note, in ascending
// order.
func readBuckets(ctx context.Context, s *Store, scope string, low, high int64) (out []int64, err error) {
	err = eachBucket(ctx, s, scope, low, high, false, func(n int64) (bool, error) {
		out = append(out, n)
		return true, nil
	})
	return out, err
}

// ttl returns the TTL in seconds of a row that is kept until endMs, ms since 1970. It
// returns 0, which means no TTL, if endMs is 0 or later than now plus maxTTL.
func ttl(endMs int64) int {
	if endMs == 0 {
		return 0
	}
	left := (endMs-time.Now().UnixMilli())/1000 + 1
	if left > int64(maxTTL/time.Second) {
		return 0
	}
	return int(max(left, 1))
}

// keepUntil returns the time until which a row is kept. The parameter ms is the time that
// the row is about, for example the fire time of a timer. Both times are in ms since 1970.
// keepUntil adds the retention to ms, or to the current time if that is later, and rounds
// up to the end of the day. If ms is too large, it returns 0: the row is kept for ever.
func keepUntil(ms int64, retention time.Duration) int64 {
	ms = max(ms, time.Now().UnixMilli())
	if ms > math.MaxInt64/2 {
		return 0
	}
	return (ms+retention.Milliseconds())/engine.DayMs*engine.DayMs + engine.DayMs
}

// shardOfBase returns the shard of a row with the base or key b.
func shardOfBase(b []byte, shards uint64) int16 { return int16(notify.ColumnDigest(b) % shards) }
