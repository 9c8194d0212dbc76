package worker

import (
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Providers are told which addresses came with the request, because those may be invented. A
// retry tells the same.
func TestGivenAddresses(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane)
		p.prefs.addresses["one"] = []string{"stored"}
		p.prefs.addresses["two"] = []string{"stored", "stored too"}
		calls := map[string][]bool{}
		p.prov.set(0, func(item *notify.Item) (notify.Result, bool) {
			at := string(item.User) + "/" + string(item.Address)
			calls[at] = append(calls[at], item.FromRequest)
			if len(calls[at]) < 3 {
				return notify.Result{Class: notify.ClassRetry, Code: "busy", Provider: "prov"}, false
			}
			return accepted, true
		})
		p.send(p.envelope(notify.Transactional, "one", "two", "zoe"))
		pass(time.Minute)
		for at, given := range map[string]bool{"one/stored": false, "two/stored": false, "two/stored too": false, "zoe/addr-zoe": true} {
			if got := calls[at]; !slices.Equal(got, []bool{given, given, given}) {
				t.Errorf("%s: given %v, want %v three times", at, got, given)
			}
		}
	})
}
