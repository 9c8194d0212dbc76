package cassandra

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	minuteMs = 60_000
	dayMs    = 86_400_000
)

const insertBucket = `INSERT INTO buckets (scope, n) VALUES (?, ?) USING TTL ?`

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

// note makes sure that a bucket is known to hold rows until a time, ms since
// 1970; 0: for ever. It is called before the rows are answered: a bucket without
// rows harms nothing, rows without a bucket are not found. cached: nobody removes
// the bucket while rows come.
func (s *Store) note(ctx context.Context, scope string, n, keeps int64, cached bool) error {
	k := bucketKey{scope, n}
	if cached && s.buckets.has(k, keeps) {
		return nil
	}
	if err := s.write(ctx, s.clock.now(), stmt{insertBucket, []any{scope, n, ttl(keeps)}}); err != nil {
		return err
	}
	if cached {
		s.buckets.add(k, keeps)
	}
	return nil
}

func (s *Store) forget(ctx context.Context, scope string, n int64) error {
	return s.write(ctx, s.clock.now(), stmt{`DELETE FROM buckets WHERE scope = ? AND n = ?`, []any{scope, n}})
}

// noted returns the buckets of a scope in [from, to], ascending.
func (s *Store) noted(ctx context.Context, scope string, from, to int64) (out []int64, err error) {
	if from > to {
		return nil, nil
	}
	err = s.rows(ctx, func(scan func(...any) bool) error {
		for n := int64(0); scan(&n); {
			out = append(out, n)
		}
		return nil
	}, `SELECT n FROM buckets WHERE scope = ? AND n >= ? AND n <= ?`, scope, from, to)
	return out, err
}

// notedBack is noted, the latest first.
func (s *Store) notedBack(ctx context.Context, scope string, from, to int64) ([]int64, error) {
	out, err := s.noted(ctx, scope, from, to)
	slices.Reverse(out)
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
	return (ms+after.Milliseconds())/dayMs*dayMs + dayMs
}

// baseCache remembers bases that were lately put into an index.
type baseCache struct {
	mu         sync.Mutex
	young, old map[notify.Base]struct{}
}

const basesKept = 1 << 15 // of each generation

func (c *baseCache) has(b notify.Base) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, young := c.young[b]
	_, old := c.old[b]
	return young || old
}

func (c *baseCache) add(b notify.Base) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.young == nil || len(c.young) >= basesKept {
		c.old, c.young = c.young, make(map[notify.Base]struct{}, 1024)
	}
	c.young[b] = struct{}{}
}

// shardOfBase spreads the rows of one bucket of an index.
func shardOfBase(b []byte, shards uint64) int16 { return int16(notify.ColumnDigest(b) % shards) }
