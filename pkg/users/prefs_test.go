package users

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

var noon = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

func decide(s *Service, user string, ch notify.Channel, cat notify.Category, at time.Time) Verdict {
	return s.snap.Decide([]byte(user), ch, cat, at)
}

func addresses(s *Service, user string, ch notify.Channel) (list []string) {
	for i, t := range s.snap.Addresses(nil, []byte(user), ch) {
		if int(t.Addr) != i {
			panic(fmt.Sprintf("ordinal %d at %d", t.Addr, i))
		}
		list = append(list, string(t.Address))
	}
	return list
}

func TestValidate(t *testing.T) {
	t.Parallel()
	s := loaded(t, newStore())
	f := func(p engine.Profile, field, code string) {
		t.Helper()
		if p.User == "" {
			p.User = "ann"
		}
		_, err := s.Put(t.Context(), p)
		if field == "" {
			must(t, err)
			return
		}
		e, ok := errors.AsType[*notify.Error](err)
		if !ok || e.Kind != notify.KindInvalid || e.Field != field || e.Code != code {
			t.Errorf("%+v: %v, want %s in %s", p, err, code, field)
		}
	}
	addr := func(ch string, list ...string) engine.Profile {
		return engine.Profile{Addresses: map[string][]string{ch: list}}
	}
	quiet := func(from, to, zone string) engine.Profile {
		return engine.Profile{QuietHours: &engine.QuietHours{From: from, To: to}, TimeZone: zone}
	}
	f(engine.Profile{User: strings.Repeat("x", 129)}, "user_id", "bad_user")
	f(engine.Profile{User: "a\xff"}, "user_id", "bad_user")
	f(engine.Profile{User: strings.Repeat("x", 128)}, "", "")
	f(addr("push", "apns:0a1b", "fcm:x:y_z"), "", "")
	f(addr("push", "0a1b"), "addresses.push[0]", "bad_address")
	f(addr("push", "apns:"), "addresses.push[0]", "bad_address")
	f(addr("push", "apns:a b"), "addresses.push[0]", "bad_address")
	f(addr("sms", "+4915112345678"), "", "")
	f(addr("sms", "+4915112345678", "015112345678"), "addresses.sms[1]", "bad_address")
	f(addr("sms", "+0151123456"), "addresses.sms[0]", "bad_address")
	f(addr("sms", "+1234567890123456"), "addresses.sms[0]", "bad_address")
	f(addr("sms", "+123456"), "addresses.sms[0]", "bad_address")
	f(addr("sms", "+1234567", "+1234567"), "addresses.sms[1]", "duplicate_address")
	f(addr("email", "ann@example.org"), "", "")
	f(addr("email", "Ann <ann@example.org>"), "addresses.email[0]", "bad_address")
	f(addr("email", "ann"), "addresses.email[0]", "bad_address")
	f(addr("email", "ann@ex\r\nBcc: x@y"), "addresses.email[0]", "bad_address")
	f(addr("fax", "1"), "addresses.fax", "bad_channel")
	var many []string
	for i := range 21 {
		many = append(many, fmt.Sprintf("+1555000%02d", i))
	}
	f(addr("sms", many[:20]...), "", "")
	f(addr("sms", many...), "addresses.sms", "too_many_addresses")
	f(engine.Profile{OptOut: []string{"push", "marketing", "email/digest"}}, "", "")
	f(engine.Profile{OptOut: []string{"push", "otp"}}, "opt_out[1]", "cannot_mute")
	f(engine.Profile{OptOut: []string{"sms/alert"}}, "opt_out[0]", "cannot_mute")
	f(engine.Profile{OptOut: []string{"fax"}}, "opt_out[0]", "bad_opt_out")
	f(engine.Profile{OptOut: []string{"push/fax"}}, "opt_out[0]", "bad_opt_out")
	f(engine.Profile{OptOut: []string{"marketing/push"}}, "opt_out[0]", "bad_opt_out")
	f(quiet("22:00", "07:30", "Europe/Berlin"), "", "")
	f(quiet("22:00", "07:30", ""), "", "")
	f(quiet("24:00", "07:30", ""), "quiet_hours.from", "bad_quiet_hours")
	f(quiet("22:00", "7:30", ""), "quiet_hours.to", "bad_quiet_hours")
	f(quiet("2 :00", "07:30", ""), "quiet_hours.from", "bad_quiet_hours")
	f(quiet("22:00", "22:00", ""), "quiet_hours.to", "bad_quiet_hours")
	f(quiet("22:00", "07:30", "Europe/Atlantis"), "time_zone", "bad_time_zone")
	f(quiet("22:00", "07:30", "Local"), "time_zone", "bad_time_zone")
	f(quiet("22:00", "07:30", "../etc/passwd"), "time_zone", "bad_time_zone")
}

