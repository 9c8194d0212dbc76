package store

import (
	"context"
	"math"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// letters stores each dead letter in tableLetters under its Ord, which numbers all dead letters.
// tableLetters also has the indexes of the dead letters. Each caller's feed is a separate partition.
// In its feed a letter has another number, Seq.
//
// Feed, List and Walk return only letters with an Ord up to the last durable Ord. A power loss may
// undo letters with a higher Ord. Then the store may give the same Ord to another letter. A reader
// that has already read up to this Ord would miss that letter.
type letters struct {
	rows    rows.Rows
	durable durableNumber
}

func feedOf(caller string) rows.Partition { return rows.Partition{Table: 'f', Name: caller} }

func letterTime(prefix string, ms int64, id string) string { return prefix + orderedTime(ms) + id }

// letterKeys returns the keys of the four rows of a letter in tableLetters. id is the letter's
// LetterID.
func letterKeys(d *engine.DeadLetter, id string) (byID, byOrd, byTime, byUntil string) {
	return "i" + id, "o" + num(d.Ord), letterTime("l", ^d.LastFailed, id), letterTime("e", d.Until, id)
}

func readLetter(r rows.Row) (d engine.DeadLetter, err error) {
	d.Ord = numberAt(r.Key)
	err = UnpackLetter(r.Value, &d)
	return d, err
}

// lastDurable returns the last durable Ord.
func (l *letters) lastDurable(ctx context.Context) (uint64, error) {
	return l.durable.get(func() (last uint64, err error) {
		got, err := l.rows.Get(ctx, tableLetters, "n")
		if err == nil && got[0] != nil {
			last = numberAt(string(got[0]))
		}
		return last, err
	})
}

func (l *letters) Put(ctx context.Context, ds []engine.DeadLetter) error {
	if len(ds) == 0 {
		return nil
	}
	if _, err := l.lastDurable(ctx); err != nil {
		return err
	}
	var ids []string
	var all []*engine.DeadLetter
	seen := map[string]bool{}
	for i := range ds {
		if id := string(LetterID(ds[i].ID, ds[i].Epoch)); !seen[id] {
			seen[id] = true
			ids, all = append(ids, id), append(all, &ds[i])
		}
	}
	for {
		cs, err := l.changesForNew(ctx, all, ids)
		if err != nil || len(cs) == 0 {
			return err
		}
		if won, err := l.rows.Swap(ctx, cs...); won || err != nil {
			return err
		}
	}
}

// changesForNew returns the changes that store those letters that are not stored yet. First come
// the changes of the callers' feeds, which give each letter its Seq. The last change stores the
// letters in tableLetters and gives each letter its Ord.
func (l *letters) changesForNew(ctx context.Context, ds []*engine.DeadLetter, ids []string) ([]rows.Change, error) {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = "i" + id
	}
	stored, err := l.rows.Get(ctx, tableLetters, keys...)
	if err != nil {
		return nil, err
	}
	main := rows.Change{Part: tableLetters}
	var values [][]byte
	var fresh []int           // indexes in ds of letters that are not stored
	feeds := map[string]int{} // index in cs of a caller's feed
	var cs []rows.Change
	var of [][]int // for each change in cs: its letters, as indexes in fresh
	for i, v := range stored {
		if v != nil {
			continue
		}
		packed, err := PackLetter(ds[i])
		if err != nil {
			return nil, err
		}
		feed, ok := feeds[ds[i].Caller]
		if !ok {
			feed = len(cs)
			feeds[ds[i].Caller] = feed
			cs, of = append(cs, rows.Change{Part: feedOf(ds[i].Caller)}), append(of, nil)
		}
		cs[feed].Numbers++
		of[feed] = append(of[feed], len(fresh))
		fresh, values = append(fresh, i), append(values, packed)
		main.Expect = append(main.Expect, rows.Row{Key: keys[i]})
	}
	if len(fresh) == 0 {
		return nil, nil
	}
	for feed := range cs {
		cs[feed].Number = func(k int, seq uint64) []rows.Row {
			at := of[feed][k]
			numberLetter(values[at], seq)
			return []rows.Row{{Key: num(seq), Value: []byte(ids[fresh[at]])}}
		}
	}
	var last uint64
	main.Numbers = len(fresh)
	main.Number = func(k int, ord uint64) []rows.Row {
		d := *ds[fresh[k]]
		d.Ord, last = ord, ord
		byID, byOrd, byTime, byUntil := letterKeys(&d, ids[fresh[k]])
		return []rows.Row{
			{Key: "n", Value: []byte(num(ord))}, {Key: byID, Value: []byte(num(ord))}, {Key: byOrd, Value: values[k]},
			{Key: byTime, Value: []byte{}}, {Key: byUntil, Value: []byte{}},
		}
	}
	main.Stored = func() { l.durable.set(last) }
	return append(cs, main), nil
}

