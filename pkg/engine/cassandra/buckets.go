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
	// A note is a row of the table buckets. It says that a bucket may have rows until a
	// time, the end of the note. The end is rounded up to a multiple of noteRounding, so
	// that a bucket has few notes.
	noteRounding = 16 * engine.DayMs
)

// insertBucket stores a note. keeps is the end of the note and belongs to its key. So
// storing a note with an earlier end does not replace an existing note.
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
	keeps   int64     // end of the note, ms since 1970; 0: the note has no end
}

const (
	bucketsKept = time.Hour // how long a note stays in the cache
	bucketsMax  = 1 << 16   // a full cache is emptied
)

// has reports whether this process has recently stored a note of bucket k whose end is
// keeps or later.
func (c *bucketCache) has(k bucketKey, keeps int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.noted[k]
	return ok && time.Now().Before(n.renewAt) && (n.keeps == 0 || keeps != 0 && keeps <= n.keeps)
}

func (c *bucketCache) add(k bucketKey, keeps int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noted == nil || len(c.noted) >= bucketsMax {
		c.noted = map[bucketKey]bucketNote{}
	}
	c.noted[k] = bucketNote{time.Now().Add(bucketsKept), keeps}
}

// noteBucket stores a note: bucket n of a scope may have rows until keeps, ms since 1970.
// If keeps is 0, the note has no end. A writer calls noteBucket before it acknowledges the
// rows, because readers do not find rows whose bucket has no note. A note of a bucket
// without rows causes no harm. cached allows noteBucket to use the cache. It may be true
// only if no process removes the note while rows are added.
func noteBucket(ctx context.Context, s *Store, scope string, n, keeps int64, cached bool) error {
	k := bucketKey{scope, n}
	if keeps != 0 {
		keeps = (keeps/noteRounding + 1) * noteRounding
	}
	if cached && s.buckets.has(k, keeps) {
		return nil
	}
	if err := s.write(ctx, s.clock.now(), stmt{insertBucket, []any{scope, n, keeps, ttl(keeps)}}); err != nil {
		return err
	}
	if cached {
		s.buckets.add(k, keeps)
	}
	return nil
}

func forgetBucket(ctx context.Context, s *Store, scope string, n int64) error {
	return forgetBucketAt(ctx, s, s.clock.now(), scope, n)
}

// forgetBucketAt removes those notes of bucket n that were written before the timestamp at.
func forgetBucketAt(ctx context.Context, s *Store, at int64, scope string, n int64) error {
	return s.write(ctx, at, stmt{`DELETE FROM buckets WHERE scope = ? AND n = ?`, []any{scope, n}})
}

// eachBucket calls fn with each bucket of a scope in [from, to] that has a note. It stops
// when fn returns false. The order is ascending, or descending if back is true.
func eachBucket(ctx context.Context, s *Store, scope string, from, to int64, back bool, fn func(n int64) (bool, error)) error {
	if from > to {
		return nil
	}
	order := ``
	if back {
		order = ` ORDER BY n DESC`
	}
	s.counts.reads.Add(1)
	q := s.query(`SELECT n FROM buckets WHERE scope = ? AND n >= ? AND n <= ?`+order, scope, from, to)
	if back {
		q = q.PageSize(50).Prefetch(0) // most callers that read backwards need few buckets
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

// readBuckets returns the buckets of a scope in [from, to] that have a note, in ascending
// order.
func readBuckets(ctx context.Context, s *Store, scope string, from, to int64) (out []int64, err error) {
	err = eachBucket(ctx, s, scope, from, to, false, func(n int64) (bool, error) {
		out = append(out, n)
		return true, nil
	})
	return out, err
}

// ttl returns the TTL in seconds of a row that is kept until keeps, ms since 1970. It
// returns 0, which means no TTL, if keeps is 0 or later than now plus maxTTL.
func ttl(keeps int64) int {
	if keeps == 0 {
		return 0
	}
	left := (keeps-time.Now().UnixMilli())/1000 + 1
	if left > int64(maxTTL/time.Second) {
		return 0
	}
	return int(max(left, 1))
}

// keepUntil returns until when to keep a row that is about the time ms. The argument and
// the result are in ms since 1970. keepUntil adds the duration after to ms, or to the
// current time if that is later, and rounds up to the end of the day. It returns 0, which
// means for ever, if ms is too large.
func keepUntil(ms int64, after time.Duration) int64 {
	ms = max(ms, time.Now().UnixMilli())
	if ms > math.MaxInt64/2 {
		return 0
	}
	return (ms+after.Milliseconds())/engine.DayMs*engine.DayMs + engine.DayMs
}

// shardOfBase returns the shard of a row with the base or key b.
func shardOfBase(b []byte, shards uint64) int16 { return int16(notify.ColumnDigest(b) % shards) }
