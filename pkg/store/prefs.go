package store

import (
	"context"
	"encoding/binary"
	"encoding/json"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// Prefs keeps one row a user and one row a user's latest change, so that the change
// table is as long as there are users.
type Prefs struct {
	rows    rows.Rows
	settled settled // version up to which every change is durable
}

func readProfile(r rows.Row) (p engine.Profile, err error) {
	if len(r.Value) < 8 || json.Unmarshal(r.Value[8:], &p) != nil {
		return engine.Profile{}, corrupt(r.Key)
	}
	p.User, p.Version = r.Key[1:], binary.BigEndian.Uint64(r.Value)
	return p, nil
}

// versionIn returns the version of a stored profile, 0 when there is none.
func versionIn(stored []byte) uint64 {
	if len(stored) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(stored)
}

// Get implements users.ProfileStore.
func (p *Prefs) Get(ctx context.Context, user string) (engine.Profile, bool, error) {
	stored, err := p.rows.Get(ctx, tablePrefs, "p"+user)
	if err != nil || stored[0] == nil {
		return engine.Profile{}, false, err
	}
	out, err := readProfile(rows.Row{Key: "p" + user, Value: stored[0]})
	return out, err == nil, err
}

// Put implements users.ProfileStore.
func (p *Prefs) Put(ctx context.Context, in engine.Profile) (uint64, error) {
	return p.put(ctx, []engine.Profile{in}, true)
}

// PutMany implements users.ProfileStore.
func (p *Prefs) PutMany(ctx context.Context, ps []engine.Profile) error {
	for len(ps) > 0 {
		n := min(len(ps), manyAtOnce)
		if _, err := p.put(ctx, ps[:n], false); err != nil {
			return err
		}
		ps = ps[n:]
	}
	return nil
}

// put stores profiles and returns the version of the last one. If check is set, their
// versions must be the stored ones.
func (p *Prefs) put(ctx context.Context, ps []engine.Profile, check bool) (given uint64, err error) {
	last := make(map[string]int, len(ps)) // a user named twice: the later one holds
	for i := range ps {
		if user := ps[i].User; user == "" || len(user) > notify.MaxUserID {
			return 0, notify.Invalid("bad_user", "user_id", "a user id has 1 to 128 bytes")
		}
		last[ps[i].User] = i
	}
	var keys []string
	var values [][]byte
	var versions []uint64
	for i, one := range ps {
		if last[one.User] != i {
			continue
		}
		keys, versions = append(keys, "p"+one.User), append(versions, one.Version)
		one.Version = 0
		doc, err := pack("bad_profile", "profile", &one)
		if err != nil {
			return 0, err
		}
		values = append(values, append(make([]byte, 8, 8+len(doc)), doc...))
	}
	if _, err := p.Version(ctx); err != nil {
		return 0, err
	}
	for {
		stored, err := p.rows.Get(ctx, tablePrefs, keys...)
		if err != nil {
			return 0, err
		}
		c := rows.Change{Part: tablePrefs, Numbers: len(keys)}
		for i, v := range stored {
			old := versionIn(v)
			if check && old != versions[i] {
				return 0, changed("profile_changed", "profile")
			}
			c.If = append(c.If, rows.Row{Key: keys[i], Value: v})
			if v != nil {
				c.Do = append(c.Do, rows.Row{Key: "n" + num(old)})
			}
		}
		c.Number = func(i int, n uint64) []rows.Row {
			given = n
			binary.BigEndian.PutUint64(values[i], n)
			return []rows.Row{{Key: keys[i], Value: values[i]}, {Key: "n" + num(n), Value: []byte(keys[i][1:])}}
		}
		c.Stored = func() { p.settled.set(given) }
		won, err := p.rows.Swap(ctx, c)
		switch {
		case err != nil:
			return 0, err
		case won:
			return given, nil
		}
	}
}

// Changes implements users.ProfileStore.
func (p *Prefs) Changes(ctx context.Context, since uint64, max int) ([]engine.Change, error) {
	return list(ctx, p.rows, tablePrefs, rows.Range{Prefix: "n", After: "n" + num(since)}, max, func(r rows.Row) (engine.Change, error) {
		profile, ok, err := p.Get(ctx, string(r.Value))
		if err == nil && !ok {
			err = corrupt(r.Key)
		}
		return engine.Change{Version: numberAt(r.Key), Profile: profile}, err
	})
}

// Version returns durable versions only: a loss of power cannot take them back.
func (p *Prefs) Version(ctx context.Context) (uint64, error) {
	return p.settled.get(func() (last uint64, err error) {
		err = p.rows.Scan(ctx, tablePrefs, rows.Range{Prefix: "n", Back: true}, func(r rows.Row) (bool, error) {
			last = numberAt(r.Key)
			return false, nil
		})
		return last, err
	})
}

// Scan reads all parts: the user ids order the rows.
func (p *Prefs) Scan(ctx context.Context, _ []int, fn func(*engine.Profile) error) error {
	return p.after(ctx, "", func(pr *engine.Profile) (bool, error) { return true, fn(pr) })
}

// after calls fn with the profiles of users after one, in order, while it returns true.
func (p *Prefs) after(ctx context.Context, user string, fn func(*engine.Profile) (bool, error)) error {
	return p.rows.Scan(ctx, tablePrefs, rows.Range{Prefix: "p", After: "p" + user}, func(r rows.Row) (bool, error) {
		profile, err := readProfile(r)
		if err != nil {
			return false, err
		}
		return fn(&profile)
	})
}

// GetMany implements users.ProfileStore.
func (p *Prefs) GetMany(ctx context.Context, users []string) (out []engine.Profile, err error) {
	for _, user := range users {
		one, ok, err := p.Get(ctx, user)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, one)
		}
	}
	return out, nil
}

// Suppressing implements users.ProfileStore.
func (p *Prefs) Suppressing(ctx context.Context, after string, max int) (out []engine.Profile, err error) {
	if max <= 0 {
		return nil, nil
	}
	err = p.after(ctx, after, func(pr *engine.Profile) (bool, error) {
		if len(pr.Suppressed) > 0 {
			out = append(out, *pr)
		}
		return len(out) < max, nil
	})
	return out, err
}
