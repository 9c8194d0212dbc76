package cassandra

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

// Head reads with the consistency SERIAL.
func (t schedules) Head(ctx context.Context, base notify.Base) (h engine.ScheduleHead, ok bool, err error) {
	var at int64
	var v []byte
	ok, err = t.s.getSerial(ctx, `SELECT at, data FROM timer_heads WHERE base = ?`, []any{base[:]}, &at, &v)
	if err != nil || !ok {
		return engine.ScheduleHead{}, false, err
	}
	t.s.clock.observe(at)
	h.Base = base
	if err := store.HeadRecord.Unpack(v, &h); err != nil {
		return engine.ScheduleHead{}, false, err
	}
	return h, true, nil
}

func (t schedules) Swap(ctx context.Context, old uint64, h engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	if h.Base.IsZero() {
		return engine.ScheduleHead{}, false, engine.NoBase()
	}
	unlock, err := t.s.locks.lock(ctx, string(h.Base[:]))
	if err != nil {
		return engine.ScheduleHead{}, false, err
	}
	defer unlock()
	if h.FireAt > 0 {
		if err := t.extendSchedule(ctx, h.Base, h.FireAt); err != nil {
			return engine.ScheduleHead{}, false, err
		}
	}
	next := h
	next.Version = old + 1
	me := nonce()
	data := store.HeadRecord.Pack(&next)
	won, err := t.s.swapVersion(ctx, versionSwap{
		what: "the head of the schedule " + h.Base.String(), from: int64(old), to: int64(next.Version), writer: me, readBack: headVersionQuery(h.Base),
	}, stmt{
		`UPDATE timer_heads SET version = ?, writer = ?, at = ?, fire_at = ?, data = ? WHERE base = ? IF version = ?`,
		[]any{int64(next.Version), me, t.s.clock.now(), h.FireAt, data, h.Base[:], orNull(int64(old))},
	})
	if err != nil {
		return engine.ScheduleHead{}, false, err
	}
	if won {
		return next, true, nil
	}
	now, _, err := t.Head(ctx, h.Base)
	return now, false, err
}

func headVersionQuery(base notify.Base) stmt {
	return stmt{`SELECT version, writer FROM timer_heads WHERE base = ?`, []any{base[:]}}
}

// extendSchedule is called for a schedule that is rescheduled to fireAt. It extends the TTL
// of the schedule and of its entries in the lists, so that List and Purge still find them.
// Swap calls extendSchedule before it swaps the head. If the swap is not applied, the
// longer TTL causes no harm.
func (t schedules) extendSchedule(ctx context.Context, base notify.Base, fireAt int64) error {
	x, at, ok, err := t.get(ctx, base)
	if err != nil {
		return err
	}
	if !ok || fireAt <= x.FireAt {
		return purgeLater(ctx, t.s, purgeOfSchedules, purgeEntry{fireAt, base[:]}, scheduleKeeps(t.s, fireAt))
	}
	if err := indexSchedule(ctx, t.s, &x, fireAt); err != nil {
		return err
	}
	return t.s.write(ctx, t.s.clock.now(), stmt{
		insertSchedule, []any{base[:], at, store.ScheduleRecord.Pack(&x), ttl(scheduleKeeps(t.s, fireAt))},
	})
}

// Purge implements engine.Schedules. It reads the list that is ordered by fire time. A
// schedule that was rescheduled has an entry for each of its fire times.
func (t schedules) Purge(ctx context.Context, before int64, max int) (int, error) {
	if before <= 0 {
		return 0, nil
	}
	var removedFrom partSet
	n, err := purgeListed(ctx, t.s, purgeOfSchedules, before, max, func(e purgeEntry) (gone, again bool, err error) {
		if len(e.id) != len(notify.Base{}) {
			return false, false, corrupt("an entry in the list of schedules to purge")
		}
		return t.purgeSchedule(ctx, notify.Base(e.id), e.at, before, &removedFrom)
	})
	if err != nil {
		return n, err
	}
	return n, removedFrom.forgetEmpty(ctx, t.s)
}

// purgeSchedule removes the schedule of one entry of the list that Purge reads, if its last fire
// time is earlier than before. The result gone is true if purgeSchedule removed the schedule. The
// result again is true if the entry must stay in the list.
func (t schedules) purgeSchedule(ctx context.Context, base notify.Base, fireAt, before int64, removedFrom *partSet) (gone, again bool, err error) {
	unlock, err := t.s.locks.lock(ctx, string(base[:]))
	if err != nil {
		return false, true, err
	}
	defer unlock()
	x, _, ok, err := t.get(ctx, base)
	if err != nil {
		return false, true, err
	}
	h, touched, err := t.Head(ctx, base)
	if err != nil {
		return false, true, err
	}
	last, known := x.FireAt, ok
	if touched && h.FireAt > 0 {
		last, known = h.FireAt, true // a head may exist without its schedule
	}
	if !known {
		return false, false, nil
	}
	if last >= before {
		if last == fireAt {
			return false, true, nil
		}
		return false, false, purgeLater(ctx, t.s, purgeOfSchedules, purgeEntry{last, base[:]}, scheduleKeeps(t.s, last))
	}
	if touched {
		won, err := t.s.swapVersion(ctx, versionSwap{
			what: "the purge of the head of the schedule " + base.String(), from: int64(h.Version), readBack: headVersionQuery(base), elseLost: true,
		}, stmt{`DELETE FROM timer_heads WHERE base = ? IF version = ?`, []any{base[:], int64(h.Version)}})
		if err != nil || !won {
			return false, true, err // another process is rescheduling the schedule
		}
	}
	if err := t.s.write(ctx, t.s.clock.now(), stmt{`DELETE FROM timer_requests WHERE base = ?`, []any{base[:]}}); err != nil {
		return false, true, err
	}
	if !ok {
		return false, false, nil
	}
	es := scheduleEntries(&x)
	removedFrom.add(es)
	return true, false, removeFromList(ctx, t.s, t.s.clock.now(), es...)
}
