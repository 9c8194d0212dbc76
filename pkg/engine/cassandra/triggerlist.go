package cassandra

import (
	"cmp"
	"context"
	"math"

	"github.com/notifyd/notifyd/pkg/engine"
)

// List reads index rows and then the state rows they name. Where the living are
// asked for, index rows that are marked as ended are passed over; the row itself
// says which state it is in.
func (t triggers) List(ctx context.Context, caller string, state engine.TriggerState, after engine.TriggerCursor, max int) (out []engine.Trigger, err error) {
	if max <= 0 {
		return nil, nil
	}
	living := state != 0 && !terminal(state)
	from := int64(math.MaxInt64)
	if after.ID != "" {
		from = dayOfTrigger(after.ID)
	}
	scope := scopeTriggers
	if caller != "" {
		scope += "/" + caller
	}
	days, err := t.s.notedBack(ctx, scope, math.MinInt64, from)
	if err != nil {
		return nil, err
	}
	for _, day := range days {
		behind := ""
		if day == from {
			behind = after.ID
		}
		for {
			// A page that all is passed over costs little, so pages are larger than
			// what is missing.
			n := min(pageSize, 2*(max-len(out))+20)
			page, err := t.page(ctx, caller, day, behind, n)
			if err != nil {
				return nil, err
			}
			var ids []string
			for _, e := range page {
				if !living || !e.ended {
					ids = append(ids, e.id)
				}
			}
			rows, err := t.Get(ctx, ids)
			if err != nil {
				return nil, err
			}
			for i := range rows {
				x := &rows[i]
				if x.ID == "" || caller != "" && x.Caller != caller || state != 0 && x.State != state {
					continue
				}
				if out = append(out, *x); len(out) == max {
					return out, nil
				}
			}
			if len(page) < n {
				break
			}
			behind = page[len(page)-1].id
		}
	}
	return out, nil
}

type listed struct {
	id    string
	ended bool
}

// page returns up to max index rows of a day, newest first, behind an id.
func (t triggers) page(ctx context.Context, caller string, day int64, behind string, max int) ([]listed, error) {
	read := func(out *[]listed, from string, args ...any) error {
		if behind != "" {
			from, args = from+` AND id < ?`, append(args, behind)
		}
		return t.s.rows(ctx, func(scan func(...any) bool) error {
			for {
				var e listed
				if !scan(&e.id, &e.ended) {
					return nil
				}
				*out = append(*out, e)
			}
		}, `SELECT id, ended FROM `+from+` LIMIT ?`, append(args, max)...)
	}
	if caller != "" {
		var out []listed
		err := read(&out, `triggers_by_caller WHERE caller = ? AND day = ?`, caller, day)
		return out, err
	}
	var shards [triggerShards][]listed
	err := parallel(triggerShards, func(i int) error {
		return read(&shards[i], `triggers_by_day WHERE day = ? AND shard = ?`, day, int16(i))
	})
	if err != nil {
		return nil, err
	}
	return mergeFirst(shards[:], func(a, b listed) int { return cmp.Compare(b.id, a.id) }, max), nil
}

type endEntry struct {
	ended int64
	id    string
}

// Purge goes through the index of ends, oldest first. A row that has ended anew
// since, or lives again, stays; its old entry goes.
func (t triggers) Purge(ctx context.Context, before int64, max int) (purged int, err error) {
	if max <= 0 || before <= math.MinInt64+1 {
		return 0, nil
	}
	days, err := t.s.noted(ctx, scopeEnds, math.MinInt64, (before-1)/dayMs)
	if err != nil {
		return 0, err
	}
	for _, day := range days {
		empty := true
		for shard := range int16(triggerShards) {
			n, left, err := t.purgePart(ctx, day, shard, before, max-purged)
			purged += n
			empty = empty && !left
			if err != nil || purged >= max {
				return purged, err
			}
		}
		if empty && (day+2)*dayMs < t.s.clock.now()/1000 { // nothing ends in a day that is over
			if err := t.s.forget(ctx, scopeEnds, day); err != nil {
				return purged, err
			}
		}
	}
	return purged, nil
}

// purgePart is Purge of one partition of the index. What it went through is
// removed with one delete of a range, not one of each entry, which the next
// purge would have to step over.
func (t triggers) purgePart(ctx context.Context, day int64, shard int16, before int64, max int) (purged int, left bool, err error) {
	const page = 200
	behind := endEntry{ended: math.MinInt64}
	for purged < max {
		n := min(page, max-purged)
		at := t.s.clock.now() // what comes while it is read is not removed
		var es []endEntry
		err := t.s.rows(ctx, func(scan func(...any) bool) error {
			for {
				var e endEntry
				if !scan(&e.ended, &e.id) {
					return nil
				}
				es = append(es, e)
			}
		}, `SELECT ended, id FROM triggers_by_end WHERE day = ? AND shard = ? AND (ended, id) > (?, ?) LIMIT ?`, day, shard, behind.ended, behind.id, n)
		if err != nil {
			return purged, true, err
		}
		through := -1
		for i, e := range es {
			if e.ended >= before {
				left = true
				break
			}
			gone, err := t.purge(ctx, e)
			if err != nil {
				return purged, true, err
			}
			if gone {
				purged++
			}
			through = i
		}
		if through >= 0 {
			e := es[through]
			err := t.s.write(ctx, at, stmt{`DELETE FROM triggers_by_end WHERE day = ? AND shard = ? AND (ended, id) <= (?, ?)`, []any{day, shard, e.ended, e.id}})
			if err != nil {
				return purged, true, err
			}
		}
		if left || len(es) < n {
			return purged, left, nil
		}
		behind = es[through]
	}
	return purged, true, nil
}

// purge removes the row of an entry if that is how it ended.
func (t triggers) purge(ctx context.Context, e endEntry) (gone bool, err error) {
	x, err := t.row(ctx, e.id)
	if err != nil || x.ID == "" || !terminal(x.State) || x.Ended != e.ended {
		return false, err
	}
	won, err := t.s.settle(ctx, "purge of "+e.id, func() (verdict, error) {
		now, err := t.row(ctx, e.id)
		switch {
		case err != nil:
			return 0, err
		case now.ID == "":
			return done, nil
		case now.Version == x.Version:
			return undone, nil
		}
		return lost, nil
	}, stmt{`DELETE FROM triggers WHERE id = ? IF version = ?`, []any{e.id, int64(x.Version)}})
	if err != nil || !won {
		return false, err
	}
	day, at := dayOfTrigger(e.id), t.s.clock.now()
	for _, one := range []stmt{
		{`DELETE FROM triggers_by_caller WHERE caller = ? AND day = ? AND id = ?`, []any{x.Caller, day, e.id}},
		{`DELETE FROM triggers_by_day WHERE day = ? AND shard = ? AND id = ?`, []any{day, shardOfTrigger(e.id), e.id}},
	} {
		if err := t.s.write(ctx, at, one); err != nil {
			return true, err
		}
	}
	return true, nil
}
