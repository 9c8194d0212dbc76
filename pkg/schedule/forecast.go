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
			if err := f.read(ctx, s.cfg.Timers, p, from, to, touched); err != nil {
				return nil, false, err
			}
		}
		days, err := s.cfg.Cold.Buckets(ctx, uint16(shard), first/1440, last/1440)
		if err != nil {
			return nil, false, err
		}
		for _, d := range days {
			// Hints of a cold row stand at its minute; asking the head of each
			// touched one would need them all, so the head is asked always.
			touched := func(notify.Base) bool { return true }
			if err := f.read(ctx, s.cfg.Cold, engine.TimerPartition{Bucket: d, Shard: uint16(shard)}, from, to, touched); err != nil {
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

// read adds the rows of a partition in [from, to).
func (f *forecast) read(ctx context.Context, table engine.TimerTable, p engine.TimerPartition, from, to int64, touched func(notify.Base) bool) error {
	after := engine.TimerCursor{FireAt: from}
	for f.left > 0 {
		rows, err := table.Outline(ctx, p, after, to-1, min(forecastPage, f.left))
		if err != nil || len(rows) == 0 {
			return err
		}
		for i := range rows {
			if err := f.add(ctx, &rows[i], touched(rows[i].Head)); err != nil {
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
