package cassandra

import (
	"context"
	"math"
)

// Purge goes through the index by retention, oldest first, and removes what it
// went through with one delete of a range.
func (l deadLetters) Purge(ctx context.Context, now int64) (purged int, err error) {
	days, err := l.s.noted(ctx, scopeUntil, math.MinInt64, now/dayMs)
	if err != nil {
		return 0, err
	}
	for _, day := range days {
		empty := true
		for shard := range int16(letterShards) {
			n, left, err := l.purgePart(ctx, day, shard, now)
			purged += n
			empty = empty && !left
			if err != nil {
				return purged, err
			}
		}
		if empty && (day+2)*dayMs < l.s.clock.now()/1000 {
			if err := l.s.forget(ctx, scopeUntil, day); err != nil {
				return purged, err
			}
		}
	}
	return purged, nil
}

func (l deadLetters) purgePart(ctx context.Context, day int64, shard int16, now int64) (purged int, left bool, err error) {
	behind := letterPlace{failed: math.MinInt64, id: []byte{}}
	for {
		at := l.s.clock.now()
		var page []letterPlace
		err := l.s.rows(ctx, func(scan func(...any) bool) error {
			for {
				var p letterPlace
				if !scan(&p.failed, &p.id) {
					return nil
				}
				page = append(page, p)
			}
		}, `SELECT until, id FROM dead_letters_by_until WHERE day = ? AND shard = ? AND (until, id) > (?, ?) LIMIT ?`, day, shard, behind.failed, behind.id, letterPage)
		if err != nil {
			return purged, true, err
		}
		n := len(page)
		for i := range page {
			if page[i].failed > now {
				page, left = page[:i], true
				break
			}
		}
		gone := make([]bool, len(page))
		err = parallel(len(page), func(i int) (err error) {
			gone[i], err = l.purge(ctx, page[i].id, shard, now)
			return err
		})
		for _, ok := range gone {
			if ok {
				purged++
			}
		}
		if err != nil {
			return purged, true, err
		}
		if len(page) > 0 {
			behind = page[len(page)-1]
			err := l.s.write(ctx, at, stmt{`DELETE FROM dead_letters_by_until WHERE day = ? AND shard = ? AND (until, id) <= (?, ?)`, []any{day, shard, behind.failed, behind.id}})
			if err != nil {
				return purged, true, err
			}
		}
		if left || n < letterPage {
			return purged, left, nil
		}
	}
}

// purge removes one letter whose retention is over.
func (l deadLetters) purge(ctx context.Context, id []byte, shard int16, now int64) (bool, error) {
	r, ok, err := l.serial(ctx, id)
	if err != nil || !ok || r.Until > now {
		return false, err
	}
	won, err := l.s.settle(ctx, "purge of a dead letter", func() (verdict, error) {
		if _, ok, err := l.serial(ctx, id); err != nil || ok {
			return undone, err
		}
		return done, nil
	}, stmt{`DELETE FROM dead_letters WHERE id = ? IF EXISTS`, []any{id}})
	if err != nil || !won {
		return false, err
	}
	return true, l.s.write(ctx, l.s.clock.now(), stmt{
		`DELETE FROM dead_letters_by_time WHERE day = ? AND shard = ? AND failed = ? AND id = ?`, []any{r.LastFailed / dayMs, shard, r.LastFailed, id},
	})
}