func TestPutBindsAtOnce(t *testing.T) {
	t.Parallel()
	s := loaded(t, newStore())
	for _, cat := range notify.Categories {
		if v := decide(s, "ann", notify.Push, cat, noon); v.Action != Send {
			t.Fatalf("default is %v", v)
		}
	}
	p, err := s.Put(t.Context(), engine.Profile{User: "ann", OptOut: []string{"sms", "email/digest"},
		Addresses: map[string][]string{"push": {"apns:1", "fcm:2"}, "sms": {"+4930123"}}})
	must(t, err)
	for _, ch := range notify.Channels {
		for _, cat := range notify.Categories {
			want := Send
			if !cat.Critical() && (ch == notify.SMS || ch == notify.Email && cat == notify.Digest) {
				want = OptedOut
			}
			if v := decide(s, "ann", ch, cat, noon); v.Action != want {
				t.Errorf("%v %v: %v, not %v", ch, cat, v.Action, want)
			}
		}
	}
	if got := addresses(s, "ann", notify.Push); !slices.Equal(got, []string{"apns:1", "fcm:2"}) {
		t.Fatal(got)
	}
	if got := s.snap.Addresses(nil, []byte("ann"), notify.SMS); len(got) != 1 || got[0].Of != 1 {
		t.Fatal(got)
	}
	if got := addresses(s, "ann", notify.Email); got != nil {
		t.Fatal(got)
	}
	stale := p
	p.OptOut = nil
	p, err = s.Put(t.Context(), p)
	must(t, err)
	if v := decide(s, "ann", notify.SMS, notify.Marketing, noon); v.Action != Send {
		t.Fatal("opting in again did not bind")
	}
	if _, err := s.Put(t.Context(), stale); notify.KindOf(err) != notify.KindConflict {
		t.Fatalf("an old version: %v", err)
	}
	if _, err := s.Get(t.Context(), "bob"); notify.KindOf(err) != notify.KindNotFound {
		t.Fatal(err)
	}
	got, err := s.Get(t.Context(), "ann")
	if err != nil || got.Version != p.Version {
		t.Fatal(got, err)
	}
}

// What requests can make us hold of dead addresses is bounded; the users' own
// are always taken.
func TestSuppressedIsBounded(t *testing.T) {
	t.Parallel()
	const most = 150
	st := newStore()
	s, err := New(st, Config{MaxSuppressed: most})
	must(t, err)
	must(t, s.Load(t.Context()))
	is := func(ch notify.Channel, a string) bool { return s.snap.Suppressed(ch, []byte(a)) }
	_, err = s.Put(t.Context(), engine.Profile{User: "ann", Addresses: map[string][]string{"push": {"fcm:own"}, "email": {"Ann@example.org"}}})
	must(t, err)
	if s.snap.Suppresses() {
		t.Error("nothing is suppressed")
	}
	for i := range 3 * maxForeign { // one user, made-up addresses
		must(t, s.Suppress(t.Context(), "ann", notify.Push, fmt.Sprintf("apns:%064x", i), "apns_bad_device_token"))
	}
	if n := s.snap.suppressed.len(); n != maxForeign || !s.snap.Suppresses() {
		t.Errorf("%d of one user are held", n)
	}
	for i := range 3 * most { // made-up users
		must(t, s.Suppress(t.Context(), fmt.Sprint("user-", i), notify.Push, fmt.Sprintf("apns:%064x", i%7), "apns_bad_device_token"))
	}
	again := loaded(t, st)
	if n, m := s.snap.suppressedCount.Load(), again.snap.suppressedCount.Load(); n != most || m != most {
		t.Errorf("%d are held, %d after a restart", n, m)
	}
	if n := len(st.users); n != 1+most-maxForeign {
		t.Errorf("%d profiles are stored", n)
	}
	must(t, s.Suppress(t.Context(), "ann", notify.Push, "fcm:own", "fcm_unregistered"))
	must(t, s.Suppress(t.Context(), "ann", notify.Email, "ann@example.ORG", "bounce"))
	if !is(notify.Push, "fcm:own") || !is(notify.Email, "ann@example.org") {
		t.Error("a user's own dead address is not held")
	}
	must(t, second(s.LiftSuppression(t.Context(), "ann", fmt.Sprintf("apns:%064x", 0))))
	must(t, second(s.LiftSuppression(t.Context(), "ann", fmt.Sprintf("apns:%064x", 1))))
	must(t, second(s.LiftSuppression(t.Context(), "ann", fmt.Sprintf("apns:%064x", 2))))
	if must(t, s.Suppress(t.Context(), "bob", notify.Push, "apns:0a", "x")); !is(notify.Push, "apns:0a") {
		t.Error("there is room again")
	}
}

// TestUnreachable: what would be suppressed if it were sent now, by the profile.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	s := loaded(t, newStore())
	for user, phones := range map[string][]string{"dead": {"+15550001"}, "half": {"+15550001", "+15550002"}, "well": {"+15550003"}, "none": nil} {
		_, err := s.Put(t.Context(), engine.Profile{User: user, Addresses: map[string][]string{"sms": phones}})
		must(t, err)
	}
	_, err := s.Put(t.Context(), engine.Profile{User: "muted", Addresses: map[string][]string{"sms": {"+15550004"}}, OptOut: []string{"sms"}})
	must(t, err)
	is := func(user string, cat notify.Category, want string) {
		t.Helper()
		if got, err := s.Unreachable(t.Context(), user, notify.SMS, cat); got != want || err != nil {
			t.Errorf("%s %s: %q, want %q", user, cat, got, want)
		}
	}
	is("dead", notify.OTP, "")
	must(t, s.Suppress(t.Context(), "somebody", notify.SMS, "+15550001", "twilio_21211"))
	is("dead", notify.OTP, "suppressed_address")
	is("half", notify.OTP, "")
	is("well", notify.OTP, "")
	is("none", notify.OTP, "")
	is("unheard of", notify.OTP, "")
	is("muted", notify.OTP, "")
	is("muted", notify.Marketing, "opted_out")
}

