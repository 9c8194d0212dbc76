package worker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// An operator's hold stops all calls to a route, uses no attempt, and does not affect other
// routes of the lane. When it ends, receivers that wait in memory are called at once.
func TestHeldRoute(t *testing.T) {
	in(t, func(t *testing.T) {
		two := Routes{Names: []string{"apns", "fcm"}, Of: func(a []byte) int {
			if string(a) == "addr-ann" {
				return 0
			}
			return 1
		}}
		r := newRig(t, pushLane, func(c *Config) { c.Routes = two })
		health := r.w.cfg.Health
		if !health.Hold("fcm", time.Now()) || health.Hold("fcm", time.Now()) {
			t.Error("a hold is not told from a repeat")
		}
		e := r.envelope(notify.Transactional, "ann", "bob")
		r.feed(e)
		synctest.Wait()
		if n := r.prov.count(); n["ann"] != 1 || n["bob"] != 0 {
			t.Errorf("calls %v, want one for ann", n)
		}
		parked := r.parked.take()
		if s := r.state(&e, 1); s.State != notify.Deferred || s.Attempt != 0 || len(parked) != 1 || time.UnixMilli(parked[0].FireAt).After(time.Now().Add(heldLook+time.Second)) {
			t.Errorf("bob: %+v, %d timers", s, len(parked))
		}
		health.Hold("fcm", time.Time{})
		r.feed(decode(t, parked[0].Payload))
		synctest.Wait()
		if s := r.state(&e, 1); s.State != notify.Delivered {
			t.Errorf("bob after the hold: %+v", s)
		}

		// If no other route works, the lane stops and says why.
		health.Hold("apns", time.Now())
		health.Hold("fcm", time.Now())
		alone := r.envelope(notify.Transactional, "ann")
		r.feed(alone)
		time.Sleep(time.Hour) // of the bubble
		if c, ok := health.StoppedBy(&two, time.Now()); !ok || c.Code != codeHeld || !c.Held || c.State != "open" {
			t.Errorf("it stands for %+v, %v", c, ok)
		}
		if n := r.prov.count(); n["ann"] != 1 {
			t.Errorf("%d calls through held routes", n["ann"]-1)
		}
		health.Hold("apns", time.Time{})
		synctest.Wait()
		if s := r.state(&alone, 0); s.State != notify.Delivered {
			t.Errorf("after the hold: %+v", s)
		}
	})
}
