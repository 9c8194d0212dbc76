package enginetest

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Heartbeats runs the suite of engine.Heartbeats. pass lets time pass, at least
// d.
func Heartbeats(t *testing.T, open Opener[engine.Heartbeats], pass func(d time.Duration)) {
	const ttl = 100 * time.Millisecond
	owners := func(t T, s engine.Heartbeats, group string) (out []string) {
		for _, h := range val(s.Alive(bg, group))(t) {
			out = append(out, h.Owner)
		}
		return out
	}
	t.Run("Beat says that owner is alive; it is a member of group for ttl from now", func(t *testing.T) {
		inTime(t, func(t *testing.T) {
			s, _ := open(t)
			must(t, s.Beat(bg, "g", "a", ttl))
			pass(ttl * 6 / 10)
			same(t, "within ttl", owners(t, s, "g"), []string{"a"})
			must(t, s.Beat(bg, "g", "a", ttl))
			pass(ttl * 6 / 10)
			same(t, "prolonged", owners(t, s, "g"), []string{"a"})
			pass(ttl)
			same(t, "after ttl", owners(t, s, "g"), []string(nil))
		})
	})
	t.Run("Alive returns the members of group, ordered by owner", func(t *testing.T) {
		inTime(t, func(t *testing.T) {
			s, _ := open(t)
			for _, owner := range []string{"b", "c", "a"} {
				must(t, s.Beat(bg, "g", owner, time.Hour))
			}
			must(t, s.Beat(bg, "other", "d", time.Hour))
			same(t, "members", owners(t, s, "g"), []string{"a", "b", "c"})
			same(t, "of no group", owners(t, s, "empty"), []string(nil))
		})
	})
	t.Run("Age is since its last beat", func(t *testing.T) {
		inTime(t, func(t *testing.T) {
			s, _ := open(t)
			must(t, s.Beat(bg, "g", "a", time.Hour))
			pass(ttl)
			if age := val(s.Alive(bg, "g"))(t)[0].Age; age < ttl || age > ttl+time.Minute {
				t.Fatalf("age %v after %v", age, ttl)
			}
			must(t, s.Beat(bg, "g", "a", time.Hour))
			if age := val(s.Alive(bg, "g"))(t)[0].Age; age < 0 || age >= ttl {
				t.Fatalf("age %v after a beat", age)
			}
		})
	})
	t.Run("Leave ends owner's membership before its ttl is over", func(t *testing.T) {
		s, _ := open(t)
		must(t, s.Beat(bg, "g", "a", time.Hour))
		must(t, s.Beat(bg, "g", "b", time.Hour))
		must(t, s.Leave(bg, "g", "a"))
		same(t, "members", owners(t, s, "g"), []string{"b"})
	})
	t.Run("Leaving a group one is not in changes nothing", func(t *testing.T) {
		s, _ := open(t)
		must(t, s.Beat(bg, "g", "a", time.Hour))
		must(t, s.Leave(bg, "g", "nobody"))
		must(t, s.Leave(bg, "nothing", "a"))
		same(t, "members", owners(t, s, "g"), []string{"a"})
	})
}