// lookUpLetter returns the letter with an id. Like List, it does not wait for running writes.
func (l *letters) lookUpLetter(ctx context.Context, id string) (d engine.DeadLetter, ok bool, err error) {
	ord := ""
	err = l.rows.GetMany(ctx, tableLetters, 1, func(b []byte, _ int) []byte { return append(append(b, 'i'), id...) }, func(_ int, v []byte) error {
		ord = string(v)
		return nil
	})
	if err != nil || ord == "" {
		return d, false, err
	}
	err = l.rows.GetMany(ctx, tableLetters, 1, func(b []byte, _ int) []byte { return append(append(b, 'o'), ord...) }, func(_ int, v []byte) (err error) {
		if ok = v != nil; ok { // nil: the letter was purged after the first look-up
			d, err = readLetter(rows.Row{Key: ord, Value: v})
		}
		return err
	})
	return d, ok, err
}

func (l *letters) Get(ctx context.Context, id notify.ID, epoch uint16) (engine.DeadLetter, error) {
	d, ok, err := l.lookUpLetter(ctx, string(LetterID(id, epoch)))
	if err == nil && !ok {
		err = notify.NotFound("dead_letter")
	}
	return d, err
}

func (l *letters) Feed(ctx context.Context, caller string, after uint64, max int) (out []engine.DeadLetter, err error) {
	last, err := l.lastDurable(ctx)
	if err != nil || max <= 0 || len(caller) > engine.MaxCaller {
		return nil, err
	}
	err = l.rows.Scan(ctx, feedOf(caller), rows.Range{After: num(after)}, func(r rows.Row) (bool, error) {
		d, ok, err := l.lookUpLetter(ctx, string(r.Value))
		if err != nil || ok && d.Ord > last { // later letters of the feed are not durable either
			return false, err
		}
		if ok {
			out = append(out, d)
		}
		return len(out) < max, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// List implements engine.DeadLetters. Its cursor is the key of the last dead letter that it
// returned, without the prefix "l".
func (l *letters) List(ctx context.Context, f engine.DeadLetterFilter, cursor []byte, limit int) (out []engine.DeadLetter, _ []byte, err error) {
	settled, err := l.lastDurable(ctx)
	if err != nil || limit <= 0 {
		return nil, nil, err
	}
	in := rows.Range{Prefix: "l"}
	if f.Until != 0 {
		in.After = letterTime("l", ^(f.Until - 1), "")
	}
	if f.Since != 0 {
		in.Before = letterTime("l", -f.Since, "")
	}
	if cursor != nil {
		if len(cursor) != 8+LetterIDLen {
			return nil, nil, notify.Invalid("bad_cursor", "cursor", "must be a cursor that this list returned, unchanged")
		}
		in.After = max(in.After, "l"+string(cursor))
	}
	more, last := false, ""
	err = l.rows.Scan(ctx, tableLetters, in, func(r rows.Row) (bool, error) {
		// Skip a letter that is not durable yet. A replay reads only durable letters, and a list
		// must not show a letter that a replay cannot find.
		d, ok, err := l.lookUpLetter(ctx, r.Key[1+8:])
		if err != nil || !ok || d.Ord > settled || !f.Matches(&d) {
			return true, err
		}
		if more = len(out) == limit; more { // this page is full and another letter matches: there is a next page
			return false, nil
		}
		out, last = append(out, d), r.Key[1:]
		return true, nil
	})
	if err != nil || !more {
		return out, nil, err
	}
	return out, []byte(last), nil
}

func (l *letters) Walk(ctx context.Context, after, upTo uint64, fn func(*engine.DeadLetter) error) error {
	last, err := l.lastDurable(ctx)
	if upTo = min(upTo, last); err != nil || after >= upTo {
		return err
	}
	return l.rows.Scan(ctx, tableLetters, rows.Range{Prefix: "o", After: "o" + num(after)}, func(r rows.Row) (bool, error) {
		d, err := readLetter(r)
		if err != nil || d.Ord > upTo {
			return false, err
		}
		return true, fn(&d)
	})
}

func (l *letters) Last(ctx context.Context) (uint64, error) { return l.lastDurable(ctx) }

// readStored returns the letters with the given ids and their packed values. The value of a missing
// letter is nil. readStored sees every swap that was answered before the call.
func (l *letters) readStored(ctx context.Context, ids []string) ([]engine.DeadLetter, [][]byte, error) {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = "i" + id
	}
	ords, err := l.rows.Get(ctx, tableLetters, keys...)
	if err != nil {
		return nil, nil, err
	}
	for i, ord := range ords {
		keys[i] = "o" + string(ord)
	}
	values, err := l.rows.Get(ctx, tableLetters, keys...)
	if err != nil {
		return nil, nil, err
	}
	out := make([]engine.DeadLetter, len(ids))
	for i, v := range values {
		if v == nil {
			continue
		}
		if out[i], err = readLetter(rows.Row{Key: keys[i], Value: v}); err != nil {
			return nil, nil, err
		}
	}
	return out, values, nil
}

func (l *letters) Move(ctx context.Context, ms []engine.LetterMove) ([]bool, error) {
	ids := make([]string, len(ms))
	for i := range ms {
		ids[i] = string(LetterID(ms[i].ID, ms[i].Epoch))
	}
	for {
		ds, values, err := l.readStored(ctx, ids)
		if err != nil {
			return nil, err
		}
		moved, seen := make([]bool, len(ms)), map[string]bool{}
		c := rows.Change{Part: tableLetters}
		for i, m := range ms {
			d := &ds[i]
			if values[i] == nil || seen[ids[i]] || d.State != m.From || d.Job != m.FromJob {
				continue
			}
			d.State, d.Job = m.To, m.Job
			packed, err := PackLetter(d)
			if err != nil {
				return nil, err
			}
			moved[i], seen[ids[i]] = true, true
			key := "o" + num(d.Ord)
			c.Expect = append(c.Expect, rows.Row{Key: key, Value: values[i]})
			c.Set = append(c.Set, rows.Row{Key: key, Value: packed})
		}
		if len(c.Set) == 0 {
			return moved, nil
		}
		won, err := l.rows.Swap(ctx, c)
		switch {
		case err != nil:
			return nil, err
		case won:
			return moved, nil
		}
	}
}

func (l *letters) Purge(ctx context.Context, now int64) (int, error) {
	return purgeByTime(ctx, l.rows, tableLetters, "e", now, math.MaxInt, func(entries []string) ([]rows.Change, int, error) {
		ids := make([]string, len(entries))
		for i, e := range entries {
			ids[i] = e[1+8:]
		}
		ds, values, err := l.readStored(ctx, ids)
		if err != nil {
			return nil, 0, err
		}
		var cs []rows.Change
		main, gone := rows.Change{Part: tableLetters}, 0
		for i, v := range values {
			if v == nil { // another process purged it
				continue
			}
			gone++
			byID, byOrd, byTime, byUntil := letterKeys(&ds[i], ids[i])
			main.Expect = append(main.Expect, rows.Row{Key: byOrd, Value: v})
			main.Set = append(main.Set, rows.Row{Key: byID}, rows.Row{Key: byOrd}, rows.Row{Key: byTime}, rows.Row{Key: byUntil})
			cs = append(cs, rows.Change{Part: feedOf(ds[i].Caller), Set: []rows.Row{{Key: num(ds[i].Seq)}}})
		}
		return append(cs, main), gone, nil
	})
}
