package enginetest

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

func profile(user string) engine.Profile {
	return engine.Profile{
		User:      user,
		Addresses: map[string][]string{"push": {"apns:t1", "fcm:t2"}, "sms": {"+4915112345678"}},
		OptOut:    []string{"marketing", "email/digest"}, QuietHours: &engine.QuietHours{From: "22:00", To: "07:30"},
		TimeZone: "Europe/Berlin", Suppressed: map[string]string{"apns:t0": "apns_unregistered"},
	}
}

// Prefs runs the suite of users.ProfileStore.
func Prefs[E users.ProfileStore](t *testing.T, open Opener[E]) {
	get := func(t T, s E, user string) (engine.Profile, bool) {
		t.Helper()
		p, ok, err := s.Get(bg, user)
		must(t, err)
		return p, ok
	}
	t.Run("Get returns the profile of a user; ok is false if there is none", func(t *testing.T) {
		s, reopen := open(t)
		p := profile("u")
		p.Version = val(s.Put(bg, p))(t)
		must(t, ignore(s.Put(bg, engine.Profile{User: "bare"})))
		if reopen != nil {
			s = reopen()
		}
		got, ok := get(t, s, "u")
		same(t, "ok", ok, true)
		same(t, "profile", got, p)
		got, ok = get(t, s, "u2")
		same(t, "none", ok, false)
		same(t, "zero", got, engine.Profile{})
	})
	t.Run("Put returns its version, higher than every version before it", func(t *testing.T) {
		s, reopen := open(t)
		last := uint64(0)
		for i := range 6 {
			p := profile("u" + strconv.Itoa(i%2))
			if i >= 2 {
				p.Version = last - 1 // the version of this user's last Put
			}
			v := val(s.Put(bg, p))(t)
			if v <= last {
				t.Fatalf("Put returned version %d after version %d", v, last)
			}
			if last = v; reopen != nil {
				s = reopen()
			}
		}
	})
	t.Run("If the stored version is not p.Version, notify.KindConflict and nothing is stored", func(t *testing.T) {
		s, _ := open(t)
		p := profile("u")
		p.Version = 5
		wantKind(t, ignore(s.Put(bg, p)), notify.KindConflict)
		p.Version = 0
		p.Version = val(s.Put(bg, p))(t)
		p.Version = val(s.Put(bg, p))(t)
		stale := profile("u")
		stale.Version, stale.TimeZone = p.Version-1, "UTC"
		wantKind(t, ignore(s.Put(bg, stale)), notify.KindConflict)
		stale.Version = 0 // as from a caller that has read no profile
		wantKind(t, ignore(s.Put(bg, stale)), notify.KindConflict)
		got, _ := get(t, s, "u")
		same(t, "profile", got, p)
		same(t, "version", val(s.Version(bg))(t), p.Version)
	})
	t.Run("of many concurrent puts of a user's first profile one wins", func(t *testing.T) {
		s, _ := open(t)
		var won atomic.Int32
		together(16, func(int) {
			if _, err := s.Put(bg, profile("u")); err == nil {
				won.Add(1)
			} else if notify.KindOf(err) != notify.KindConflict {
				t.Error(err)
			}
		})
		same(t, "winners", won.Load(), int32(1))
	})
	t.Run("of many concurrent puts of the same version one wins", func(t *testing.T) {
		s, _ := open(t)
		p := profile("u")
		p.Version = val(s.Put(bg, p))(t)
		var won atomic.Int32
		together(16, func(int) {
			if _, err := s.Put(bg, p); err == nil {
				won.Add(1)
			} else if notify.KindOf(err) != notify.KindConflict {
				t.Error(err)
			}
		})
		same(t, "winners", won.Load(), int32(1))
	})
	t.Run("PutMany stores profiles unconditionally", func(t *testing.T) {
		s, reopen := open(t)
		var ps []engine.Profile
		for i := range 2500 {
			p := profile("u" + strconv.Itoa(i%2400)) // if a user has two profiles, the later profile wins
			p.TimeZone, p.Version = strconv.Itoa(i), 12345
			ps = append(ps, p)
		}
		must(t, s.PutMany(bg, ps))
		must(t, s.PutMany(bg, nil))
		if reopen != nil {
			s = reopen()
		}
		for i, want := range map[int]int{0: 2400, 99: 2499, 100: 100, 2399: 2399} {
			got, _ := get(t, s, "u"+strconv.Itoa(i))
			same(t, "zone", got.TimeZone, strconv.Itoa(want))
		}
		changes := val(s.Changes(bg, 0, 10_000))(t)
		same(t, "changes", len(changes), 2400)
		same(t, "version", val(s.Version(bg))(t), changes[len(changes)-1].Version)
	})
	t.Run("Changes returns profiles changed after since, in version order, at most max", func(t *testing.T) {
		s, reopen := open(t)
		var versions []uint64
		for i := range 10 {
			p := profile("u" + strconv.Itoa(i%7))
			if i >= 7 {
				p.Version = versions[i-7]
			}
			versions = append(versions, val(s.Put(bg, p))(t))
		}
		if reopen != nil {
			s = reopen()
		}
		last := map[string]uint64{}
		for i, v := range versions {
			last["u"+strconv.Itoa(i%7)] = v
		}
		since, seen := uint64(0), map[string]bool{}
		for {
			page := val(s.Changes(bg, since, 3))(t)
			if len(page) == 0 {
				break
			}
			if len(page) > 3 {
				t.Fatalf("Changes returned %d changes, want at most 3", len(page))
			}
			for _, c := range page {
				if c.Version <= since || c.Profile.Version < c.Version {
					t.Fatalf("Changes returned version %d with a profile of version %d, after version %d", c.Version, c.Profile.Version, since)
				}
				since = c.Version
				seen[c.Profile.User] = c.Profile.Version == last[c.Profile.User]
			}
		}
		same(t, "last", since, versions[9])
		for u := range last {
			same(t, "at its latest version: "+u, seen[u], true)
		}
		same(t, "none", val(s.Changes(bg, 0, 0))(t), []engine.Change{})
	})
	t.Run("a reader that follows the changes during concurrent puts misses none", func(t *testing.T) {
		s, _ := open(t)
		const writers, each = 4, 40
		var left atomic.Int32
		left.Store(writers)
		seen := map[string]bool{}
		together(writers+1, func(i int) {
			if i < writers {
				for n := range each {
					if _, err := s.Put(bg, profile(strconv.Itoa(i*each+n))); err != nil {
						t.Error(err)
					}
				}
				left.Add(-1)
				return
			}
			since := uint64(0)
			for last := false; !last; {
				last = left.Load() == 0
				changes, err := s.Changes(bg, since, 1000)
				if err != nil {
					t.Error(err)
				}
				for _, c := range changes {
					seen[c.Profile.User] = true
					since = c.Version
				}
			}
		})
		same(t, "users", len(seen), writers*each)
	})
	t.Run("a scan and the changes since a version read before it miss none", func(t *testing.T) {
		s, _ := open(t)
		const writers, each = 4, 40
		together(writers+1, func(i int) {
			if i < writers {
				for n := range each {
					if _, err := s.Put(bg, profile(strconv.Itoa(i*each+n))); err != nil {
						t.Error(err)
					}
				}
				return
			}
			for range 20 {
				v, err := s.Version(bg)
				if err != nil {
					t.Error(err)
				}
				n, newer := 0, uint64(0)
				err = s.Scan(bg, nil, func(p *engine.Profile) error {
					if p.Version <= v {
						n++
					}
					newer = max(newer, p.Version)
					return nil
				})
				// Each user is put only once. So v profiles must have a version of v or less.
				if err != nil || uint64(n) != v {
					t.Errorf("Version is %d, but Scan returned %d profiles with versions up to it (the newest has version %d); the error is %v", v, n, newer, err)
				}
			}
		})
	})
	t.Run("Version returns the version of the latest change", func(t *testing.T) {
		s, reopen := open(t)
		same(t, "none", val(s.Version(bg))(t), uint64(0))
		v := val(s.Put(bg, profile("u")))(t)
		same(t, "one", val(s.Version(bg))(t), v)
		if reopen != nil {
			same(t, "after a restart", val(reopen().Version(bg))(t), v)
		}
	})
	t.Run("Scan calls fn with every profile", func(t *testing.T) {
		s, _ := open(t)
		var want []engine.Profile
		for i := range 20 {
			p := profile("u" + strconv.Itoa(100+i))
			p.Version = val(s.Put(bg, p))(t)
			want = append(want, p)
		}
		scan := func(fn func(*engine.Profile) error) error { return s.Scan(bg, nil, fn) }
		same(t, "profiles", sorted(collect(t, scan), byUser), want)
		checkStops(t, scan)
	})
	t.Run("Scan calls fn with every profile whose user is in one of the parts", func(t *testing.T) {
		s, _ := open(t)
		// The parts are the results of notify.Partition(user, engine.ProfileParts). The
		// test of Partition has the same users.
		parts := map[string]int{
			"a": 4, "ab": 14, "abc": 3, "abcd": 20, "ü": 2, "user-1": 32, "user-22": 15, "user-333": 32, "user0000017": 20, "0123456789abcdef0": 6, "日本語": 22, "abcde": 1, "abcdefg": 13, "zz": 6,
		}
		for user := range parts {
			must(t, ignore(s.Put(bg, profile(user))))
		}
		for user, part := range parts {
			found := false
			must(t, s.Scan(bg, []int{part, (part + 1) % engine.ProfileParts}, func(p *engine.Profile) error {
				found = found || p.User == user
				return nil
			}))
			same(t, user, found, true)
		}
		must(t, s.Scan(bg, []int{}, func(*engine.Profile) error { return nil }))
	})
	t.Run("GetMany returns the profiles of the users that have one", func(t *testing.T) {
		s, _ := open(t)
		var want []engine.Profile
		for _, user := range []string{"a", "ab", "ü"} {
			p := profile(user)
			p.Version = val(s.Put(bg, p))(t)
			want = append(want, p)
		}
		got := val(s.GetMany(bg, []string{"none", "ü", "a", "ab"}))(t)
		same(t, "profiles", sorted(got, byUser), want)
		same(t, "of none", len(val(s.GetMany(bg, nil))(t)), 0)
	})
	t.Run("Suppressing returns profiles that suppress an address, by user, from the first user after the given one on, at most max", func(t *testing.T) {
		s, _ := open(t)
		var want []engine.Profile
		for i := range 9 {
			p := profile("u" + strconv.Itoa(i))
			if i%3 == 0 {
				p.Suppressed = nil
			}
			p.Version = val(s.Put(bg, p))(t)
			if i%3 != 0 {
				want = append(want, p)
			}
		}
		same(t, "all", val(s.Suppressing(bg, "", 100))(t), want)
		same(t, "after one", val(s.Suppressing(bg, want[1].User, 3))(t), want[2:5])
		same(t, "none", len(val(s.Suppressing(bg, "", 0))(t)), 0)
		lifted := want[0]
		lifted.Suppressed = nil
		must(t, ignore(s.Put(bg, lifted)))
		same(t, "lifted", val(s.Suppressing(bg, "", 100))(t), want[1:])
	})
	t.Run("the caller may reuse what it passed in", func(t *testing.T) {
		s, _ := open(t)
		p := profile("u")
		val(s.Put(bg, p))(t)
		p.Addresses["push"][0], p.OptOut[0], p.QuietHours.From = "x", "x", "x"
		got, _ := get(t, s, "u")
		got.Version = 0
		same(t, "profile", got, profile("u"))
	})
	t.Run("a bad user is notify.KindInvalid", func(t *testing.T) {
		s, _ := open(t)
		wantKind(t, ignore(s.Put(bg, engine.Profile{})), notify.KindInvalid)
		wantKind(t, s.PutMany(bg, []engine.Profile{{User: string(make([]byte, 129))}}), notify.KindInvalid)
	})
	t.Run("model", func(t *testing.T) { prefsModel(t, open) })
}

