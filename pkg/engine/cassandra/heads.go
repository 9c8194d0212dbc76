package cassandra

import (
	"context"
	"math"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Head reads at SERIAL.
func (t schedules) Head(ctx context.Context, base notify.Base) (h engine.ScheduleHead, ok bool, err error) {
	h, _, ok, err = t.head(ctx, base)
	return h, ok, err
}

func (t schedules) head(ctx context.Context, base notify.Base) (h engine.ScheduleHead, writer int64, ok bool, err error) {
	var version, at int64
	var v []byte
	ok, err = t.s.getSerial(ctx, `SELECT version, writer, at, fire_at, data FROM timer_heads WHERE base = ?`, []any{base[:]}, &version, &writer, &at, &h.FireAt, &v)
	if err != nil || !ok {
		return engine.ScheduleHead{}, 0, false, err
	}
	t.s.clock.see(at)
	h.Base, h.Version = base, uint64(version)
	if !unpack(v, headVersion, func(c *codec) { c.head(&h) }) {
		return engine.ScheduleHead{}, 0, false, corrupt("the head of " + base.String())
	}
	return h, writer, true, nil
}

func (t schedules) Swap(ctx context.Context, old uint64, h engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	if h.Base.IsZero() {
		return engine.ScheduleHead{}, false, badSchedule()
	}
	unlock, err := t.s.locks.lock(ctx, string(h.Base[:]))
	if err != nil {
		return engine.ScheduleHead{}, false, err
	}
	defer unlock()
	if h.FireAt > 0 {
		if err := t.prolong(ctx, h.Base, h.FireAt); err != nil {
			return engine.ScheduleHead{}, false, err
		}
	}
	next := h
	next.Version = old + 1
	me := nonce()
	data := pack(headVersion, func(c *codec) { c.head(&next) })
	write := stmt{
		`UPDATE timer_heads SET version = ?, writer = ?, at = ?, fire_at = ?, data = ? WHERE base = ? IF version = ?`,
		[]any{int64(next.Version), me, t.s.clock.now(), h.FireAt, data, h.Base[:], int64(old)},
	}
	if old == 0 {
		write = stmt{
			`INSERT INTO timer_heads (base, version, writer, at, fire_at, data) VALUES (?, 1, ?, ?, ?, ?) IF NOT EXISTS`,
			[]any{h.Base[:], me, t.s.clock.now(), h.FireAt, data},
		}
	}
	won, err := t.s.settle(ctx, "head of "+h.Base.String(), func() (verdict, error) {
		now, writer, _, err := t.head(ctx, h.Base)
		switch {
		case err != nil:
			return 0, err
		case now.Version == old:
			return undone, nil
		case now.Version == next.Version && writer == me:
			return done, nil
		case now.Version == next.Version:
			return lost, nil
		}
		return unknown, nil
	}, write)
	if err != nil {
		return engine.ScheduleHead{}, false, err
	}
	if won {
		return next, true, nil
	}
	now, _, _, err := t.head(ctx, h.Base)
	return now, false, err
}

// prolong keeps a schedule that is moved as long as its new time asks for, and
// lets Purge find it there. It goes before the swap: what it leaves if that is
// lost harms nothing.
func (t schedules) prolong(ctx context.Context, base notify.Base, fireAt int64) error {
	index, err := t.s.fireIndex(ctx, base, fireAt)
	if err != nil {
		return err
	}
	if err := t.s.write(ctx, t.s.clock.now(), index); err != nil {
		return err
	}
	x, at, ok, err := t.get(ctx, base)
	if err != nil || !ok || fireAt <= x.FireAt {
		return err
	}
	left := ttl(t.s.scheduleKeeps(fireAt))
	return t.s.separate(ctx, []stmt{
		{insertSchedule, []any{base[:], at, pack(scheduleVersion, func(c *codec) { c.schedule(&x) }), left}},
		{`INSERT INTO timer_requests_by_caller (caller, day, base) VALUES (?, ?, ?) USING TTL ?`, []any{x.Caller, dayOf(base), base[:], left}},
		{`INSERT INTO timer_requests_by_day (day, shard, base) VALUES (?, ?, ?) USING TTL ?`, []any{dayOf(base), shardOfBase(base[:], requestShards), base[:], left}},
	})
}

type fireEntry struct {
	fireAt int64
	base   notify.Base
}

// Purge goes through the index by fire time. An entry whose schedule has another
// last known time is moved there.
func (t schedules) Purge(ctx context.Context, before int64, max int) (purged int, err error) {
	if max <= 0 || before <= 0 {
		return 0, nil
	}
	days, err := t.s.noted(ctx, scopeFires, 0, (before-1)/dayMs)
	if err != nil {
		return 0, err
	}
	for _, day := range days {
		empty := true
		for shard := range int16(requestShards) {
			n, left, err := t.purgePart(ctx, day, shard, before, max-purged)
			purged += n
			empty = empty && !left
			if err != nil || purged >= max {
				return purged, err
			}
		}
		// Nothing is put off to a day that is over but what is late.
		if empty && (day+2)*dayMs < t.s.clock.now()/1000 {
			if err := t.s.forget(ctx, scopeFires, day); err != nil {
				return purged, err
			}
		}
	}
	return purged, nil
}

// purgePart is Purge of one partition of the index; left says that it may hold
// more.
func (t schedules) purgePart(ctx context.Context, day int64, shard int16, before int64, max int) (purged int, left bool, err error) {
	const page = 200
	after := fireEntry{fireAt: math.MinInt64}
	for purged < max {
		var es []fireEntry
		n := min(page, max-purged)
		err := t.s.rows(ctx, func(scan func(...any) bool) error {
			var e fireEntry
			for b := []byte(nil); scan(&e.fireAt, &b); {
				if len(b) != len(e.base) {
					return corrupt("timer_requests_by_fire")
				}
				e.base = notify.Base(b)
				es = append(es, e)
			}
			return nil
		}, `SELECT fire_at, base FROM timer_requests_by_fire WHERE day = ? AND shard = ? AND (fire_at, base) > (?, ?) LIMIT ?`, day, shard, after.fireAt, after.base[:], n)
		if err != nil {
			return purged, true, err
		}
		for _, e := range es {
			if e.fireAt >= before {
				return purged, true, nil
			}
			gone, kept, err := t.purge(ctx, e, before)
			if err != nil {
				return purged, true, err
			}
			if gone {
				purged++
			}
			left = left || kept
			after = e
		}
		if len(es) < n {
			return purged, left, nil
		}
	}
	return purged, true, nil
}

// purge looks at one entry of the index; kept says that the entry stays.
func (t schedules) purge(ctx context.Context, e fireEntry, before int64) (gone, kept bool, err error) {
	unlock, err := t.s.locks.lock(ctx, string(e.base[:]))
	if err != nil {
		return false, true, err
	}
	defer unlock()
	x, _, ok, err := t.get(ctx, e.base)
	if err != nil {
		return false, true, err
	}
	h, _, touched, err := t.head(ctx, e.base)
	if err != nil {
		return false, true, err
	}
	drop := stmt{
		`DELETE FROM timer_requests_by_fire WHERE day = ? AND shard = ? AND fire_at = ? AND base = ?`,
		[]any{e.fireAt / dayMs, shardOfBase(e.base[:], requestShards), e.fireAt, e.base[:]},
	}
	last := x.FireAt
	if touched && h.FireAt > 0 {
		last = h.FireAt
	}
	if ok && last >= before {
		if last == e.fireAt {
			return false, true, nil
		}
		index, err := t.s.fireIndex(ctx, e.base, last)
		if err != nil {
			return false, true, err
		}
		if err := t.s.write(ctx, t.s.clock.now(), index); err != nil {
			return false, true, err
		}
		return false, false, t.s.write(ctx, t.s.clock.now(), drop)
	}
	if touched {
		won, err := t.s.settle(ctx, "purge of a head", func() (verdict, error) {
			now, _, there, err := t.head(ctx, e.base)
			switch {
			case err != nil:
				return 0, err
			case !there:
				return done, nil
			case now.Version == h.Version:
				return undone, nil
			}
			return lost, nil
		}, stmt{`DELETE FROM timer_heads WHERE base = ? IF version = ?`, []any{e.base[:], int64(h.Version)}})
		if err != nil || !won {
			return false, true, err // somebody moves it this moment
		}
	}
	at := t.s.clock.now()
	stmts := []stmt{
		{`DELETE FROM timer_requests WHERE base = ?`, []any{e.base[:]}},
		{`DELETE FROM timer_requests_by_day WHERE day = ? AND shard = ? AND base = ?`, []any{dayOf(e.base), shardOfBase(e.base[:], requestShards), e.base[:]}},
		{`DELETE FROM timer_requests_by_caller WHERE caller = ? AND day = ? AND base = ?`, []any{x.Caller, dayOf(e.base), e.base[:]}},
	}
	for _, one := range append(stmts, drop) {
		if err := t.s.write(ctx, at, one); err != nil {
			return false, true, err
		}
	}
	return ok, false, nil
}
