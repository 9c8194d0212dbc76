package worker

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

// If a receiver's profile is in the memory of another process only, the receiver is called
// according to the profile in the store, not as a user without settings.
func TestProfilesOfOtherSharesAreFetched(t *testing.T) {
	for _, lane := range []notify.Lane{pushLane, smsLane, emailLane, bulkMail} {
		t.Run(lane.String(), func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, lane)
				cat := notify.Transactional
				if lane.Bulk {
					cat = notify.Marketing
				}
				p.prefs.mu.Lock()
				p.prefs.strange = map[string]bool{"bob": true, "cyd": true}
				p.prefs.addresses["bob"] = []string{"addr-bob"}
				p.prefs.verdict = func(user string) users.Verdict {
					if user == "cyd" {
						return users.Verdict{Action: users.OptedOut}
					}
					return users.Verdict{}
				}
				p.prefs.mu.Unlock()
				e := p.envelope(cat, "ann", "bob", "cyd")
				p.send(e)
				pass(time.Minute)
				for i, want := range []notify.State{notify.Delivered, notify.Delivered, notify.Suppressed} {
					if s := p.state(&e, uint32(i)); s.State != want {
						t.Errorf("receiver %d: %+v, want %v", i, s, want)
					}
				}
				if p.prefs.fetched != 2 {
					t.Errorf("%d profiles were fetched, want those of two", p.prefs.fetched)
				}
			})
		})
	}
}

// While the store does not answer, bulk waits. In other lanes receivers without an address in
// the request wait. A code to an address in the request needs no profile.
func TestProfilesOfOtherSharesWhileTheStoreIsAway(t *testing.T) {
	for _, c := range []struct {
		lane notify.Lane
		cat  notify.Category
	}{{pushLane, notify.OTP}, {smsLane, notify.Transactional}, {bulkMail, notify.Marketing}} {
		t.Run(c.lane.String(), func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, c.lane)
				p.prefs.mu.Lock()
				p.prefs.strange, p.prefs.away = map[string]bool{"ann": true, "bob": true}, 1<<30
				p.prefs.addresses["bob"] = nil
				p.prefs.mu.Unlock()
				e := p.envelope(c.cat, "ann", "bob") // ann has an address in the request
				p.send(e)
				pass(time.Minute)
				ann, bob := p.state(&e, 0), p.state(&e, 1)
				if c.lane.Bulk {
					if p.prov.count() != 0 {
						t.Fatalf("%d calls without profiles", p.prov.count())
					}
				} else if ann.State != notify.Delivered || bob.State != notify.Deferred || bob.Code != codeAway {
					t.Fatalf("with an address %+v, without %+v", ann, bob)
				}
				p.prefs.mu.Lock()
				if p.prefs.away = 0; c.cat == notify.OTP && p.prefs.strange["ann"] == false {
					t.Error("the profile of a code's receiver was fetched")
				}
				p.prefs.addresses["bob"] = []string{"addr-bob"}
				p.prefs.mu.Unlock()
				pass(time.Minute)
				for i := range e.Count {
					if s := p.state(&e, i); s.State != notify.Delivered {
						t.Errorf("receiver %d: %+v", i, s)
					}
				}
			})
		})
	}
}