func TestSuppressIsGlobal(t *testing.T) {
	t.Parallel()
	st := newStore()
	s := loaded(t, st)
	is := func(s *Service, ch notify.Channel, a string) bool { return s.snap.Suppressed(ch, []byte(a)) }
	must(t, s.Suppress(t.Context(), "ann", notify.Push, "fcm:dead", "fcm_unregistered"))
	must(t, s.Suppress(t.Context(), "ann", notify.Push, "fcm:dead", "again"))
	must(t, s.Suppress(t.Context(), "bob", notify.Push, "fcm:dead", "fcm_unregistered"))
	must(t, s.Suppress(t.Context(), "ann", notify.Email, "Ann@Example.org", "bounce"))
	for _, a := range []string{"", "\xff", strings.Repeat("x", notify.MaxAddress+1)} {
		if err := s.Suppress(t.Context(), "ann", notify.Push, a, "x"); notify.KindOf(err) != notify.KindInvalid {
			t.Fatal(err)
		}
	}
	// An address that is not taken any more may still be in the log.
	if must(t, s.Suppress(t.Context(), "ann", notify.Push, "fcm:a%b", "x")); !is(s, notify.Push, "fcm:a%b") {
		t.Fatal("an old address")
	}
	check := func(s *Service) {
		t.Helper()
		if !is(s, notify.Push, "fcm:dead") || is(s, notify.Push, "fcm:Dead") || is(s, notify.Push, "fcm:alive") {
			t.Fatal("push")
		}
		if !is(s, notify.Email, "ann@example.org") || !is(s, notify.Email, "ANN@example.org") {
			t.Fatal("mailboxes are compared without regard to case")
		}
	}
	check(s)
	check(loaded(t, st)) // it was stored
	// What the user stores leaves it.
	_, err := s.Put(t.Context(), engine.Profile{User: "ann", Addresses: map[string][]string{"push": {"fcm:dead"}}})
	must(t, err)
	check(s)
	// ann's is lifted, bob's still holds.
	must(t, second(s.LiftSuppression(t.Context(), "ann", "fcm:dead")))
	check(s)
	must(t, second(s.LiftSuppression(t.Context(), "bob", "fcm:dead")))
	if is(s, notify.Push, "fcm:dead") || !is(s, notify.Email, "ann@example.org") {
		t.Fatal("lifting did not bind, or too much")
	}
}

// Whatever happens in whatever order, the snapshot is the store.
func TestSnapshotAgainstMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		st := newStore()
		a, b := loaded(t, st), loaded(t, st)
		model := map[string]engine.Profile{}
		user := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("u", rapid.IntRange(0, 30).Draw(t, "user")) })
		opt := rapid.SliceOfN(rapid.SampledFrom([]string{"push", "email/digest", "marketing", "sms/transactional"}), 0, 2)
		phones := rapid.SliceOfNDistinct(rapid.Map(rapid.IntRange(100, 110), func(n int) string { return fmt.Sprintf("+4930%d", n) }), 0, 3, rapid.ID[string])
		check := func(s *Service) {
			sup := map[string]bool{}
			for i := range 31 {
				name := fmt.Sprint("u", i)
				p := model[name]
				for a := range p.Suppressed {
					sup[a] = true
				}
				for _, ch := range notify.Channels {
					for _, cat := range notify.Categories {
						want := Send
						for _, o := range p.OptOut {
							if !cat.Critical() && (o == ch.String() || o == cat.String() || o == ch.String()+"/"+cat.String()) {
								want = OptedOut
							}
						}
						if v := decide(s, name, ch, cat, noon); v.Action != want {
							rt.Fatalf("%s %v %v: %v, want %v", name, ch, cat, v.Action, want)
						}
					}
					if got := addresses(s, name, ch); !slices.Equal(got, p.Addresses[ch.String()]) {
						rt.Fatalf("%s %v: %v, want %v", name, ch, got, p.Addresses[ch.String()])
					}
				}
			}
			for n := 100; n <= 110; n++ {
				ad := fmt.Sprintf("+4930%d", n)
				if got := s.snap.Suppressed(notify.SMS, []byte(ad)); got != sup[ad] {
					rt.Fatalf("%s suppressed: %v", ad, got)
				}
			}
		}
		put := func(s *Service) func(*rapid.T) {
			return func(rt *rapid.T) {
				p := engine.Profile{User: user.Draw(rt, "user"), OptOut: opt.Draw(rt, "opt"), Addresses: map[string][]string{"sms": phones.Draw(rt, "sms")}}
				p, err := s.Put(t.Context(), p)
				must(t, err)
				model[p.User] = p
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"put at a": put(a),
			"put at b": put(b),
			"suppress": func(rt *rapid.T) {
				u, n := user.Draw(rt, "user"), rapid.IntRange(100, 110).Draw(rt, "phone")
				must(t, a.Suppress(t.Context(), u, notify.SMS, fmt.Sprintf("+4930%d", n), "why"))
				model[u], _ = a.Get(t.Context(), u)
			},
			"lift": func(rt *rapid.T) {
				u, n := user.Draw(rt, "user"), rapid.IntRange(100, 110).Draw(rt, "phone")
				must(t, second(b.LiftSuppression(t.Context(), u, fmt.Sprintf("+4930%d", n))))
				if p, ok := model[u]; ok {
					p.Suppressed = maps.Clone(p.Suppressed)
					delete(p.Suppressed, fmt.Sprintf("+4930%d", n))
					model[u] = p
				}
			},
			"restart b": func(*rapid.T) { b = loaded(t, st) },
			"": func(*rapid.T) {
				must(t, a.Follow(t.Context()))
				must(t, b.Follow(t.Context()))
				check(a)
				check(b)
			},
		})
	})
}

