package schedule

import (
	"context"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Due contains the counts of one kind of timers that become due in one minute.
type Due struct {
	Minute int64  // minutes since 1970
	What   string // "push", "sms", "email", "trigger"
	Timers int
	Count  int64 // receivers, or triggers
}

// Forecast counts the timers that are due in [start, end), by minute and kind. Both times are in ms
// since 1970. It reads the timer rows. After maxRows rows it stops, and the result complete is
// false.
//
// Forecast counts what will be sent, so it also counts parked retries, and it does not count
// cancelled notifications or the old rows of moved notifications. But it counts cancelled triggers:
// their rows stay until their time, and Forecast does not read the state of each trigger. If start
// is the current time, the first minute is incomplete: Forecast does not count timers that were
// released earlier in that minute.
func (s *Service) Forecast(ctx context.Context, start, end int64, maxRows int) (due []Due, complete bool, err error) {
	f := forecast{s: s, rowsLeft: maxRows, sums: map[dueKey]*Due{}, views: map[notify.Base]*View{}}
	first, last := start/60_000, (end-1)/60_000
	shards, err := s.cfg.Shards()
	if err != nil {
		return nil, false, err
	}
	for shard := range shards.Most() {
		minutes, err := s.cfg.Timers.Buckets(ctx, uint16(shard), first, last)
		if err != nil {
			return nil, false, err
		}
		for _, m := range minutes {
			p := engine.TimerPartition{Bucket: m, Shard: uint16(shard)}
			hints, err := s.cfg.Schedules.Hints(ctx, p)
			if err != nil {
				return nil, false, err
			}
			touched := func(x notify.Base) bool { return slices.Contains(hints, x) }
			if err := f.addPartition(ctx, s.cfg.Timers, p, start, end, touched); err != nil {
				return nil, false, err
			}
		}
		days, err := s.cfg.Cold.Buckets(ctx, uint16(shard), first/1440, last/1440)
		if err != nil {
			return nil, false, err
		}
		for _, d := range days {
			// For rows of the cold table, hints are stored by minute. Forecast would have to read
			// the hints of every minute of the day. So it reads the head of each row's schedule
			// instead.
			touched := func(notify.Base) bool { return true }
			if err := f.addPartition(ctx, s.cfg.Cold, engine.TimerPartition{Bucket: d, Shard: uint16(shard)}, start, end, touched); err != nil {
				return nil, false, err
			}
		}
	}
	for _, d := range f.sums {
		due = append(due, *d)
	}
	slices.SortFunc(due, func(a, b Due) int {
		if a.Minute != b.Minute {
			return int(a.Minute - b.Minute)
		}
		return strings.Compare(a.What, b.What)
	})
	return due, f.rowsLeft > 0, nil
}

type dueKey struct {
	minute int64
	what   string
}

type forecast struct {
	s        *Service
	rowsLeft int
	sums     map[dueKey]*Due
	views    map[notify.Base]*View
}

const forecastPage = 256

// addPartition adds the rows of a partition that are due in [start, end).
func (f *forecast) addPartition(ctx context.Context, table engine.TimerTable, p engine.TimerPartition, start, end int64, touched func(notify.Base) bool) error {
	after := engine.TimerCursor{FireAt: start}
	for f.rowsLeft > 0 {
		rows, err := table.ScanWithoutPayload(ctx, p, after, end-1, min(forecastPage, f.rowsLeft))
		if err != nil || len(rows) == 0 {
			return err
		}
		for i := range rows {
			if err := f.addRow(ctx, &rows[i], touched(rows[i].Head)); err != nil {
				return err
			}
		}
		last := rows[len(rows)-1]
		after = engine.TimerCursor{FireAt: last.FireAt, ID: last.ID}
	}
	return nil
}

func (f *forecast) addRow(ctx context.Context, t *engine.Timer, touched bool) error {
	f.rowsLeft--
	if !t.Head.IsZero() && (touched || t.Gen > 0) {
		v := f.views[t.Head]
		if v == nil {
			got, err := f.s.viewOf(ctx, engine.Schedule{Base: t.Head, FireAt: t.FireAt})
			if err != nil {
				return err
			}
			v = &got
			f.views[t.Head] = v
		}
		if v.Gen != t.Gen || v.State == engine.ScheduleCancelled {
			return nil
		}
	}
	k := dueKey{t.FireAt / 60_000, "trigger"}
	if rest, ok := strings.CutPrefix(t.Target, "notifications-"); ok {
		k.what, _, _ = strings.Cut(rest, "-")
	}
	d := f.sums[k]
	if d == nil {
		d = &Due{Minute: k.minute, What: k.what}
		f.sums[k] = d
	}
	d.Timers++
	d.Count += int64(max(t.Weight, 1))
	return nil
}
