package worker

import (
	"slices"

	"github.com/notifyd/notifyd/pkg/notify"
)

// endedReceiver returns how a receiver of a category ended, from the outcomes of its addresses. The
// result ok is false if the receiver is deferred, or if the feed of failures reports the receiver.
// The parameter reachedEarlier says whether an earlier attempt reached another address of the
// receiver. The outcomes in the parameter ex do not include that address.
func endedReceiver(cat notify.Category, ex []notify.Exception, reachedEarlier bool) (r notify.EndedReceiver, ok bool) {
	x := bestOutcome(ex)
	if x.State == notify.Deferred || x.State.InFailedFeed(cat) && !reachedEarlier {
		return r, false
	}
	return notify.EndedReceiver{Status: x.State.String(), Code: x.Code, Provider: x.Provider, Look: reachedEarlier}, true
}

// bestOutcome returns the outcome of a receiver from the outcomes of its addresses. If one address
// will be tried again, it returns that deferred outcome. If several outcomes are equally good, it
// returns the last of them.
func bestOutcome(ex []notify.Exception) *notify.Exception {
	x := &ex[0]
	for i := range ex[1:] {
		if y := &ex[i+1]; notify.FoldAddresses([]notify.State{y.State, x.State}) == y.State {
			x = y
		}
	}
	return x
}

// reachedBefore reports whether an earlier attempt reached one of the receiver's addresses.
func reachedBefore(rec *notify.Receiver) bool {
	if len(rec.Address) == 0 || rec.Address[0] != 0 {
		return false
	}
	ts, _ := notify.Targets(nil, rec.Address)
	return slices.ContainsFunc(ts, func(t notify.Target) bool { return len(t.Address) == 0 })
}
