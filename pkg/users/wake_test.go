package users

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestWakeLooksAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		var looks atomic.Int32
		st.fail = func(op string) error {
			if op == "changes" {
				looks.Add(1)
			}
			return nil
		}
		a := loaded(t, st)
		b, err := New(st, Config{Poll: time.Hour})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		synctest.Wait()
		_, err = a.Put(ctx, engine.Profile{User: "ann", OptOut: []string{"push"}})
		must(t, err)
		before := looks.Load()
		for range 1000 {
			b.Wake()
		}
		<-time.After(2*wakeDelay + time.Millisecond)
		if v := decide(b, "ann", notify.Push, notify.Marketing, noon); v.Action != OptedOut {
			t.Error("woken, and the opt-out does not bind")
		}
		if n := looks.Load() - before; n > 2 {
			t.Errorf("a thousand wakes were %d looks", n)
		}
		b.Wake()
		cancel()
		must(t, <-done)
	})
}

// A standby that lacked the latest changes took over: what was seen of them is
// undone, and what it has instead binds.
func TestLostChangesAreReadAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		var regressed atomic.Bool
		st.fail = func(op string) error {
			switch {
			case op == "version":
				regressed.Store(false)
			case op == "changes" && regressed.Load():
				return &notify.Error{Kind: notify.KindUnavailable, Code: engine.CodeRegressed}
			}
			return nil
		}
		s := loaded(t, st)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		synctest.Wait()
		for _, user := range []string{"ann", "bob", "cid"} {
			_, err := s.Put(ctx, engine.Profile{User: user, OptOut: []string{"push"}})
			must(t, err)
		}
		st.mu.Lock() // bob's and cid's are lost, and numbers are given again
		delete(st.users, "bob")
		delete(st.users, "cid")
		st.users["dan"] = engine.Profile{User: "dan", OptOut: []string{"push"}, Version: 2}
		st.version = 2
		st.mu.Unlock()
		regressed.Store(true)
		<-time.After(time.Second)
		for user, want := range map[string]Action{"ann": OptedOut, "bob": Send, "cid": Send, "dan": OptedOut} {
			if v := decide(s, user, notify.Push, notify.Marketing, noon); v.Action != want {
				t.Errorf("%s: %v, want %v", user, v.Action, want)
			}
		}
		if !s.Fresh(time.Now()) {
			t.Error("not fresh after it was read anew")
		}
		// What the lost write of cid left must not hide the next one's.
		st.mu.Lock()
		st.version = 3
		st.users["cid"] = engine.Profile{User: "cid", OptOut: []string{"sms"}, Version: 3}
		st.mu.Unlock()
		<-time.After(time.Second)
		if v := decide(s, "cid", notify.SMS, notify.Marketing, noon); v.Action != OptedOut {
			t.Error("a change after the loss does not bind")
		}
		cancel()
		must(t, <-done)
	})
}
