package schedule

import (
	"context"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Due is what becomes due in one minute.
type Due struct {
	Minute int64  // since 1970
	What   string // "push", "sms", "email", "trigger"
	Timers int
	Count  int64 // receivers, or triggers
}

// Forecast adds up what is due at from and later, and before to, in ms since 1970, by
// minute and kind. It reads the rows; after most of them it stops, and complete is
// false. What was cancelled or moved away is left out, except of triggers: their
// rows stay until their time, and nobody is asked about each. Parked retries are not
// schedules, and are counted all the same: they will be sent. A row stays for a
// moment behind its time, so a from of now leaves out what this minute has released.
func (s *Service) Forecast(ctx context.Context, from, to int64, most int) (due []Due, complete bool, err error) {
	f := forecast{s: s, left: most, sums: map[dueKey]*Due{}, heads: map[notify.Base]*View{}}
	first, last := from/60_000, (to-1)/60_000
	for shard := range s.cfg.Shards {
		minutes, err := s.cfg.Timers.Minutes(ctx, uint16(shard), first, last)
		if err != nil {
			return nil, false, err
		}
		for _, m := range minutes {
			if err := f.minute(ctx, engine.TimerPartition{Minute: m, Shard: uint16(shard)}, from, to); err != nil {
				return nil, false, err
			}
		}
		days, err := s.cfg.Cold.Days(ctx, uint16(shard), last/1440)
		if err != nil {
			return nil, false, err
		}
		for _, d := range days {
			if d < first/1440 {
				continue
			}
			if err := f.day(ctx, uint16(shard), d, from, to); err != nil {
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
	return due, f.left > 0, nil
}

type dueKey struct {
	minute int64
	what   string
}

type forecast struct {
	s     *Service
	left  int
	sums  map[dueKey]*Due
	heads map[notify.Base]*View
}

const forecastPage = 256

func (f *forecast) minute(ctx context.Context, p engine.TimerPartition, from, to int64) error {
	hints, err := f.s.cfg.Schedules.Hints(ctx, p)
	if err != nil {
		return err
	}
	until := min((p.Minute+1)*60_000, to) - 1
	after := engine.TimerCursor{FireAt: from}
	for f.left > 0 {
		rows, err := f.s.cfg.Timers.Outline(ctx, p, after, until, min(forecastPage, f.left))
		if err != nil || len(rows) == 0 {
			return err
		}
		for i := range rows {
			if err := f.add(ctx, &rows[i], slices.Contains(hints, rows[i].Head)); err != nil {
				return err
			}
		}
		last := rows[len(rows)-1]
		after = engine.TimerCursor{FireAt: last.FireAt, ID: last.ID}
	}
	return nil
}

func (f *forecast) day(ctx context.Context, shard uint16, day, from, to int64) error {
	after := engine.TimerCursor{FireAt: from}
	for f.left > 0 {
		rows, err := f.s.cfg.Cold.Outline(ctx, shard, day, after, min(forecastPage, f.left))
		if err != nil || len(rows) == 0 {
			return err
		}
		for i := range rows {
			if rows[i].FireAt >= to {
				return nil
			}
			// Hints of a cold row stand at its minute; asking the head of each
			// touched one would need them all, so the head is asked always.
			if err := f.add(ctx, &rows[i], true); err != nil {
				return err
			}
		}
		last := rows[len(rows)-1]
		after = engine.TimerCursor{FireAt: last.FireAt, ID: last.ID}
	}
	return nil
}

func (f *forecast) add(ctx context.Context, t *engine.Timer, touched bool) error {
	f.left--
	if !t.Head.IsZero() && (touched || t.Gen > 0) {
		v := f.heads[t.Head]
		if v == nil {
			got, err := f.s.view(ctx, engine.Schedule{Base: t.Head, FireAt: t.FireAt})
			if err != nil {
				return err
			}
			v = &got
			f.heads[t.Head] = v
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