// second is the error of a LiftSuppression.
func second(_ int, _ bool, err error) error { return err }

// raced is a store in which another process stores between a read and its write.
type raced struct {
	*store
	before func() // the next Put
}

func (s *raced) Put(ctx context.Context, p engine.Profile) (uint64, error) {
	if f := s.before; f != nil {
		s.before = nil
		f()
	}
	return s.store.Put(ctx, p)
}

// An API process stores a user's first profile, an opt-out, while a worker of another
// process stores a dead address of the same user: both stand.
func TestFirstWritesOfTwoProcesses(t *testing.T) {
	t.Parallel()
	st := newStore()
	slow := &raced{store: st}
	api, worker := loaded(t, st), loaded(t, slow)
	slow.before = func() {
		_, err := api.Put(t.Context(), engine.Profile{User: "ann", OptOut: []string{"marketing"}})
		must(t, err)
	}
	must(t, worker.Suppress(t.Context(), "ann", notify.SMS, "+493012345", "twilio_21211"))
	p, err := api.Get(t.Context(), "ann")
	must(t, err)
	if !slices.Equal(p.OptOut, []string{"marketing"}) || p.Suppressed["+493012345"] == "" {
		t.Errorf("%+v", p)
	}
	if v := decide(worker, "ann", notify.SMS, notify.Marketing, noon); v.Action != OptedOut {
		t.Errorf("the worker reads %v", v.Action)
	}
}

// Who told a provider to stop is opted out of marketing and digest on that channel, and
// of nothing else.
func TestUnsubscribe(t *testing.T) {
	t.Parallel()
	s := loaded(t, newStore())
	p, err := s.Put(t.Context(), engine.Profile{User: "ann", OptOut: []string{"push", "email/marketing"}, Addresses: map[string][]string{"email": {"ann@example.com"}}})
	must(t, err)
	for range 2 { // a receipt may come twice
		must(t, s.Unsubscribe(t.Context(), "ann", notify.Email))
	}
	got, err := s.Get(t.Context(), "ann")
	must(t, err)
	if !slices.Equal(got.OptOut, []string{"push", "email/marketing", "email/digest"}) || len(got.Suppressed) > 0 || got.Version != p.Version+1 {
		t.Errorf("%+v", got)
	}
	must(t, s.Unsubscribe(t.Context(), "bob", notify.SMS)) // a user without a profile
	for _, user := range []string{"ann", "bob"} {
		for _, ch := range []notify.Channel{notify.SMS, notify.Email} {
			for _, cat := range notify.Categories {
				want := Send
				if !cat.Critical() && cat != notify.Transactional && (user == "ann") == (ch == notify.Email) {
					want = OptedOut
				}
				if v := decide(s, user, ch, cat, noon); v.Action != want {
					t.Errorf("%s %v %v: %v, want %v", user, ch, cat, v.Action, want)
				}
			}
		}
	}
	if s.snap.Suppressed(notify.Email, []byte("ann@example.com")) {
		t.Error("the address is suppressed")
	}
	for user, ch := range map[string]notify.Channel{"": notify.Email, "ann": 0, strings.Repeat("x", 129): notify.Email} {
		if err := s.Unsubscribe(t.Context(), user, ch); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("%q %v: %v", user, ch, err)
		}
	}
}

