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
	// notesKept rounds up until when a note is kept: one bucket has few of them.
	notesKept = 16 * engine.DayMs
)

// Until when a note is kept is part of its key: a later note that ends earlier
// does not shorten one that was there.
const insertBucket = `INSERT INTO buckets (scope, n, keeps) VALUES (?, ?, ?) USING TTL ?`

// bucketCache remembers which buckets this process has noted, for a while.
type bucketCache struct {
	mu   sync.Mutex
	have map[bucketKey]bucketNote
}

type bucketKey struct {
	scope string
	n     int64
}

type bucketNote struct {
	until time.Time // when it is noted anew, because its row has a TTL
	keeps int64     // until when the row lives, ms since 1970; 0: for ever
}

const (
	bucketsKept = time.Hour
	bucketsMax  = 1 << 16
)

func (c *bucketCache) has(k bucketKey, keeps int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.have[k]
	return ok && time.Now().Before(n.until) && (n.keeps == 0 || keeps != 0 && keeps <= n.keeps)
}

func (c *bucketCache) add(k bucketKey, keeps int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.have == nil || len(c.have) >= bucketsMax {
		c.have = map[bucketKey]bucketNote{}
	}
	c.have[k] = bucketNote{time.Now().Add(bucketsKept), keeps}
}

// noteBucket makes sure that a bucket is known to hold rows until a time, ms since
// 1970; 0: for ever. It is called before the rows are answered: a bucket without
// rows harms nothing, rows without a bucket are not found. cached: nobody removes
// the bucket while rows come.
func noteBucket(ctx context.Context, s *Store, scope string, n, keeps int64, cached bool) error {
	k := bucketKey{scope, n}
	if keeps != 0 {
		keeps = (keeps/notesKept + 1) * notesKept
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

// forgetBucketAt forgets a bucket that was noted before a timestamp.
func forgetBucketAt(ctx context.Context, s *Store, at int64, scope string, n int64) error {
	return s.write(ctx, at, stmt{`DELETE FROM buckets WHERE scope = ? AND n = ?`, []any{scope, n}})
}

// eachBucket calls fn with the buckets of a scope in [from, to], ascending or, back,
// descending, until it says false.
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
		q = q.PageSize(50).Prefetch(0) // most who look back need few
	}
	return s.iterate(ctx, q, func(scan func(...any) bool) error {
		last, first := int64(0), true
		for n := int64(0); scan(&n); first = false {
			if n == last && !first {
				continue // kept until another time
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

// ttl is in how many seconds a row ends that is kept until a time, ms since 1970;
// 0: never.
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

// keepUntil is when a row about a moment (ms since 1970) may go: so long after the
// moment or after now, whichever is later, and the end of that day.
func keepUntil(ms int64, after time.Duration) int64 {
	ms = max(ms, time.Now().UnixMilli())
	if ms > math.MaxInt64/2 {
		return 0
	}
	return (ms+after.Milliseconds())/engine.DayMs*engine.DayMs + engine.DayMs
}

// shardOfBase spreads the rows of one bucket of an index.
func shardOfBase(b []byte, shards uint64) int16 { return int16(notify.ColumnDigest(b) % shards) }
