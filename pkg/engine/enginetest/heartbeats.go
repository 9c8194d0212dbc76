package enginetest

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Heartbeats runs the suite of engine.Heartbeats. The function pass waits until the time of
// the engine has advanced by at least d.
func Heartbeats(t *testing.T, open Opener[engine.Heartbeats], pass func(d time.Duration)) {
	const ttl = 100 * time.Millisecond
	read := func(t T, s engine.Heartbeats, group string) []engine.Heartbeat {
		hs, _, err := s.Alive(bg, group, 0)
		must(t, err)
		return hs
	}
	beat := func(t T, s engine.Heartbeats, group, owner string, ttl time.Duration) (version int64) {
		return val(s.Beat(bg, group, owner, "", ttl))(t)
	}
	owners := func(t T, s engine.Heartbeats, group string) (out []string) {
		for _, h := range read(t, s, group) {
			out = append(out, h.Owner)
		}
		return out
	}
	t.Run("Beat makes owner a member of group for ttl from now", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			s, _ := open(t)
			beat(t, s, "g", "a", ttl)
			pass(ttl * 6 / 10)
			same(t, "within ttl", owners(t, s, "g"), []string{"a"})
			beat(t, s, "g", "a", ttl)
			pass(ttl * 6 / 10)
			same(t, "prolonged", owners(t, s, "g"), []string{"a"})
			pass(ttl)
			same(t, "after ttl", owners(t, s, "g"), []string(nil))
		})
	})
	t.Run("Alive returns the members of group, ordered by owner", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			s, _ := open(t)
			for _, owner := range []string{"b", "c", "a"} {
				beat(t, s, "g", owner, time.Hour)
			}
			beat(t, s, "other", "d", time.Hour)
			same(t, "members", owners(t, s, "g"), []string{"a", "b", "c"})
			same(t, "of no group", owners(t, s, "empty"), []string(nil))
		})
	})
	t.Run("Age is the time since the last beat", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			s, _ := open(t)
			beat(t, s, "g", "a", time.Hour)
			pass(ttl)
			if age := read(t, s, "g")[0].Age; age < ttl || age > ttl+time.Minute {
				t.Fatalf("the age is %v, %v after the beat", age, ttl)
			}
			beat(t, s, "g", "a", time.Hour)
			if age := read(t, s, "g")[0].Age; age < 0 || age >= ttl {
				t.Fatalf("the age is %v directly after a beat", age)
			}
		})
	})
	t.Run("Leave ends owner's membership before its ttl is over", func(t *testing.T) {
		s, _ := open(t)
		beat(t, s, "g", "a", time.Hour)
		beat(t, s, "g", "b", time.Hour)
		must(t, s.Leave(bg, "g", "a"))
		same(t, "members", owners(t, s, "g"), []string{"b"})
	})
	t.Run("a member has the value of its last beat", func(t *testing.T) {
		s, _ := open(t)
		for _, value := range []string{"", "12:13:x", "two\nlines", ""} {
			val(s.Beat(bg, "g", "a", value, time.Hour))(t)
			same(t, "value", read(t, s, "g")[0].Value, value)
		}
	})
	t.Run("the version changes whenever a member joins, leaves, expires or changes its value", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			s, _ := open(t)
			seen := map[int64]bool{0: true}
			last := int64(0)
			changed := func(what string, is bool, version int64) {
				t.Helper()
				if is && seen[version] || !is && version != last {
					t.Errorf("%s: the version is %d, it was %d before; the used versions are %v", what, version, last, seen)
				}
				seen[version], last = true, version
			}
			look := func() int64 {
				_, version, err := s.Alive(bg, "g", 0)
				must(t, err)
				return version
			}
			changed("of no members", true, look())
			changed("looked at again", false, look())
			changed("a joined", true, beat(t, s, "g", "a", time.Hour))
			changed("a beats", false, beat(t, s, "g", "a", time.Hour))
			changed("b joined", true, beat(t, s, "g", "b", time.Hour))
			beat(t, s, "other", "c", time.Hour)
			changed("c joined another group", false, beat(t, s, "g", "a", time.Hour))
			must(t, s.Leave(bg, "g", "b"))
			changed("b left", true, beat(t, s, "g", "a", time.Hour))
			must(t, s.Leave(bg, "g", "b"))
			changed("b left again", false, look())
			changed("a has a value", true, val(s.Beat(bg, "g", "a", "v", time.Hour))(t))
			changed("a has the same value", false, val(s.Beat(bg, "g", "a", "v", time.Hour))(t))
			changed("b joined for a while", true, beat(t, s, "g", "b", ttl))
			changed("b is there", false, val(s.Beat(bg, "g", "a", "v", time.Hour))(t))
			pass(2 * ttl)
			changed("b ran out of time", true, val(s.Beat(bg, "g", "a", "v", time.Hour))(t))
			must(t, s.Leave(bg, "g", "a"))
			changed("one left and another joined", true, beat(t, s, "g", "b", time.Hour))
			same(t, "members", owners(t, s, "g"), []string{"b"})
			beat(t, s, "g", "c", ttl)
			last = look()
			pass(2 * ttl)
			changed("all but one ran out of time, seen by a look", true, look())
		})
	})
	t.Run("if the group still has knownVersion, Alive returns no members", func(t *testing.T) {
		s, _ := open(t)
		known := beat(t, s, "g", "a", time.Hour)
		hs, version, err := s.Alive(bg, "g", known)
		must(t, err)
		same(t, "unchanged", len(hs), 0)
		same(t, "version", version, known)
		beat(t, s, "g", "b", time.Hour)
		hs, version, err = s.Alive(bg, "g", known)
		must(t, err)
		same(t, "changed", len(hs), 2)
		if version == known {
			t.Error("the version did not change although a member joined")
		}
	})
	t.Run("Leave changes nothing if owner is not a member", func(t *testing.T) {
		s, _ := open(t)
		beat(t, s, "g", "a", time.Hour)
		must(t, s.Leave(bg, "g", "nobody"))
		must(t, s.Leave(bg, "nothing", "a"))
		same(t, "members", owners(t, s, "g"), []string{"a"})
	})
}
