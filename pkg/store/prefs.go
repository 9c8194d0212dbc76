package store

import (
	"context"
	"encoding/binary"
	"encoding/json"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// Prefs keeps two rows for each user: the profile, and the user's latest change.
type Prefs struct {
	rows    rows.Rows
	durable durableNumber // version of the latest durable change
}

func readProfile(r rows.Row) (p engine.Profile, err error) {
	if len(r.Value) < 8 || json.Unmarshal(r.Value[8:], &p) != nil {
		return engine.Profile{}, corrupt(r.Key)
	}
	p.User, p.Version = r.Key[1:], binary.BigEndian.Uint64(r.Value)
	return p, nil
}

// storedVersion returns the version of a stored profile, or 0 if there is no stored profile.
func storedVersion(stored []byte) uint64 {
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
	return p.putProfiles(ctx, []engine.Profile{in}, true)
}

// PutMany implements users.ProfileStore.
func (p *Prefs) PutMany(ctx context.Context, ps []engine.Profile) error {
	for len(ps) > 0 {
		n := min(len(ps), manyAtOnce)
		if _, err := p.putProfiles(ctx, ps[:n], false); err != nil {
			return err
		}
		ps = ps[n:]
	}
	return nil
}

// putProfiles stores profiles and returns the version that it gave to the last profile. If check is
// true, the version of each profile must equal the stored version. If a version differs, putProfiles
// returns the error profile_changed.
func (p *Prefs) putProfiles(ctx context.Context, ps []engine.Profile, check bool) (uint64, error) {
	last := make(map[string]int, len(ps)) // index of each user's last profile; earlier profiles of the user are ignored
	for i := range ps {
		if user := ps[i].User; user == "" || len(user) > notify.MaxUserID {
			return 0, notify.Invalid("bad_user", "user_id", "must have 1 to 128 bytes")
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
		// The variable given is the version of the last profile. It is not a named result of
		// putProfiles: after Swap has returned an error, the function c.Stored may still read it in
		// another goroutine.
		var given uint64
		for i, v := range stored {
			old := storedVersion(v)
			if check && old != versions[i] {
				return 0, errChanged("profile_changed", "profile")
			}
			c.Expect = append(c.Expect, rows.Row{Key: keys[i], Value: v})
			if v != nil {
				c.Set = append(c.Set, rows.Row{Key: "n" + num(old)})
			}
		}
		c.Number = func(i int, n uint64) []rows.Row {
			given = n
			binary.BigEndian.PutUint64(values[i], n)
			return []rows.Row{{Key: keys[i], Value: values[i]}, {Key: "n" + num(n), Value: []byte(keys[i][1:])}}
		}
		c.Stored = func() { p.durable.set(given) }
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
	return scanList(ctx, p.rows, tablePrefs, rows.Range{Prefix: "n", After: "n" + num(since)}, max, func(r rows.Row) (engine.Change, error) {
		profile, ok, err := p.Get(ctx, string(r.Value))
		if err == nil && !ok {
			err = corrupt(r.Key)
		}
		return engine.Change{Version: numberAt(r.Key), Profile: profile}, err
	})
}

// Version implements users.ProfileStore. It returns the latest durable version.
func (p *Prefs) Version(ctx context.Context) (uint64, error) {
	return p.durable.get(func() (last uint64, err error) {
		err = p.rows.Scan(ctx, tablePrefs, rows.Range{Prefix: "n", Back: true}, func(r rows.Row) (bool, error) {
			last = numberAt(r.Key)
			return false, nil
		})
		return last, err
	})
}

// Scan implements users.ProfileStore. It ignores the numbers of the wanted parts and reads all
// profiles, because the rows are sorted by user id, and so the profiles of a part are not next to
// each other.
func (p *Prefs) Scan(ctx context.Context, _ []int, fn func(*engine.Profile) error) error {
	return p.scanAfter(ctx, "", func(pr *engine.Profile) (bool, error) { return true, fn(pr) })
}

// scanAfter calls fn with the profiles of all users whose ids are greater than user, in order,
// until fn returns false.
func (p *Prefs) scanAfter(ctx context.Context, user string, fn func(*engine.Profile) (bool, error)) error {
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
	err = p.scanAfter(ctx, after, func(pr *engine.Profile) (bool, error) {
		if len(pr.Suppressed) > 0 {
			out = append(out, *pr)
		}
		return len(out) < max, nil
	})
	return out, err
}