// The list holds each entry once and in order, whatever the size of its pages and the
// filter; a lifted address is sent to again, and suppressed again when it is dead again.
func TestSuppressionList(t *testing.T) {
	t.Parallel()
	s := loaded(t, newStore())
	var want []Suppression
	for i := range 70 {
		user := fmt.Sprintf("u%02d", i)
		for _, e := range []Suppression{
			{user, notify.SMS, fmt.Sprintf("+49301%03d", i), "twilio_21211"}, {user, notify.Push, "apns:" + strings.Repeat("ab", 32), "apns_unregistered"},
			{user, notify.Email, fmt.Sprintf("u%d@example.com", i), "sendgrid_bounce"},
		} {
			must(t, s.Suppress(t.Context(), e.User, e.Channel, e.Address, e.Code))
			want = append(want, e)
		}
		_, err := s.Put(t.Context(), engine.Profile{User: "x" + user, OptOut: []string{"push"}}) // lists none
		must(t, err)
	}
	list := func(q SuppressionQuery) (all []Suppression) {
		t.Helper()
		for {
			page, next, err := s.Suppressions(t.Context(), q)
			must(t, err)
			if len(page) > q.Limit {
				t.Fatalf("%d entries in a page of %d", len(page), q.Limit)
			}
			if all = append(all, page...); next == nil {
				return all
			}
			q.After = next
		}
	}
	for _, limit := range []int{1, 2, 7, 1000} {
		for _, q := range []SuppressionQuery{
			{}, {User: "u07"}, {Channel: notify.Email}, {Code: "twilio_21211"}, {Address: "U9@Example.com"}, {Address: "apns:" + strings.Repeat("ab", 32)}, {User: "u07", Channel: notify.SMS, Code: "x"},
		} {
			q.Limit = limit
			var of []Suppression
			for _, e := range want {
				if (q.User == "" || e.User == q.User) && (q.Channel == 0 || e.Channel == q.Channel) && (q.Code == "" || e.Code == q.Code) && (q.Address == "" || strings.EqualFold(e.Address, q.Address)) {
					of = append(of, e)
				}
			}
			slices.SortFunc(of, func(a, b Suppression) int { return strings.Compare(a.User+a.Address, b.User+b.Address) })
			if got := list(q); !slices.Equal(got, of) {
				t.Fatalf("%+v: %d entries %v, want %d", q, len(got), got, len(of))
			}
		}
	}
	is := func(a string) bool { return s.snap.Suppressed(channelOf(a), []byte(a)) }
	lift := func(user, a string, n int, still bool) {
		t.Helper()
		if got, more, err := s.LiftSuppression(t.Context(), user, a); err != nil || got != n || more != still || is(a) != still {
			t.Errorf("%s of %q: lifted %d, still %v, %v; want %d, %v", a, user, got, more, err, n, still)
		}
	}
	shared := "apns:" + strings.Repeat("ab", 32)
	away := errors.New("the audit log is away")
	if n, _, err := s.LiftSuppression(notify.WithBeforeAct(t.Context(), func() error { return away }), "u03", "u3@example.com"); n != 0 || !errors.Is(err, away) || !is("u3@example.com") {
		t.Errorf("lifted %d without a record, %v", n, err)
	}
	lift("u03", "U3@example.COM", 1, false)
	lift("u03", "u3@example.com", 0, false)
	lift("u03", shared, 1, true) // the others' profiles list it
	lift("", shared, 69, false)
	lift("", "nobody@example.com", 0, false)
	if must(t, s.Suppress(t.Context(), "u03", notify.Email, "u3@example.com", "sendgrid_bounce")); !is("u3@example.com") {
		t.Error("dead again, and not suppressed again")
	}
	cold, err := New(newStore(), Config{})
	must(t, err)
	if _, _, err := cold.Suppressions(t.Context(), SuppressionQuery{Limit: 1}); notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("before the profiles are loaded: %v", err)
	}
}

// DecideMany answers each of many users by that user's own profile, over more users than
// it looks up at once.
func TestLookAnswersEachUser(t *testing.T) {
	t.Parallel()
	st := newStore()
	var users [][]byte
	for i := range 3*keysPerBlock + 7 {
		p := engine.Profile{User: fmt.Sprint("u", i), TimeZone: "UTC"}
		if i%5 != 4 { // others are unknown
			p.Addresses = map[string][]string{"sms": {fmt.Sprintf("+49301%06d", i)}, "email": {fmt.Sprintf("u%d@example.com", i)}}
			if i%2 == 0 {
				p.Addresses["sms"] = append(p.Addresses["sms"], fmt.Sprintf("+49302%06d", i))
			}
			if i%3 == 0 {
				p.OptOut = []string{"sms/marketing"}
			}
			if i%7 == 0 {
				p.QuietHours = &engine.QuietHours{From: "11:00", To: fmt.Sprintf("13:%02d", i%60)}
			}
			must(t, st.PutMany(t.Context(), []engine.Profile{p}))
		}
		users = append(users, []byte(p.User))
	}
	s := loaded(t, st)
	for _, cat := range notify.Categories {
		for _, ch := range notify.Channels {
			answers := make([]Answer, len(users))
			s.snap.DecideMany(answers, users, ch, cat, noon)
			for i, u := range users {
				targets, _ := answers[i].Targets(nil, nil)
				wantVerdict, wantTargets := s.snap.Decide(u, ch, cat, noon), s.snap.Addresses(nil, u, ch)
				if answers[i].Verdict != wantVerdict || !slices.EqualFunc(targets, wantTargets, func(a, b notify.Target) bool {
					return a.Addr == b.Addr && a.Of == b.Of && string(a.Address) == string(b.Address)
				}) {
					t.Fatalf("%s %v %v: %+v %v, want %+v %v", u, ch, cat, answers[i].Verdict, targets, wantVerdict, wantTargets)
				}
			}
		}
	}
}

