package cassandra

import (
	"context"
	"math"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Schedules returns the contract of scheduled requests. Rows are inserted and
// never changed; of two of one base the first counts. So the indexes may name
// what a later row of the same base said: who reads them looks at the schedule.
func (s *Store) Schedules() engine.Schedules { return schedules{s} }

type schedules struct{ s *Store }

const (
	scheduleVersion = 1
	headVersion     = 1
	requestShards   = 8

	scopeRequests = "timer_requests"
	scopeFires    = "timer_requests_by_fire"

	// scheduleGrace is how much longer than its timers a schedule is kept: Purge
	// forgets it long before, and its head with it.
	scheduleGrace = 60 * 24 * time.Hour
)

const insertSchedule = `INSERT INTO timer_requests (base, at, data) VALUES (?, ?, ?) USING TTL ?`

func (c *codec) schedule(x *engine.Schedule) {
	c.str(&x.Caller)
	c.str(&x.Campaign)
	c.str(&x.User)
	num(c, &x.Channel)
	num(c, &x.Category)
	num(c, &x.FireAt)
	num(c, &x.Created)
	num(c, &x.Expires)
	num(c, &x.Partition)
	num(c, &x.Partitions)
	num(c, &x.BlockSize)
	num(c, &x.Receivers)
	num(c, &x.Accepted)
	c.bool(&x.Fan)
}

func (c *codec) head(h *engine.ScheduleHead) {
	num(c, &h.State)
	num(c, &h.Gen)
	num(c, &h.At)
	num(c, &h.MovedAt)
	c.str(&h.MovedBy)
	num(c, &h.Moves)
}

func badSchedule() error {
	return notify.Invalid("bad_schedule", "base", "a schedule, its hints and its head have a base")
}

func checkSchedules(ss []engine.Schedule) error {
	for i := range ss {
		if ss[i].Base.IsZero() {
			return badSchedule()
		}
		if len(ss[i].Caller) > 1<<15 {
			return notify.Invalid("bad_schedule", "caller", "a caller has at most 32,768 bytes")
		}
	}
	return nil
}

func dayOf(b notify.Base) int64 { return b.Time().UnixMilli() / dayMs }

func (s *Store) scheduleKeeps(fireAt int64) int64 {
	return keepUntil(fireAt, s.cfg.TimerGrace+scheduleGrace)
}

// scheduleStmts returns what stores schedules, their indexes first, and notes the
// buckets of these.
func (s *Store) scheduleStmts(ctx context.Context, ss []engine.Schedule) (indexes, rows []stmt, err error) {
	seen := map[notify.Base]bool{}
	for i := range ss {
		x := &ss[i]
		if seen[x.Base] {
			continue
		}
		seen[x.Base] = true
		day, shard, base := dayOf(x.Base), shardOfBase(x.Base[:], requestShards), x.Base[:]
		keeps := s.scheduleKeeps(x.FireAt)
		left := ttl(keeps)
		for _, scope := range [...]string{scopeRequests, scopeRequests + "/" + x.Caller} {
			if err := s.note(ctx, scope, day, keeps, true); err != nil {
				return nil, nil, err
			}
		}
		fire, err := s.fireIndex(ctx, x.Base, x.FireAt)
		if err != nil {
			return nil, nil, err
		}
		indexes = append(indexes, fire,
			stmt{`INSERT INTO timer_requests_by_caller (caller, day, base) VALUES (?, ?, ?) USING TTL ?`, []any{x.Caller, day, base, left}},
			stmt{`INSERT INTO timer_requests_by_day (day, shard, base) VALUES (?, ?, ?) USING TTL ?`, []any{day, shard, base, left}})
		rows = append(rows, stmt{insertSchedule, []any{base, s.clock.now(), pack(scheduleVersion, func(c *codec) { c.schedule(x) }), left}})
	}
	return indexes, rows, nil
}

// fireIndex is the statement that lets Purge find a schedule by a fire time.
func (s *Store) fireIndex(ctx context.Context, base notify.Base, fireAt int64) (stmt, error) {
	keeps := s.scheduleKeeps(fireAt)
	ahead := fireAt > time.Now().UnixMilli()-dayMs // Purge forgets days that are over
	if err := s.note(ctx, scopeFires, fireAt/dayMs, keeps, ahead); err != nil {
		return stmt{}, err
	}
	return stmt{
		`INSERT INTO timer_requests_by_fire (day, shard, fire_at, base) VALUES (?, ?, ?, ?) USING TTL ?`,
		[]any{fireAt / dayMs, shardOfBase(base[:], requestShards), fireAt, base[:], ttl(keeps)},
	}, nil
}

// separate runs statements of different partitions.
func (s *Store) separate(ctx context.Context, stmts []stmt) error {
	return parallel(len(stmts), func(i int) error { return s.write(ctx, s.clock.now(), stmts[i]) })
}

// Put stores indexes before schedules: one that is there is listed.
func (t schedules) Put(ctx context.Context, ss []engine.Schedule) error {
	if err := checkSchedules(ss); err != nil || len(ss) == 0 {
		return err
	}
	indexes, rows, err := t.s.scheduleStmts(ctx, ss)
	if err != nil {
		return err
	}
	if err := t.s.separate(ctx, indexes); err != nil {
		return err
	}
	return t.s.separate(ctx, rows)
}

// PutScheduled is Schedules.Put and Timers.Put: both or, if the arguments are
// bad, none. Schedules and timers go into one logged batch, so that once the
// cluster took it all of it is stored, however the call ends; what takes more
// than a batch may hold (40 KiB) is stored schedules first, and an error leaves
// it open how much of it was: a schedule without timers is seen by the
// reconciler, timers without a schedule there are none.
func (s *Store) PutScheduled(ctx context.Context, ss []engine.Schedule, shards int, ts []engine.Timer) error {
	if err := checkSchedules(ss); err != nil {
		return err
	}
	if err := checkTimers(shards, ts); err != nil {
		return err
	}
	parts, of := s.timerStmts(hotTimers, shards, ts)
	if err := parallel(len(parts), func(i int) error { return s.noteTimers(ctx, hotTimers, parts[i]) }); err != nil {
		return err
	}
	indexes, all, err := s.scheduleStmts(ctx, ss)
	if err != nil {
		return err
	}
	if err := s.separate(ctx, indexes); err != nil {
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
		return s.writeAll(ctx, s.clock.now(), all...)
	}
	if err := s.separate(ctx, all[:rows]); err != nil {
		return err
	}
	return s.putTimers(ctx, hotTimers, shards, ts)
}

// ForgetTimers removes exactly the rows it finds, each by its whole key: a timer
// that is stored again is another row, and never hidden by the removal.
func (s *Store) ForgetTimers(ctx context.Context, shards int, ts []engine.Timer) error {
	if len(ts) == 0 {
		return nil
	}
	if shards < 1 || shards > 1<<16 {
		return notify.Invalid("bad_timer", "shards", "there are 1 to 65,536 shards")
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
	if !unpack(v, scheduleVersion, func(c *codec) { c.schedule(&x) }) {
		return engine.Schedule{}, 0, false, corrupt("the schedule " + base.String())
	}
	return x, at, true, nil
}

func (t schedules) List(ctx context.Context, caller string, after notify.Base, max int) (out []engine.Schedule, err error) {
	if max <= 0 {
		return nil, nil
	}
	from := int64(math.MaxInt64)
	if !after.IsZero() {
		from = dayOf(after)
	}
	scope := scopeRequests
	if caller != "" {
		scope += "/" + caller
	}
	days, err := t.s.notedBack(ctx, scope, 0, from)
	if err != nil {
		return nil, err
	}
	for _, day := range days {
		behind := after
		if day != from || after.IsZero() {
			behind = lastBase
		}
		for len(out) < max {
			bases, err := t.basesOf(ctx, caller, day, behind, max-len(out))
			if err != nil {
				return nil, err
			}
			found := make([]engine.Schedule, len(bases))
			have := make([]bool, len(bases))
			err = parallel(len(bases), func(i int) (err error) {
				found[i], have[i], err = t.Get(ctx, bases[i])
				return err
			})
			if err != nil {
				return nil, err
			}
			for i := range found {
				if have[i] && (caller == "" || found[i].Caller == caller) {
					out = append(out, found[i])
				}
			}
			if len(bases) == 0 {
				break
			}
			behind = bases[len(bases)-1]
		}
		if len(out) >= max {
			break
		}
	}
	return out, nil
}

// lastBase stands behind every base that is not itself.
var lastBase = notify.Base{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// basesOf returns up to max bases of a day, newest first, behind one.
func (t schedules) basesOf(ctx context.Context, caller string, day int64, behind notify.Base, max int) ([]notify.Base, error) {
	op := "<"
	if behind == lastBase {
		op = "<="
	}
	read := func(out *[]notify.Base, from string, args ...any) error {
		t.s.counts.reads.Add(1)
		q := t.s.query(`SELECT base FROM `+from+` AND base `+op+` ? LIMIT ?`, append(args, behind[:], max)...)
		return t.s.iterate(ctx, q, func(scan func(...any) bool) error {
			for b := []byte(nil); scan(&b); {
				if len(b) != len(notify.Base{}) {
					return corrupt("an index of timer_requests")
				}
				*out = append(*out, notify.Base(b))
			}
			return nil
		})
	}
	if caller != "" {
		var out []notify.Base
		err := read(&out, `timer_requests_by_caller WHERE caller = ? AND day = ?`, caller, day)
		return out, err
	}
	var shards [requestShards][]notify.Base
	err := parallel(requestShards, func(i int) error {
		return read(&shards[i], `timer_requests_by_day WHERE day = ? AND shard = ?`, day, int16(i))
	})
	if err != nil {
		return nil, err
	}
	return mergeFirst(shards[:], func(a, b notify.Base) int { return compareBases(b, a) }, max), nil
}

func (t schedules) Hint(ctx context.Context, hs []engine.Hint) error {
	for i := range hs {
		if hs[i].Base.IsZero() {
			return badSchedule()
		}
	}
	return parallel(len(hs), func(i int) error {
		p := timerPart{hs[i].Partition.Minute, int(hs[i].Partition.Shard)}
		if err := t.s.noteTimers(ctx, hotTimers, p); err != nil {
			return err
		}
		keeps := keepUntil((p.bucket+1)*minuteMs, t.s.cfg.TimerGrace)
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
	}, `SELECT base FROM timer_hints WHERE bucket = ? AND shard = ?`, p.Minute, int(p.Shard))
	return out, err
}
