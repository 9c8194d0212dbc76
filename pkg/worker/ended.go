package worker

import (
	"slices"

	"github.com/notifyd/notifyd/pkg/notify"
)

// endOf is how a receiver of a category ended, by the outcomes of its addresses; not ok:
// it goes on, or the failed feed tells of it. before says that an earlier attempt
// reached another address of it, of which this row says nothing.
func endOf(cat notify.Category, ex []notify.Exception, before bool) (r notify.EndedReceiver, ok bool) {
	x := best(ex)
	if x.State == notify.Deferred || x.State.InFailedFeed(cat) && !before {
		return r, false
	}
	return notify.EndedReceiver{Status: x.State.String(), Code: x.Code, Provider: x.Provider, Look: before}, true
}

// best returns the outcome of a receiver from the outcomes of its addresses: a deferred
// one while an address is still tried. Of several it returns the last.
func best(ex []notify.Exception) *notify.Exception {
	x := &ex[0]
	for i := range ex[1:] {
		if y := &ex[i+1]; notify.FoldAddresses([]notify.State{y.State, x.State}) == y.State {
			x = y
		}
	}
	return x
}

// reached reports whether an earlier attempt reached one of the addresses.
func reached(rec *notify.Receiver) bool {
	if len(rec.Address) == 0 || rec.Address[0] != 0 {
		return false
	}
	ts, _ := notify.Targets(nil, rec.Address)
	return slices.ContainsFunc(ts, func(t notify.Target) bool { return len(t.Address) == 0 })
}