// Many changes of one shard, packed over and over.
func TestTableAgainstMap(t *testing.T) {
	t.Parallel()
	var tb table
	var keys []string
	for i := 0; len(keys) < 300; i++ {
		if k := fmt.Sprint("k", i); hashKey([]byte(k))>>(64-shardBits) == 3 {
			keys = append(keys, k)
		}
	}
	model := map[string]string{}
	r := rand.New(rand.NewPCG(7, 7))
	for i := range 20_000 {
		k := keys[r.IntN(len(keys))]
		if r.IntN(3) == 0 {
			delete(model, k)
			tb.put(hashKey([]byte(k)), []byte(k), nil)
		} else {
			v := strings.Repeat("v", 1+r.IntN(200))
			model[k] = v
			tb.put(hashKey([]byte(k)), []byte(k), []byte(v))
		}
		if i%97 != 0 {
			continue
		}
		for _, k := range keys {
			v, ok := tb.get(hashKey([]byte(k)), []byte(k))
			if want, has := model[k]; ok != has || string(v) != want {
				t.Fatalf("%s: %q %v, want %q %v", k, v, ok, want, has)
			}
		}
		if tb.len() != len(model) {
			t.Fatalf("%d entries, want %d", tb.len(), len(model))
		}
	}
}

// Many keys found together are what each is found to be alone, among changes, among
// keys that are not there and entries of all sizes.
func TestFindAgainstGet(t *testing.T) {
	t.Parallel()
	for _, longest := range []int{1, 50, 300} {
		var tb table
		l := &loader{t: &tb}
		var keys [][]byte
		want := map[string]string{}
		add := func(k []byte, there bool) {
			keys = append(keys, k)
			if there {
				want[string(k)] = fmt.Sprintf("value of %s%s", k, strings.Repeat("v", len(keys)%longest))
				l.add(hashKey(k), k, []byte(want[string(k)]))
			}
		}
		for i := range 40_000 {
			add(fmt.Appendf(nil, "key-%d", i), i%3 != 0)
		}
		for i := range 300 {
			add(bytes.Repeat([]byte{'k'}, 100+i), i%3 != 0)
		}
		l.publishAll()
		for i := 0; i < len(keys); i += 11 {
			switch i % 4 {
			case 0:
				tb.put(hashKey(keys[i]), keys[i], nil)
				delete(want, string(keys[i]))
			case 1:
				tb.put(hashKey(keys[i]), keys[i], []byte("changed"))
				want[string(keys[i])] = "changed"
			}
		}
		rand.New(rand.NewPCG(3, 3)).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		var f finder
		for from := 0; from < len(keys); from += 50 {
			some := keys[from:min(from+50, len(keys))]
			tb.findBlock(&f, some)
			for i, k := range some {
				one, ok := tb.get(hashKey(k), k)
				if w, has := want[string(k)]; string(f.found[i]) != w || string(one) != w || has != ok || has != (f.found[i] != nil) {
					t.Fatalf("%s, values of up to %d more: %q together, %q alone, want %q", k, longest, f.found[i], one, w)
				}
			}
		}
		if len(want) < 20_000 || len(want) != tb.len() {
			t.Errorf("%d of %d", tb.len(), len(want))
		}
	}
}

// A state is packed from any number of items of any sizes, in the memory that was
// planned; keys of one hash, which no pilot tells apart, are among its changes.
func TestPack(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(11, 1))
	for n := range 600 {
		k := new(packer)
		var c sizeHistogram
		want := map[string]string{}
		largest := 1 << r.IntN(11)
		for i := range n {
			key, value := fmt.Appendf(nil, "key-%d", i), bytes.Repeat([]byte{byte('a' + i%26)}, r.IntN(largest))
			want[string(key)] = string(value)
			h := hashKey(key)
			if i%50 == 49 { // as the two before it
				h = k.items[i-1].hash
				if i%100 == 99 {
					k.items[i-2].hash = h
				}
			}
			k.items = append(k.items, packItem{h, key, value})
			c.add(entrySize(key, value))
		}
		p := c.plan()
		items := slices.Clone(k.items)
		s := k.pack(p, make([]uint16, p.pilots), make([]byte, p.cells()))
		if twins := n/50 + n/100; len(s.overlay) != twins {
			t.Fatalf("%d items: %d have no cell, want %d", n, len(s.overlay), twins)
		}
		if len(s.spill) > p.spill || len(s.spill)+len(s.cells) > 2*(cellUnit*(n+n/15+1)+c.bytes()) {
			t.Errorf("%d items of up to %d bytes, %d in all: cells of %d take %d, and %d are spilled where %d were planned", n, largest, c.bytes(), s.cellSize, len(s.cells), len(s.spill), p.spill)
		}
		if len(k.items) != 0 || n > 0 && k.items[:1][0].key != nil {
			t.Fatal("the packer keeps what it packed")
		}
		for _, it := range items {
			v, changed, ok := s.findChange(it.hash, it.key)
			if !changed {
				v, ok = s.readCell(s.cellOffset(it.hash), it.hash, it.key)
			}
			if !ok || string(v) != want[string(it.key)] {
				t.Fatalf("%d items: %s is %q %v, want %q", n, it.key, v, ok, want[string(it.key)])
			}
			if other := append(slices.Clone(it.key), '!'); s.cellCount > 0 {
				if v, ok := s.readCell(s.cellOffset(it.hash), it.hash, other); ok {
					t.Fatalf("%s, which is not there, is %q", other, v)
				}
			}
		}
		left := len(want)
		s.each(func(_ uint64, key, value []byte) {
			if want[string(key)] != string(value) {
				t.Fatalf("%d items: each visits %s as %q", n, key, value)
			}
			delete(want, string(key))
			left--
		})
		if len(want) != 0 || left != 0 {
			t.Fatalf("%d items: %d not visited, %d too often", n, len(want), -left)
		}
	}
}

