package cassandra

import (
	"context"
	"math"
	"time"
)

// The index of a purge names the rows to look at when their time has come, in
// partitions of an hour, each of purgeShards. A purge works an hour off from its
// beginning and removes what it went through with one delete of a range, so that
// the next one meets a single tombstone.
const (
	purgeShards = 8
	purgePage   = 200
)

// purgeEntry is one entry of the index of a purge.
type purgeEntry struct {
	at int64 // ms since 1970
	id []byte
}

func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -1 // before 1970 there is one bucket
	}
	return a / b
}

// purgeLater adds an entry that is kept until keeps, ms since 1970 (0: until it is
// worked off).
func (s *Store) purgeLater(ctx context.Context, index string, e purgeEntry, keeps int64) error {
	hour, began := floorDiv(e.at, hourMs), time.Now()
	if err := s.note(ctx, index, hour, keeps, (hour+1)*hourMs > began.UnixMilli()); err != nil {
		return err
	}
	err := s.write(ctx, s.clock.now(), stmt{
		`INSERT INTO purges (index_name, hour, shard, at, id) VALUES (?, ?, ?, ?, ?) USING TTL ?`,
		[]any{index, hour, shardOfBase(e.id, purgeShards), e.at, e.id, ttl(keeps)},
	})
	if err == nil && time.Since(began) > tidyBehind/2 {
		err = s.note(ctx, index, hour, keeps, false) // a purge may have found the hour empty meanwhile
	}
	return err
}

// workOff calls one with the entries before a time, some at a time, hour by hour,
// until most of them are gone. one says whether what it names was removed, and
// whether the entry must be looked at again; else the entry is removed.
func (s *Store) workOff(ctx context.Context, index string, before int64, most int, one func(purgeEntry) (gone, again bool, err error)) (gone int, err error) {
	if most <= 0 || before == math.MinInt64 {
		return 0, nil
	}
	settled := s.settled()
	hours, err := s.noted(ctx, index, math.MinInt64, floorDiv(before-1, hourMs))
	if err != nil {
		return 0, err
	}
	for _, hour := range hours {
		empty := true
		for shard := range int16(purgeShards) {
			n, left, err := s.workOffPart(ctx, index, hour, shard, before, most-gone, one)
			gone += n
			empty = empty && !left
			if err != nil || gone >= most {
				return gone, err
			}
		}
		if empty && (hour+1)*hourMs < time.Now().Add(-3*bucketsKept).UnixMilli() {
			if err := s.forgetAt(ctx, settled, index, hour); err != nil {
				return gone, err
			}
		}
	}
	return gone, nil
}

// workOffPart is workOff of one partition; left says that it may hold more.
func (s *Store) workOffPart(ctx context.Context, index string, hour int64, shard int16, before int64, most int, one func(purgeEntry) (gone, again bool, err error)) (gone int, left bool, err error) {
	behind := purgeEntry{at: math.MinInt64, id: []byte{}}
	for gone < most {
		at, n := s.settled(), min(purgePage, most-gone)
		var es []purgeEntry
		err := s.rows(ctx, func(scan func(...any) bool) error {
			for {
				var e purgeEntry
				if !scan(&e.at, &e.id) {
					return nil
				}
				es = append(es, e)
			}
		}, `SELECT at, id FROM purges WHERE index_name = ? AND hour = ? AND shard = ? AND (at, id) > (?, ?) LIMIT ?`, index, hour, shard, behind.at, behind.id, n)
		if err != nil {
			return gone, true, err
		}
		full := len(es) == n
		for i := range es {
			if es[i].at >= before {
				es, left = es[:i], true
				break
			}
		}
		removed, again := make([]bool, len(es)), make([]bool, len(es))
		err = parallel(len(es), func(i int) (err error) {
			removed[i], again[i], err = one(es[i])
			return err
		})
		through, stopped := -1, false
		for i := range es {
			if removed[i] {
				gone++
			}
			if stopped = stopped || again[i]; !stopped {
				through = i
			}
		}
		left = left || stopped
		if err != nil {
			return gone, true, err
		}
		if through >= 0 {
			behind = es[through]
			if err := s.write(ctx, at, stmt{`DELETE FROM purges WHERE index_name = ? AND hour = ? AND shard = ? AND (at, id) <= (?, ?)`, []any{index, hour, shard, behind.at, behind.id}}); err != nil {
				return gone, true, err
			}
		}
		if left || !full {
			return gone, left, nil
		}
	}
	return gone, true, nil
}
