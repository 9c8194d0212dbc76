package enginetest

import (
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

// Holds runs the suite of store.Holds.
func Holds(t *testing.T, open Opener[*store.Holds]) {
	hold := func(user string, n int, wake int64) engine.Hold {
		id := notify.ID{Base: notify.Base{byte(n)}, Index: uint32(n), FanOut: n%2 == 1}
		return engine.Hold{Lane: "push", User: user, ID: id, Epoch: uint16(n / 4), Wake: wake}
	}
	get := func(t T, s *store.Holds, users ...string) [][]engine.Hold {
		return val(s.Get(bg, "push", users))(t)
	}
	t.Run("Update appends new holds, keeps the places of existing ones, and removes", func(t *testing.T) {
		s, reopen := open(t)
		must(t, s.Update(bg, nil, nil))
		must(t, s.Update(bg, []engine.Hold{hold("ann", 1, 10), hold("bob", 1, 5), hold("ann", 2, 20)}, nil))
		must(t, s.Update(bg, []engine.Hold{hold("ann", 3, 30), hold("ann", 1, 99)}, []engine.Hold{hold("ann", 7, 0), hold("cyd", 1, 0)}))
		want := [][]engine.Hold{{hold("ann", 1, 99), hold("ann", 2, 20), hold("ann", 3, 30)}, nil, {hold("bob", 1, 5)}}
		same(t, "holds", get(t, s, "ann", "cyd", "bob"), want)
		if reopen != nil {
			s = reopen()
			same(t, "holds after a restart", get(t, s, "ann", "cyd", "bob"), want)
		}
		must(t, s.Update(bg, []engine.Hold{hold("ann", 4, 40)}, []engine.Hold{hold("ann", 1, 0), hold("bob", 1, 0)}))
		want = [][]engine.Hold{{hold("ann", 2, 20), hold("ann", 3, 30), hold("ann", 4, 40)}, nil}
		same(t, "holds", get(t, s, "ann", "bob"), want)
		other := val(s.Get(bg, "sms", []string{"ann"}))(t)
		same(t, "holds of another lane", other, [][]engine.Hold{nil})
	})
	t.Run("model", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			s, reopen := open(t)
			model := map[string][]engine.Hold{} // by user
			draw := func(name string) (hs []engine.Hold) {
				for range rapid.IntRange(0, 4).Draw(t, name) {
					hs = append(hs, hold(strconv.Itoa(rapid.IntRange(0, 2).Draw(t, "user")), rapid.IntRange(0, 9).Draw(t, "n"), rapid.Int64().Draw(t, "wake")))
				}
				return hs
			}
			for range rapid.IntRange(1, 12).Draw(t, "updates") {
				add, remove := draw("add"), draw("remove")
				must(t, s.Update(bg, add, remove))
				for _, x := range remove {
					model[x.User] = slices.DeleteFunc(model[x.User], func(h engine.Hold) bool { return sameHold(h, x) })
				}
				for _, x := range add {
					if i := slices.IndexFunc(model[x.User], func(h engine.Hold) bool { return sameHold(h, x) }); i >= 0 {
						model[x.User][i] = x
					} else {
						model[x.User] = append(model[x.User], x)
					}
				}
				if reopen != nil && rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
					s = reopen()
				}
				for i, q := range get(t, s, "0", "1", "2") {
					same(t, "holds", q, model[strconv.Itoa(i)])
				}
			}
		})
	})
}

func sameHold(a, b engine.Hold) bool { return a.ID == b.ID && a.Epoch == b.Epoch }