func byUser(a, b engine.Profile) int { return cmp.Compare(a.User, b.User) }

func ignore[V any](_ V, err error) error { return err }

// prefsModel compares an engine with a model: a map.
func prefsModel[E users.ProfileStore](t *testing.T, open Opener[E]) {
	runModel(t, func(rt *rapid.T) map[string]func(*rapid.T) {
		s, reopen := open(rt)
		stored, last := map[string]engine.Profile{}, uint64(0)
		put := func(p engine.Profile) {
			last++
			p.Version = last
			stored[p.User] = p
		}
		gen := func(rt *rapid.T) engine.Profile {
			p := profile(rapid.SampledFrom([]string{"a", "ab", "b", "ä"}).Draw(rt, "user"))
			p.TimeZone = rapid.StringN(0, 4, 8).Draw(rt, "zone")
			if rapid.Bool().Draw(rt, "bare") {
				p = engine.Profile{User: p.User}
			}
			return p
		}
		actions := map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				p := gen(rt)
				p.Version = rapid.SampledFrom([]uint64{0, 0, 1, 2, 3, 4}).Draw(rt, "version")
				v, err := s.Put(bg, p)
				if p.Version != stored[p.User].Version {
					wantKind(rt, err, notify.KindConflict)
					return
				}
				must(rt, err)
				put(p)
				same(rt, "Put", v, last)
			},
			"putmany": func(rt *rapid.T) {
				ps := rapid.SliceOfNDistinct(rapid.Custom(gen), 0, 3, func(p engine.Profile) string { return p.User }).Draw(rt, "profiles")
				must(rt, s.PutMany(bg, ps))
				for _, p := range ps {
					put(p)
				}
			},
			"get": func(rt *rapid.T) {
				u := gen(rt).User
				want, wantOK := stored[u]
				got, ok, err := s.Get(bg, u)
				must(rt, err)
				same(rt, "Get", got, want)
				same(rt, "ok", ok, wantOK)
			},
			"changes": func(rt *rapid.T) {
				since, n := rapid.Uint64Range(0, 10).Draw(rt, "since"), rapid.IntRange(0, 4).Draw(rt, "max")
				var want []engine.Change
				for v := since + 1; v <= last && len(want) < n; v++ {
					for _, p := range stored {
						if p.Version == v {
							want = append(want, engine.Change{Version: v, Profile: p})
						}
					}
				}
				same(rt, "Changes", val(s.Changes(bg, since, n))(rt), want)
				same(rt, "Version", val(s.Version(bg))(rt), last)
			},
			"scan": func(rt *rapid.T) {
				all := collect(rt, func(fn func(*engine.Profile) error) error { return s.Scan(bg, nil, fn) })
				same(rt, "Scan", sorted(all, byUser), slices.SortedFunc(maps.Values(stored), byUser))
			},
		}
		if reopen != nil {
			actions["restart"] = func(rt *rapid.T) { sometimes(rt, func() { s = reopen() }) }
		}
		return actions
	})
}
