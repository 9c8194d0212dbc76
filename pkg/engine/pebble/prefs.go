package pebble

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"sync/atomic"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Prefs returns the contract of profiles.
func (s *Store) Prefs() engine.Prefs { return &s.prefs }

// prefs keeps one row a user and one row a user's latest change, so that the
// change table is as long as there are users.
type prefs struct {
	s       *Store
	next    uint64        // version given to the latest change; under the committer's lock
	visible atomic.Uint64 // version up to which every change can be read
}

func (p *prefs) load(s *Store) (err error) {
	p.s = s
	p.next, err = s.lastUint(tChange)
	p.visible.Store(p.next)
	return err
}

func (p *prefs) Get(_ context.Context, user string) (engine.Profile, bool, error) {
	v, err := p.s.get(key(tProfile, user))
	if err != nil || v == nil {
		return engine.Profile{}, false, err
	}
	var pr engine.Profile
	if err := readProfile(user, v, &pr); err != nil {
		return engine.Profile{}, false, err
	}
	return pr, true, nil
}

func readProfile(user string, v []byte, p *engine.Profile) error {
	if len(v) < 8 || json.Unmarshal(v[8:], p) != nil {
		return corrupt("profile", []byte(user))
	}
	p.User, p.Version = user, binary.BigEndian.Uint64(v)
	return nil
}

// version of the stored profile, 0 when there is none.
func (p *prefs) version(user string) (uint64, error) {
	v, err := p.s.get(key(tProfile, user))
	if err != nil || v == nil {
		return 0, err
	}
	if len(v) < 8 {
		return 0, corrupt("profile", []byte(user))
	}
	return binary.BigEndian.Uint64(v), nil
}

func (p *prefs) Put(ctx context.Context, pr engine.Profile) (uint64, error) {
	if err := checkUser(pr.User); err != nil {
		return 0, err
	}
	unlock, err := p.s.locks.lock(ctx, string(key(tProfile, pr.User)))
	if err != nil {
		return 0, err
	}
	old, err := p.version(pr.User)
	if err == nil && pr.Version != old {
		err = &notify.Error{Kind: notify.KindConflict, Code: "profile_changed", Msg: "the profile was changed since it was read"}
	}
	if err != nil {
		unlock()
		return 0, err
	}
	return p.store(ctx, []engine.Profile{pr}, []uint64{old}, unlock)
}

// manyAtOnce bounds what PutMany holds locked and in one batch.
const manyAtOnce = 1000

func (p *prefs) PutMany(ctx context.Context, ps []engine.Profile) error {
	for len(ps) > 0 {
		n := min(len(ps), manyAtOnce)
		if err := p.putSome(ctx, ps[:n]); err != nil {
			return err
		}
		ps = ps[n:]
	}
	return nil
}

func (p *prefs) putSome(ctx context.Context, ps []engine.Profile) error {
	last := make(map[string]int, len(ps)) // a user named twice: the later one holds
	for i := range ps {
		if err := checkUser(ps[i].User); err != nil {
			return err
		}
		last[ps[i].User] = i
	}
	kept := make([]engine.Profile, 0, len(last))
	keys := make([]string, 0, len(last))
	for i := range ps {
		if last[ps[i].User] == i {
			kept = append(kept, ps[i])
			keys = append(keys, string(key(tProfile, ps[i].User)))
		}
	}
	unlock, err := p.s.locks.lock(ctx, keys...)
	if err != nil {
		return err
	}
	olds := make([]uint64, len(kept))
	for i := range kept {
		if olds[i], err = p.version(kept[i].User); err != nil {
			unlock()
			return err
		}
	}
	_, err = p.store(ctx, kept, olds, unlock)
	return err
}

// store writes profiles whose stored versions are olds and returns the last
// version given. Versions are given while the group fills: the order of
// versions is the order in which changes become visible, so nobody who has
// seen a version can miss an earlier one.
func (p *prefs) store(ctx context.Context, ps []engine.Profile, olds []uint64, unlock func()) (uint64, error) {
	values := make([][]byte, len(ps))
	for i := range ps {
		ps := ps[i]
		ps.Version = 0
		doc, err := json.Marshal(&ps)
		if err != nil {
			unlock()
			return 0, notify.Invalid("bad_profile", "", "the profile cannot be stored")
		}
		values[i] = append(make([]byte, 8, 8+len(doc)), doc...)
	}
	var given uint64
	err := p.s.commit.write(ctx, func(tx tx) {
		for i := range ps {
			p.next++
			binary.BigEndian.PutUint64(values[i], p.next)
			if olds[i] != 0 {
				tx.delete(uintKey(tChange, olds[i]))
			}
			tx.set(uintKey(tChange, p.next), []byte(ps[i].User))
			tx.set(key(tProfile, ps[i].User), values[i])
		}
		given = p.next
	}, func(err error) {
		if err == nil {
			p.visible.Store(max(given, p.visible.Load())) // one committer: no race
		}
		unlock()
	})
	if err != nil {
		return 0, err
	}
	return given, nil
}

func checkUser(user string) error {
	if user == "" || len(user) > notify.MaxUserID {
		return notify.Invalid("bad_user", "user_id", "a user id has 1 to 128 bytes")
	}
	return nil
}

func (p *prefs) Changes(ctx context.Context, since uint64, max int) (out []engine.Change, err error) {
	if max <= 0 || since == ^uint64(0) {
		return nil, nil
	}
	err = p.s.each(span{uintKey(tChange, since+1), []byte{tChange + 1}}, func(k, v []byte) (bool, error) {
		c := engine.Change{Version: binary.BigEndian.Uint64(k[1:])}
		var ok bool
		var err error
		if c.Profile, ok, err = p.Get(ctx, string(v)); err != nil {
			return false, err
		}
		if !ok {
			return false, corrupt("change without profile", k)
		}
		out = append(out, c)
		return len(out) < max, ctx.Err()
	})
	if err != nil {
		return nil, translate(err)
	}
	return out, nil
}

func (p *prefs) Version(context.Context) (uint64, error) { return p.visible.Load(), nil }

func (p *prefs) Scan(ctx context.Context, fn func(*engine.Profile) error) error {
	n := -1
	return p.s.each(under([]byte{tProfile}), func(k, v []byte) (bool, error) {
		if err := sometimes(ctx, &n); err != nil {
			return false, err
		}
		pr := new(engine.Profile)
		if err := readProfile(string(k[1:]), v, pr); err != nil {
			return false, err
		}
		return true, fn(pr)
	})
}
