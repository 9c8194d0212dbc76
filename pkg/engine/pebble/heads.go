package pebble

import (
	"context"
	"encoding/binary"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// headVersion begins a head's value.
const headVersion = 2

func appendHead(b []byte, h *engine.ScheduleHead) []byte {
	b = append(b, headVersion, byte(h.State))
	b = binary.AppendUvarint(b, uint64(h.Gen))
	b = binary.AppendUvarint(b, h.Version)
	b = appendInt64(b, h.FireAt)
	b = appendInt64(b, h.At)
	b = appendInt64(b, h.MovedAt)
	b = binary.AppendUvarint(b, uint64(h.Moves))
	return appendLen(b, h.MovedBy)
}

func (t *schedules) Head(ctx context.Context, base notify.Base) (engine.ScheduleHead, bool, error) {
	h, ok, err := t.head(base)
	if err != nil {
		return h, false, err
	}
	// As for triggers: nobody is shown a head that a loss of power takes back.
	if err := t.s.locks.settled(ctx, []string{string(scheduleKey(tHead, base))}); err != nil {
		return engine.ScheduleHead{}, false, err
	}
	return h, ok, nil
}

func (t *schedules) head(base notify.Base) (h engine.ScheduleHead, ok bool, err error) {
	k := scheduleKey(tHead, base)
	v, err := t.s.get(k)
	if err != nil || v == nil {
		return h, false, err
	}
	d := reader{b: v}
	if d.byte() != headVersion {
		return h, false, unread("schedule head", k, v, headVersion)
	}
	h.Base, h.State = base, engine.ScheduleState(d.byte())
	h.Gen, h.Version = uint32(d.uint()), d.uint()
	h.FireAt, h.At = d.int(), d.int()
	h.MovedAt, h.Moves, h.MovedBy = d.int(), uint32(d.uint()), d.string()
	if !d.done() {
		return engine.ScheduleHead{}, false, corrupt("schedule head", k)
	}
	return h, true, nil
}

// known is what is stored of a schedule.
type known struct {
	schedule engine.Schedule
	head     engine.ScheduleHead
	exists   bool // the schedule
}

// fireAt is the last known fire time, ok where there is any. A head's of 0 is
// the schedule's own.
func (n *known) fireAt() (at int64, ok bool) {
	if n.head.FireAt != 0 {
		return n.head.FireAt, true
	}
	return n.schedule.FireAt, n.exists
}

func (t *schedules) known(ctx context.Context, base notify.Base) (n known, err error) {
	if n.schedule, n.exists, err = t.Get(ctx, base); err == nil {
		n.head, _, err = t.head(base)
	}
	return n, err
}

func (t *schedules) Swap(ctx context.Context, old uint64, h engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	if h.Base.IsZero() {
		return engine.ScheduleHead{}, false, badSchedule()
	}
	k := scheduleKey(tHead, h.Base)
	unlock, err := t.s.locks.lock(ctx, string(k))
	if err != nil {
		return engine.ScheduleHead{}, false, err
	}
	was, err := t.known(ctx, h.Base)
	if err != nil || was.head.Version != old {
		unlock()
		return was.head, false, err
	}
	h.Version = old + 1
	v := appendHead(make([]byte, 0, 64), &h)
	err = t.s.commit.write(ctx, func(tx tx) {
		tx.set(k, v)
		before, listed := was.fireAt()
		is := was
		is.head = h
		at, lists := is.fireAt()
		if listed && (!lists || before != at) {
			tx.delete(appendScheduleFire(nil, before, h.Base))
		}
		if lists && (!listed || before != at) {
			tx.set(appendScheduleFire(nil, at, h.Base), nil)
		}
	}, func(error) { unlock() })
	if err != nil {
		return engine.ScheduleHead{}, false, err
	}
	return h, true, nil
}

func (t *schedules) Purge(ctx context.Context, before int64, max int) (total int, err error) {
	t.purge.Lock()
	defer t.purge.Unlock()
	r := span{[]byte{tScheduleFire}, appendInt([]byte{tScheduleFire}, before)}
	for total < max && r.From != nil {
		n, next, err := t.purgeSome(ctx, r, before, min(max-total, manyAtOnce))
		total += n
		if err != nil {
			return total, err
		}
		r.From = next
	}
	return total, nil
}

// purgeSome looks at up to max rows of the index and returns where to go on;
// nil: nowhere.
func (t *schedules) purgeSome(ctx context.Context, r span, before int64, max int) (n int, next []byte, err error) {
	var rows [][]byte
	var locks []string
	err = t.s.each(r, func(k, _ []byte) (bool, error) {
		if len(k) != 1+8+len(notify.Base{}) {
			return false, corrupt("schedule index", k)
		}
		rows = append(rows, append([]byte(nil), k...))
		locks = append(locks, string(rune(tHead))+string(k[9:]))
		return len(rows) < max, nil
	})
	if err != nil || len(rows) == 0 {
		return 0, nil, err
	}
	if len(rows) == max {
		next = after(rows[max-1])
	}
	unlock, err := t.s.locks.lock(ctx, locks...)
	if err != nil {
		return 0, nil, err
	}
	var fills []func(tx)
	seen := map[notify.Base]bool{}
	for _, k := range rows {
		base := notify.Base(k[9:])
		was, err := t.known(ctx, base)
		if err != nil {
			unlock()
			return 0, nil, err
		}
		at, listed := was.fireAt()
		switch {
		case listed && at >= before: // the row is left from a Put that changed nothing
			fills = append(fills, func(tx tx) {
				tx.delete(k)
				tx.set(appendScheduleFire(nil, at, base), nil)
			})
			continue
		case was.exists && !seen[base]:
			n++
		}
		seen[base] = true
		fills = append(fills, func(tx tx) {
			tx.delete(k)
			if !listed {
				return
			}
			tx.delete(scheduleKey(tSchedule, base))
			tx.delete(scheduleKey(tHead, base))
			tx.delete(append(appendScheduleCaller(nil, was.schedule.Caller), base[:]...))
			tx.delete(appendScheduleFire(nil, was.schedule.FireAt, base))
			tx.delete(appendScheduleFire(nil, at, base))
		})
	}
	err = t.s.commit.write(ctx, func(tx tx) {
		for _, fill := range fills {
			fill(tx)
		}
	}, func(error) { unlock() })
	if err != nil {
		return 0, nil, err
	}
	return n, next, nil
}