// Keys of one hash are told apart, more of them than a shard has changes, and so is a
// key without a byte from a cell without an entry.
func TestKeysOfOneHash(t *testing.T) {
	t.Parallel()
	var tb table
	l := &loader{t: &tb}
	want := map[string]string{}
	var keys [][]byte
	for i := range 2 * overlayMax {
		k := fmt.Appendf(binary.LittleEndian.AppendUint64(nil, hashA), "twin%04d", i)
		if hashKey(k) != hashKey(append(binary.LittleEndian.AppendUint64(nil, hashA), "any of 8"...)) {
			t.Fatal("the keys are not of one hash")
		}
		keys = append(keys, k)
		if i < overlayMax+6 {
			want[string(k)] = fmt.Sprint("loaded ", i)
			l.add(hashKey(k), k, []byte(want[string(k)]))
		}
	}
	large := []byte("of the largest value") // in a shard of its own, nearly surely, and spilled
	l.add(hashKey(large), large, bytes.Repeat([]byte{'v'}, 2*largestCell))
	l.add(hashKey(nil), nil, []byte("nobody's"))
	l.publishAll()
	tb.put(hashKey(nil), nil, []byte("nobody's"))
	for i, k := range keys {
		switch i % 3 {
		case 0:
			tb.put(hashKey(k), k, nil)
			delete(want, string(k))
		case 1:
			want[string(k)] = fmt.Sprint("set ", i)
			tb.put(hashKey(k), k, []byte(want[string(k)]))
		}
		var f finder
		tb.findBlock(&f, keys[:keysPerBlock])
		for j, k := range keys {
			v, ok := tb.get(hashKey(k), k)
			if w, has := want[string(k)]; string(v) != w || ok != has || j < keysPerBlock && string(f.found[j]) != w {
				t.Fatalf("key %d after change %d: %q %v, want %q %v", j, i, v, ok, w, has)
			}
		}
	}
	if tb.len() != len(want)+1 {
		t.Errorf("%d entries, want %d", tb.len(), len(want)+1)
	}
	for i := range tb.shards {
		s := tb.shards[i].state.Load()
		if s == nil {
			continue
		}
		for at := 0; at < len(s.cells); at += int(s.cellSize) {
			for _, hash := range []uint64{0, hashKey(nil)} {
				if v, ok := s.readCell(at, hash, nil); ok || v != nil {
					t.Fatalf("a key without a byte is %q", v)
				}
			}
		}
	}
}

// A finder that was used before finds nothing where there are no cells.
func TestFindWithoutCells(t *testing.T) {
	t.Parallel()
	var full, changed table
	l := &loader{t: &full}
	keys := make([][]byte, keysPerBlock)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "key-%d", i)
		l.add(hashKey(keys[i]), keys[i], []byte("value"))
	}
	for i := 0; len(keys) < 2*keysPerBlock; i++ { // of the shards of the others
		k := fmt.Appendf(nil, "other-%d", i)
		if hashKey(k)>>(64-shardBits) == hashKey(keys[len(keys)-keysPerBlock])>>(64-shardBits) {
			keys = append(keys, k)
		}
	}
	for i := 0; i < keysPerBlock; i += 2 {
		changed.put(hashKey(keys[keysPerBlock+i]), keys[keysPerBlock+i], []byte("new"))
	}
	l.publishAll()
	var f finder
	full.findBlock(&f, keys[:keysPerBlock])
	changed.findBlock(&f, keys[:keysPerBlock])
	for i := range keysPerBlock {
		if f.found[i] != nil {
			t.Fatalf("key %d: %q", i, f.found[i])
		}
	}
}

func (c *sizeHistogram) bytes() (n int) {
	for i := range c {
		n += c[i].bytes
	}
	return n
}

// Every byte of a key is in its hash, and so is its length; keys that differ little
// are spread over the shards.
func TestHashKey(t *testing.T) {
	t.Parallel()
	for n := range 40 {
		key := make([]byte, n)
		h := hashKey(key)
		if hashKey(make([]byte, n+1)) == h {
			t.Errorf("%d zeros hash as one more do", n)
		}
		for i := range key {
			key[i] = 1
			if hashKey(key) == h {
				t.Errorf("byte %d of %d is not in the hash", i, n)
			}
			key[i] = 0
		}
	}
	var full [shards]int
	for i := range 100 * shards {
		full[hashKey(fmt.Appendf(nil, "u%08d", i))>>(64-shardBits)]++
	}
	if least, most := slices.Min(full[:]), slices.Max(full[:]); least < 40 || most > 180 {
		t.Errorf("shards of %d to %d, where 100 are expected", least, most)
	}
}

// A finder that is given back holds on to nothing of the table.
func TestFinderKeepsNothing(t *testing.T) {
	t.Parallel()
	var tb table
	keys := make([][]byte, keysPerBlock)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "key-%d", i)
		tb.put(hashKey(keys[i]), keys[i], []byte("value"))
	}
	f := new(finder)
	tb.findBlock(f, keys)
	if f.states[keysPerBlock-1] == nil || f.found[keysPerBlock-1] == nil {
		t.Fatal("nothing was found")
	}
	f.release(len(keys))
	for i := range keys {
		if f.states[i] != nil || f.found[i] != nil {
			t.Fatalf("key %d is still held", i)
		}
	}
}

