package cluster

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
)

// TestStandingIsShared: a process that calls no provider knows which lanes others
// hold back, why, and no longer than they do.
func TestStandingIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		beats, lane := memory.NewHeartbeats(), notify.LaneOf(notify.Email, notify.OTP)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{}, 3)
		start := func(owner string, lanes ...notify.Lane) (*LaneStops, *atomic.Pointer[server.LaneStop]) {
			s, held := NewStandings(beats, owner), &atomic.Pointer[server.LaneStop]{}
			go func() {
				defer func() { done <- struct{}{} }()
				_ = s.Share(ctx, lanes, func(l notify.Lane) (server.LaneStop, bool) {
					if st := held.Load(); st != nil && l == lane {
						return *st, true
					}
					return server.LaneStop{}, false
				})
			}()
			return s, held
		}
		operator, _ := start("operator")
		first, held := start("worker-1", lane)
		_, other := start("worker-2", notify.Lanes()...)
		want := func(s *LaneStops, account string) {
			t.Helper()
			time.Sleep(2 * standingBeat)
			synctest.Wait()
			if st, ok := s.Find(lane, time.Now()); ok != (account != "") || st.Account != account {
				t.Errorf("told of %+v (%v), want %q", st, ok, account)
			}
		}
		members := func(n int) {
			t.Helper()
			if all, _, err := beats.Alive(ctx, standingGroup, 0); err != nil || len(all) != n {
				t.Errorf("%d beat, want %d: %v", len(all), n, err)
			}
		}
		want(operator, "")
		members(0)
		held.Store(&server.LaneStop{Account: "one", Code: "http_403", Until: time.Now().Add(time.Minute)})
		want(operator, "one")
		want(first, "") // its own it knows by itself
		other.Store(&server.LaneStop{Account: "two", Until: time.Now().Add(30 * time.Second)})
		want(operator, "two") // it is tried first
		want(first, "two")
		other.Store(&server.LaneStop{Account: "three", Until: time.Now().Add(30 * time.Second)})
		want(operator, "three")
		members(2)
		if st, ok := operator.Find(notify.LaneOf(notify.SMS, notify.OTP), time.Now()); ok {
			t.Errorf("another lane is held back: %+v", st)
		}
		other.Store(nil)
		want(operator, "one")
		if st, ok := operator.Find(lane, time.Now().Add(time.Minute)); ok {
			t.Errorf("held back behind its time: %+v", st)
		}
		held.Store(nil)
		want(operator, "")
		members(0)
		// A process that was killed is forgotten, although its time is far away.
		killed := NewStandings(beats, "killed")
		killed.beat(ctx, false, []notify.Lane{lane}, func(notify.Lane) (server.LaneStop, bool) {
			return server.LaneStop{Account: "gone", Until: time.Now().Add(time.Hour)}, true
		})
		want(operator, "gone")
		time.Sleep(standingTTL)
		want(operator, "")
		held.Store(&server.LaneStop{Account: "one", Until: time.Now().Add(time.Hour)})
		want(operator, "one")
		stop()
		for range 3 {
			<-done
		}
		ctx = t.Context()
		members(0) // who stops takes it back
	})
}
