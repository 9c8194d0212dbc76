package cassandra

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

type schedules struct{ s *Store }

const (
	listSchedules    = "schedules"
	purgeOfSchedules = "schedules_by_fire"

	// scheduleGrace is how much longer a schedule is kept than its timers. Purge normally
	// removes the schedule and its head much earlier.
	scheduleGrace = 60 * 24 * time.Hour
)

const insertSchedule = `INSERT INTO timer_requests (base, at, data) VALUES (?, ?, ?) USING TTL ?`

func scheduleKeeps(s *Store, fireAt int64) int64 {
	return keepUntil(fireAt, s.cfg.TimerGrace+scheduleGrace)
}

// indexSchedule adds a schedule to the lists of schedules. It also adds the schedule to the list
// of Purge, with the time fireAt.
func indexSchedule(ctx context.Context, s *Store, x *engine.Schedule, fireAt int64) error {
	es := append(scheduleEntries(x), purgeEntry{fireAt, x.Base[:]}.listed(purgeOfSchedules))
	return addToList(ctx, s, scheduleKeeps(s, fireAt), es...)
}

// scheduleEntries returns the entries of a schedule in the list of all callers and in the
// list of its caller.
func scheduleEntries(x *engine.Schedule) []listEntry {
	ms, key := x.Base.Time().UnixMilli(), x.Base[:]
	es := []listEntry{{listSchedules, ms, key}}
	if x.Caller != "" {
		es = append(es, listEntry{listOf(listSchedules, x.Caller), ms, key})
	}
	return es
}

// Put implements engine.Schedules. It stores schedules and their entries in the lists at
// the same time, and returns nil only when both are stored. So every acknowledged schedule
// is listed. Rows that a failed Put leaves expire with their TTL.
func (t schedules) Put(ctx context.Context, ss []engine.Schedule) error {
	if err := engine.CheckSchedules(ss); err != nil {
		return err
	}
	s, seen := t.s, map[notify.Base]bool{}
	var todo []*engine.Schedule
	for i := range ss {
		if x := &ss[i]; !seen[x.Base] {
			seen[x.Base] = true
			todo = append(todo, x)
		}
	}
	return parallel(2*len(todo), func(i int) error {
		x := todo[i/2]
		if i%2 == 0 {
			return indexSchedule(ctx, s, x, x.FireAt)
		}
		at := s.clock.now()
		return s.write(ctx, at, stmt{insertSchedule, []any{x.Base[:], at, store.ScheduleRecord.Pack(x), ttl(scheduleKeeps(s, x.FireAt))}})
	})
}

// PutScheduled calls Put and then Timers.Put. If the arguments are invalid, it stores
// nothing. After another error any of the rows may be stored, but no timer is stored
// without its schedule. A schedule without timers belongs to a request that was not
// acknowledged, and the reconciler reports it. One logged batch of schedules and timers
// would avoid such schedules, but would cost Cassandra twice the writes.
func (t schedules) PutScheduled(ctx context.Context, ss []engine.Schedule, shards notify.Spread, ts []engine.Timer) error {
	if err := engine.CheckTimers(shards, ts); err != nil {
		return err
	}
	if err := t.Put(ctx, ss); err != nil {
		return err
	}
	return putTimers(ctx, t.s, hotTimers, shards, ts)
}

// ForgetTimers implements engine.Schedules. It first reads the rows and then removes them
// by their whole keys, which contain the time of the write. So the removal never removes a
// timer that is stored again later.
func (t schedules) ForgetTimers(ctx context.Context, shards notify.Spread, ts []engine.Timer) error {
	s := t.s
	if len(ts) == 0 {
		return nil
	}
	if err := engine.CheckTimers(shards, nil); err != nil {
		return err
	}
	return parallel(2*len(ts), func(i int) error {
		table, x := hotTimers, &ts[i/2]
		if i%2 == 1 {
			table = coldTimers
		}
		p := timerPart{x.FireAt / table.length, int(engine.ShardOf(x.ID, shards))}
		var gone []stmt
		err := s.rows(ctx, func(scan func(...any) bool) error {
			for at := int64(0); scan(&at); {
				s.clock.observe(at)
				gone = append(gone, stmt{
					`DELETE FROM ` + table.name + ` WHERE bucket = ? AND shard = ? AND fire_at = ? AND id = ? AND at = ?`,
					[]any{p.bucket, p.shard, x.FireAt, x.ID, at},
				})
			}
			return nil
		}, `SELECT at FROM `+table.name+` WHERE bucket = ? AND shard = ? AND fire_at = ? AND id = ?`, p.bucket, p.shard, x.FireAt, x.ID)
		if err != nil {
			return err
		}
		return s.write(ctx, s.clock.now(), gone...)
	})
}

func (t schedules) Get(ctx context.Context, base notify.Base) (x engine.Schedule, ok bool, err error) {
	x, _, ok, err = t.get(ctx, base)
	return x, ok, err
}

func (t schedules) get(ctx context.Context, base notify.Base) (x engine.Schedule, at int64, ok bool, err error) {
	var v []byte
	ok, err = t.s.get(ctx, `SELECT at, data FROM timer_requests WHERE base = ? LIMIT 1`, []any{base[:]}, &at, &v)
	if err != nil || !ok {
		return x, 0, false, err
	}
	t.s.clock.observe(at)
	x.Base = base
	if err := store.ScheduleRecord.Unpack(v, &x); err != nil {
		return engine.Schedule{}, 0, false, err
	}
	return x, at, true, nil
}

func (t schedules) List(ctx context.Context, caller string, after notify.Base, max int) ([]engine.Schedule, error) {
	var behind []byte
	if !after.IsZero() {
		behind = after[:]
	}
	return collectListed(ctx, t.s, listOf(listSchedules, caller), behind, after.Time().UnixMilli(), max, func(key []byte) (engine.Schedule, bool, error) {
		if len(key) != len(notify.Base{}) {
			return engine.Schedule{}, false, corrupt("an entry in the list of schedules")
		}
		x, ok, err := t.Get(ctx, notify.Base(key))
		return x, ok && (caller == "" || x.Caller == caller), err
	})
}

func (t schedules) Hint(ctx context.Context, hs []engine.Hint) error {
	if err := engine.CheckHints(hs); err != nil {
		return err
	}
	return parallel(len(hs), func(i int) error {
		p := timerPart{hs[i].Partition.Bucket, int(hs[i].Partition.Shard)}
		if err := noteTimers(ctx, t.s, hotTimers, p); err != nil {
			return err
		}
		keeps := keepUntil((p.bucket+1)*engine.MinuteMs, t.s.cfg.TimerGrace)
		return t.s.write(ctx, t.s.clock.now(), stmt{
			`INSERT INTO timer_hints (bucket, shard, base) VALUES (?, ?, ?) USING TTL ?`, []any{p.bucket, p.shard, hs[i].Base[:], ttl(keeps)},
		})
	})
}

func (t schedules) Hints(ctx context.Context, p engine.TimerPartition) (out []notify.Base, err error) {
	err = t.s.rows(ctx, func(scan func(...any) bool) error {
		for b := []byte(nil); scan(&b); {
			if len(b) != len(notify.Base{}) {
				return corrupt("a row of the table timer_hints")
			}
			out = append(out, notify.Base(b))
		}
		return nil
	}, `SELECT base FROM timer_hints WHERE bucket = ? AND shard = ?`, p.Bucket, int(p.Shard))
	return out, err
}