// No reader sees what an answered opt-out forbids, while others change too.
func TestOptOutBindsWhileReadersLoop(t *testing.T) {
	t.Parallel()
	st := newStore()
	s := loaded(t, st)
	var answered [64]atomic.Bool
	var stop atomic.Bool
	var wg sync.WaitGroup
	var reads atomic.Int64
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				for i := range answered {
					before := answered[i].Load()
					v := decide(s, fmt.Sprint("u", i), notify.Push, notify.Marketing, noon)
					if before && v.Action != OptedOut {
						t.Errorf("u%d is called after its opt-out was answered", i)
						stop.Store(true)
						return
					}
					reads.Add(1)
				}
			}
		})
	}
	wg.Go(func() { // a follower that reads old changes meanwhile
		for !stop.Load() {
			must(t, s.Follow(context.Background()))
		}
	})
	for round := range 20 {
		for i := range answered {
			if round == 0 {
				_, err := s.Put(t.Context(), engine.Profile{User: fmt.Sprint("u", i)})
				must(t, err)
			}
			p := engine.Profile{User: fmt.Sprint("u", i), OptOut: []string{"marketing"}, TimeZone: "UTC",
				Addresses: map[string][]string{"sms": {fmt.Sprintf("+%d", 4930100+round)}}}
			_, err := s.Put(t.Context(), p)
			must(t, err)
			answered[i].Store(true)
		}
		for seen := reads.Load(); reads.Load() < seen+2*int64(len(answered)) && !stop.Load(); {
			runtime.Gosched() // the readers pass over all of it in every round
		}
	}
	stop.Store(true)
	wg.Wait()
}

// A change that was read before an opt-out and is applied after it must not
// undo it.
func TestLateChangeDoesNotUndo(t *testing.T) {
	t.Parallel()
	st := newStore()
	s := loaded(t, st)
	_, err := s.Put(t.Context(), engine.Profile{User: "ann"})
	must(t, err)
	old, err := st.Changes(t.Context(), 0, 10)
	must(t, err)
	_, err = s.Put(t.Context(), engine.Profile{User: "ann", OptOut: []string{"push"}})
	must(t, err)
	s.applyChanges(old)
	if v := decide(s, "ann", notify.Push, notify.Digest, noon); v.Action != OptedOut {
		t.Fatal("an old change undid the opt-out")
	}
	must(t, s.Follow(t.Context()))
	if v := decide(s, "ann", notify.Push, notify.Digest, noon); v.Action != OptedOut || len(s.ownVersions) != 0 {
		t.Fatal("the follower undid the opt-out, or remembers it for good")
	}
}

// A write of ours whose answer comes late must not undo one of another process
// that was stored after it and followed already.
func TestLateAnswerDoesNotUndo(t *testing.T) {
	t.Parallel()
	st := newStore()
	a, b := loaded(t, st), loaded(t, st)
	end := a.beginWrite("ann")
	ours := engine.Profile{User: "ann"}
	var err error
	ours.Version, err = st.Put(t.Context(), ours)
	must(t, err)
	_, err = b.Put(t.Context(), engine.Profile{User: "ann", OptOut: []string{"push"}})
	must(t, err)
	must(t, a.Follow(t.Context()))
	a.applyWrite(&ours)
	end()
	if v := decide(a, "ann", notify.Push, notify.Digest, noon); v.Action != OptedOut {
		t.Fatal("a late answer undid the opt-out")
	}
}

func TestSecondProcessFollowsWithinASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		var down atomic.Bool
		st.fail = func(op string) error {
			if down.Load() {
				return notify.Unavailable("prefs", 0, errors.New("down"))
			}
			return nil
		}
		a := loaded(t, st)
		b, err := New(st, Config{})
		must(t, err)
		if b.Fresh(time.Now()) {
			t.Error("fresh before it was loaded")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		synctest.Wait()
		for i := range 50 {
			user := fmt.Sprint("u", i)
			_, err := a.Put(ctx, engine.Profile{User: user, OptOut: []string{"push"}})
			must(t, err)
			answered := time.Now()
			for decide(b, user, notify.Push, notify.Marketing, noon).Action != OptedOut {
				if time.Since(answered) > time.Second {
					t.Fatal("not bound within a second")
				}
				<-time.After(10 * time.Millisecond)
			}
			if !b.Fresh(time.Now()) {
				t.Error("not fresh while it follows")
			}
			<-time.After(37 * time.Millisecond)
		}
		down.Store(true)
		<-time.After(1500 * time.Millisecond)
		if b.Fresh(time.Now()) || b.Age(time.Now()) < 1250*time.Millisecond {
			t.Errorf("the store is down for 1.5 s and the age is %v", b.Age(time.Now()))
		}
		if _, err := a.Put(ctx, engine.Profile{User: "x"}); notify.KindOf(err) != notify.KindUnavailable {
			t.Errorf("a write that was not stored was answered %v", err)
		}
		down.Store(false)
		<-time.After(300 * time.Millisecond)
		if !b.Fresh(time.Now()) {
			t.Error("not fresh after the store came back")
		}
		cancel()
		must(t, <-done)
	})
}
