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

	// scheduleGrace is how much longer than its timers a schedule is kept: Purge
	// forgets it long before, and its head with it.
	scheduleGrace = 60 * 24 * time.Hour
)

const insertSchedule = `INSERT INTO timer_requests (base, at, data) VALUES (?, ?, ?) USING TTL ?`

func scheduleKeeps(s *Store, fireAt int64) int64 {
	return keepUntil(fireAt, s.cfg.TimerGrace+scheduleGrace)
}

// indexSchedule puts a schedule into the lists and lets Purge find it by a fire
// time, before it is there or is moved to that time.
func indexSchedule(ctx context.Context, s *Store, x *engine.Schedule, fireAt int64) error {
	keeps := scheduleKeeps(s, fireAt)
	if err := purgeLater(ctx, s, purgeOfSchedules, purgeEntry{fireAt, x.Base[:]}, keeps); err != nil {
		return err
	}
	return addToList(ctx, s, keeps, scheduleEntries(x)...)
}

// scheduleEntries are the entries of a schedule in the lists of all and of its
// caller's.
func scheduleEntries(x *engine.Schedule) []listEntry {
	ms, key := x.Base.Time().UnixMilli(), x.Base[:]
	es := []listEntry{{listSchedules, ms, key}}
	if x.Caller != "" {
		es = append(es, listEntry{listOf(listSchedules, x.Caller), ms, key})
	}
	return es
}

// indexSchedules is indexSchedule of several, and returns what stores them.
func indexSchedules(ctx context.Context, s *Store, ss []engine.Schedule) (rows []stmt, err error) {
	seen := map[notify.Base]bool{}
	var unindexed []*engine.Schedule
	for i := range ss {
		if x := &ss[i]; !seen[x.Base] {
			seen[x.Base] = true
			unindexed = append(unindexed, x)
			rows = append(rows, stmt{insertSchedule, []any{x.Base[:], s.clock.now(), store.ScheduleRecord.Pack(x), ttl(scheduleKeeps(s, x.FireAt))}})
		}
	}
	return rows, parallel(len(unindexed), func(i int) error { return indexSchedule(ctx, s, unindexed[i], unindexed[i].FireAt) })
}

// separateIndex runs statements of different partitions.
func separateIndex(ctx context.Context, s *Store, stmts []stmt) error {
	return parallel(len(stmts), func(i int) error { return s.write(ctx, s.clock.now(), stmts[i]) })
}

// Put stores indexes before schedules: one that is there is listed.
func (t schedules) Put(ctx context.Context, ss []engine.Schedule) error {
	if err := engine.CheckSchedules(ss); err != nil || len(ss) == 0 {
		return err
	}
	rows, err := indexSchedules(ctx, t.s, ss)
	if err != nil {
		return err
	}
	return separateIndex(ctx, t.s, rows)
}

// PutScheduled is Schedules.Put and Timers.Put: both or, if the arguments are
// bad, none. Schedules and timers go into one logged batch, so that once the
// cluster took it all of it is stored, however the call ends; what takes more
// than a batch may hold (40 KiB) is stored schedules first, and an error leaves
// it open how much of it was: a schedule without timers is seen by the
// reconciler, timers without a schedule there are none.
func (t schedules) PutScheduled(ctx context.Context, ss []engine.Schedule, shards notify.Spread, ts []engine.Timer) error {
	s := t.s
	if err := engine.CheckSchedules(ss); err != nil {
		return err
	}
	if err := engine.CheckTimers(shards, ts); err != nil {
		return err
	}
	at := s.clock.now()
	parts, of := timerStmts(s, hotTimers, shards, ts, at)
	if err := parallel(len(parts), func(i int) error { return noteTimers(ctx, s, hotTimers, parts[i]) }); err != nil {
		return err
	}
	all, err := indexSchedules(ctx, s, ss)
	if err != nil {
		return err
	}
	rows := len(all)
	for _, p := range parts {
		all = append(all, of[p]...)
	}
	size := 0
	for i := range all {
		size += all[i].size()
	}
	if size <= maxLogged {
		return s.writeAll(ctx, at, all...)
	}
	if err := separateIndex(ctx, s, all[:rows]); err != nil {
		return err
	}
	return putTimers(ctx, s, hotTimers, shards, ts)
}

// ForgetTimers removes exactly the rows it finds, each by its whole key: a timer
// that is stored again is another row, and never hidden by the removal.
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
				s.clock.see(at)
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
	t.s.clock.see(at)
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
	return pick(ctx, t.s, listOf(listSchedules, caller), behind, after.Time().UnixMilli(), max, func(key []byte) (engine.Schedule, bool, error) {
		if len(key) != len(notify.Base{}) {
			return engine.Schedule{}, false, corrupt("the list of schedules")
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
				return corrupt("timer_hints")
			}
			out = append(out, notify.Base(b))
		}
		return nil
	}, `SELECT base FROM timer_hints WHERE bucket = ? AND shard = ?`, p.Bucket, int(p.Shard))
	return out, err
}
