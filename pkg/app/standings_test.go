package app

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/worker"
)

// TestStandingIsShared: a process that calls no provider knows which lanes others
// hold back, why, and no longer than they do.
func TestStandingIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		beats, lane := memory.NewHeartbeats(), notify.LaneOf(notify.Email, notify.OTP)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{}, 3)
		start := func(owner string, lanes ...notify.Lane) (*standings, *atomic.Pointer[server.Standing]) {
			s, held := &standings{beats: beats, owner: owner}, &atomic.Pointer[server.Standing]{}
			go func() {
				defer func() { done <- struct{}{} }()
				_ = s.share(ctx, lanes, func(l notify.Lane) (server.Standing, bool) {
					if st := held.Load(); st != nil && l == lane {
						return *st, true
					}
					return server.Standing{}, false
				})
			}()
			return s, held
		}
		operator, _ := start("operator")
		first, held := start("worker-1", lane)
		_, other := start("worker-2", notify.Lanes()...)
		want := func(s *standings, account string) {
			t.Helper()
			time.Sleep(2 * standingBeat)
			synctest.Wait()
			if st, ok := s.of(lane, time.Now()); ok != (account != "") || st.Account != account {
				t.Errorf("told of %+v (%v), want %q", st, ok, account)
			}
		}
		members := func(n int) {
			t.Helper()
			if all, err := beats.Alive(ctx, standingGroup); err != nil || len(all) != n {
				t.Errorf("%d beat, want %d: %v", len(all), n, err)
			}
		}
		want(operator, "")
		members(0)
		held.Store(&server.Standing{Account: "one", Code: "http_403", Until: time.Now().Add(time.Minute)})
		want(operator, "one")
		want(first, "") // its own it knows by itself
		other.Store(&server.Standing{Account: "two", Until: time.Now().Add(30 * time.Second)})
		want(operator, "two") // it is tried first
		want(first, "two")
		other.Store(&server.Standing{Account: "three", Until: time.Now().Add(30 * time.Second)})
		want(operator, "three")
		members(2)
		if st, ok := operator.of(notify.LaneOf(notify.SMS, notify.OTP), time.Now()); ok {
			t.Errorf("another lane is held back: %+v", st)
		}
		other.Store(nil)
		want(operator, "one")
		if st, ok := operator.of(lane, time.Now().Add(time.Minute)); ok {
			t.Errorf("held back behind its time: %+v", st)
		}
		held.Store(nil)
		want(operator, "")
		members(0)
		// A process that was killed is forgotten, although its time is far away.
		killed := &standings{beats: beats, owner: "killed"}
		killed.tell(ctx, "", []notify.Lane{lane}, func(notify.Lane) (server.Standing, bool) {
			return server.Standing{Account: "gone", Until: time.Now().Add(time.Hour)}, true
		})
		want(operator, "gone")
		time.Sleep(standingTTL)
		want(operator, "")
		held.Store(&server.Standing{Account: "one", Until: time.Now().Add(time.Hour)})
		want(operator, "one")
		stop()
		for range 3 {
			<-done
		}
		ctx = t.Context()
		members(0) // who stops takes it back
	})
}

// refusing is a provider that refuses our key.
type refusing struct{ worker.Provider }

func (refusing) Send(_ context.Context, call *notify.Call, report notify.Report) {
	report(0, len(call.Items), notify.Result{Class: notify.ClassConfig, Provider: "sendgrid", Code: "http_403"})
}

// TestStandingOfAnotherProcess: the circuit is open where the worker is. The
// operator's process knows it before a replay, and the API says it of what waits.
func TestStandingOfAnotherProcess(t *testing.T) {
	t.Parallel()
	cfg := sharing(t)
	s := newShared(t, &cfg)
	seam := seams{servers: s.open, provider: func(p worker.Provider) worker.Provider { return refusing{p} }, settle: 100 * time.Millisecond}
	front, operator := runAs(t, "api", cfg, seam), runAs(t, "operator", cfg, seam)
	runAs(t, "worker:email", cfg, seam)
	lane := notify.LaneOf(notify.Email, notify.OTP)
	if why := operator.stands(lane); why != "" {
		t.Fatalf("held back before any call: %s", why)
	}
	send := func() string {
		t.Helper()
		m := email("ann", "ann@example.com")
		m.Category = notify.OTP.String()
		sent, err := front.client.Send(t.Context(), m, "")
		if err != nil {
			t.Fatal(err)
		}
		return sent.NotificationID
	}
	front.becomes(t, send(), "DEFERRED")
	const why = "the circuit of sendgrid is open (http_403)"
	eventually(t, "the operator's process knows of the circuit", func() bool { return operator.stands(lane) == why })
	waits := send()
	eventually(t, "the API says what it waits for", func() bool {
		line, err := front.client.Timeline(t.Context(), waits)
		if err != nil {
			t.Fatal(err)
		}
		return strings.HasPrefix(line.Next, "It waits in notifications-email until ") && strings.Contains(line.Next, why)
	})
}
