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
	// noteRounding rounds the end of a note up, so that a bucket has few notes.
	noteRounding = 16 * engine.DayMs
)

// insertBucket stores a note. keeps, the end of the note, is part of its key: so a note that
// ends earlier does not shorten an existing one.
const insertBucket = `INSERT INTO buckets (scope, n, keeps) VALUES (?, ?, ?) USING TTL ?`

// bucketCache remembers for a while which buckets this process has noted.
type bucketCache struct {
	mu    sync.Mutex
	noted map[bucketKey]bucketNote
}

type bucketKey struct {
	scope string
	n     int64
}

type bucketNote struct {
	renewAt time.Time // when the note is written again, because its row has a TTL
	keeps   int64     // end of the row's life, ms since 1970; 0: it lives for ever
}

const (
	bucketsKept = time.Hour // how long the cache keeps a note
	bucketsMax  = 1 << 16   // a full cache is emptied
)

// has reports whether this process has noted a bucket recently, at least until keeps.
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

// noteBucket stores that bucket n of a scope may hold rows until keeps, ms since 1970 (0: for
// ever). A writer calls it before it acknowledges the rows: a bucket without rows does no
// harm, but rows without a noted bucket are not found. cached may be set only if no process
// removes the note while rows are added.
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

// forgetBucketAt removes the notes of a bucket that were written before the timestamp at.
func forgetBucketAt(ctx context.Context, s *Store, at int64, scope string, n int64) error {
	return s.write(ctx, at, stmt{`DELETE FROM buckets WHERE scope = ? AND n = ?`, []any{scope, n}})
}

// eachBucket calls fn with the buckets of a scope in [from, to] until fn returns false. The
// order is ascending, or descending if back is set.
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
				continue // another note of the same bucket, with another end
			}
			last = n
			if more, err := fn(n); err != nil || !more {
				return err
			}
		}
		return nil
	})
}

// readBuckets returns the buckets of a scope in [from, to], ascending.
func readBuckets(ctx context.Context, s *Store, scope string, from, to int64) (out []int64, err error) {
	err = eachBucket(ctx, s, scope, from, to, false, func(n int64) (bool, error) {
		out = append(out, n)
		return true, nil
	})
	return out, err
}

// ttl returns the TTL in seconds of a row that is kept until keeps, ms since 1970; 0: no TTL.
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

// keepUntil returns until when a row about a moment (ms since 1970) is kept: the end of the
// day that is after later than the moment or than now, whichever is later. 0: for ever.
func keepUntil(ms int64, after time.Duration) int64 {
	ms = max(ms, time.Now().UnixMilli())
	if ms > math.MaxInt64/2 {
		return 0
	}
	return (ms+after.Milliseconds())/engine.DayMs*engine.DayMs + engine.DayMs
}

// shardOfBase returns the shard of a row in a bucket of an index.
func shardOfBase(b []byte, shards uint64) int16 { return int16(notify.ColumnDigest(b) % shards) }
