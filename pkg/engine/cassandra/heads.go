package cassandra

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

// Head reads at SERIAL.
func (t schedules) Head(ctx context.Context, base notify.Base) (h engine.ScheduleHead, ok bool, err error) {
	var at int64
	var v []byte
	ok, err = t.s.getSerial(ctx, `SELECT at, data FROM timer_heads WHERE base = ?`, []any{base[:]}, &at, &v)
	if err != nil || !ok {
		return engine.ScheduleHead{}, false, err
	}
	t.s.clock.see(at)
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
		if err := t.prolong(ctx, h.Base, h.FireAt); err != nil {
			return engine.ScheduleHead{}, false, err
		}
	}
	next := h
	next.Version = old + 1
	me := nonce()
	data := store.HeadRecord.Pack(&next)
	won, err := t.s.swap(ctx, swap{
		what: "head of " + h.Base.String(), from: int64(old), to: int64(next.Version), writer: me, look: lookAtHead(h.Base),
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

func lookAtHead(base notify.Base) stmt {
	return stmt{`SELECT version, writer FROM timer_heads WHERE base = ?`, []any{base[:]}}
}

// prolong keeps a schedule that is moved as long as its new time asks for, and
// lets List and Purge find it there. It goes before the swap: what it leaves if
// that is lost harms nothing.
func (t schedules) prolong(ctx context.Context, base notify.Base, fireAt int64) error {
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

// Purge goes through the index by fire time. A schedule whose last known time is
// another has an entry there too.
func (t schedules) Purge(ctx context.Context, before int64, max int) (int, error) {
	if before <= 0 {
		return 0, nil
	}
	var struck partSet
	n, err := workOffPurges(ctx, t.s, purgeOfSchedules, before, max, func(e purgeEntry) (gone, again bool, err error) {
		if len(e.id) != len(notify.Base{}) {
			return false, false, corrupt("the purge of schedules")
		}
		return t.purge(ctx, notify.Base(e.id), e.at, before, &struck)
	})
	if err != nil {
		return n, err
	}
	return n, struck.forget(ctx, t.s)
}

// purge looks at one entry of the index; again says that the entry stays.
func (t schedules) purge(ctx context.Context, base notify.Base, fireAt, before int64, struck *partSet) (gone, again bool, err error) {
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
		last, known = h.FireAt, true // also of a head whose schedule is not there
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
		won, err := t.s.swap(ctx, swap{
			what: "purge of a head", from: int64(h.Version), look: lookAtHead(base), elseLost: true,
		}, stmt{`DELETE FROM timer_heads WHERE base = ? IF version = ?`, []any{base[:], int64(h.Version)}})
		if err != nil || !won {
			return false, true, err // somebody moves it this moment
		}
	}
	if err := t.s.write(ctx, t.s.clock.now(), stmt{`DELETE FROM timer_requests WHERE base = ?`, []any{base[:]}}); err != nil {
		return false, true, err
	}
	if !ok {
		return false, false, nil
	}
	es := scheduleEntries(&x)
	struck.add(es)
	return true, false, removeFromList(ctx, t.s, t.s.clock.now(), es...)
}
