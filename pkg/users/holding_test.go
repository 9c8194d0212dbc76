package users

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// people stores n users with an address on each channel.
func people(t testing.TB, st *store, n int) (names []string) {
	t.Helper()
	for i := range n {
		p := engine.Profile{User: fmt.Sprint("user-", i), Addresses: map[string][]string{"push": {"apns:" + fmt.Sprint(i)}, "sms": {fmt.Sprint("+49151", 100_000+i)}}}
		_, err := st.Put(t.Context(), p)
		must(t, err)
		names = append(names, p.User)
	}
	return names
}

// of returns the users of partition n among so many.
func of(names []string, partitions int, n int32) (out []string) {
	for _, u := range names {
		if notify.Partition([]byte(u), partitions) == n {
			out = append(out, u)
		}
	}
	return out
}

// sharing runs a Service of a process that shares the users with others.
func sharing(t *testing.T, st ProfileStore) *Service {
	return sharingAndSaying(t, st, nil)
}

// sharingAndSaying is sharing with a logger.
func sharingAndSaying(t *testing.T, st ProfileStore, log *slog.Logger) *Service {
	t.Helper()
	s, err := New(st, Config{Shares: true, Log: log})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		must(t, <-done)
	})
	synctest.Wait()
	return s
}

// soon is when the loader has done what it was asked.
func soon() {
	time.Sleep(2 * loadDelay)
	synctest.Wait()
}

func (s *Service) action(user string, ch notify.Channel) Action {
	return s.snap.Decide([]byte(user), ch, notify.Marketing, noon).Action
}

// optOut is what another process stores.
func optOut(t testing.TB, st *store, user string, out ...string) {
	t.Helper()
	p, _, err := st.Get(t.Context(), user)
	must(t, err)
	p.User, p.OptOut = user, out
	_, err = st.Put(t.Context(), p)
	must(t, err)
}

// TestAPartitionThatWasAddedHoldsNoUsers: a topic may get more partitions than the process
// found at its start. Which users are in them it does not know: their profiles are fetched.
func TestAPartitionThatWasAddedHoldsNoUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		names := people(t, st, 100)
		s := sharing(t, st)
		known, added := s.Hold(notify.Push, 4, 3), s.Hold(notify.Push, 4, 7)
		soon()
		if users := of(names, 4, 3); s.HeldUsers() != len(users) || !known.Loaded() || !added.Loaded() {
			t.Fatalf("%d users are in memory, want %d; loaded: %v, %v", s.HeldUsers(), len(users), known.Loaded(), added.Loaded())
		}
		user := of(names, 8, 7)[0]
		known.Release()
		added.Release()
		soon()
		if a := s.action(user, notify.Push); a != Unknown {
			t.Fatalf("%s is %v before its profile was fetched", user, a)
		}
		must(t, s.Fetch(t.Context(), notify.Push, [][]byte{[]byte(user)}))
		if a := s.action(user, notify.Push); a == Unknown {
			t.Fatalf("%s is unknown after its profile was fetched", user)
		}
	})
}

func TestAProcessHoldsTheUsersOfItsPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		names := people(t, st, 2000)
		s := sharing(t, st)
		held := func(want []string) {
			t.Helper()
			for _, u := range names {
				known := s.action(u, notify.Push) != Unknown
				if known != slices.Contains(want, u) {
					t.Fatalf("%s: known %v; want those of %d users", u, known, len(want))
				}
				if n := len(s.snap.Addresses(nil, []byte(u), notify.Push)); known && n != 1 || !known && n != 0 {
					t.Fatalf("%s: known %v, %d addresses", u, known, n)
				}
			}
			if n := s.HeldUsers(); n != len(want) {
				t.Fatalf("%d users are in memory, want %d", n, len(want))
			}
		}
		held(nil)
		first, second := s.Hold(notify.Push, 4, 1), s.Hold(notify.Push, 4, 1) // of two groups
		if first.Loaded() {
			t.Fatal("loaded before it was read")
		}
		soon()
		if !first.Loaded() || !second.Loaded() || s.LastLoad() < 0 {
			t.Fatal("not loaded")
		}
		held(of(names, 4, 1))
		if part := len(of(names, 4, 1)); st.scanned > part+part/2 {
			t.Errorf("%d profiles were read for %d", st.scanned, part)
		}
		if a := s.action(of(names, 4, 1)[0], notify.SMS); a != Unknown {
			t.Errorf("%v: by push alone no number of a phone is known", a)
		}
		first.Release()
		first.Release()
		soon()
		held(of(names, 4, 1))
		third := s.Hold(notify.Push, 6, 5)
		soon()
		both := of(names, 6, 5)
		for _, u := range of(names, 4, 1) {
			if !slices.Contains(both, u) {
				both = append(both, u)
			}
		}
		held(both)
		second.Release()
		soon()
		held(of(names, 6, 5))
		third.Release()
		soon()
		held(nil)
	})
}

// logged calls fn at each record.
type logged struct {
	slog.Handler
	fn func()
}

func (l logged) Enabled(context.Context, slog.Level) bool { return true }

func (l logged) Handle(context.Context, slog.Record) error { l.fn(); return nil }

// The first of many processes that start is assigned all partitions for a moment: it
// reads no more than it still has when it comes to read it, and holds that alone.
func TestPartsThatGoWhileTheyAreLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		names := people(t, st, 3600)
		var all []*Holding
		said := false
		s := sharingAndSaying(t, st, slog.New(logged{slog.DiscardHandler, func() { // before it looks again
			said = true
			for _, h := range all[1:] {
				if h.Loaded() {
					t.Errorf("partition %d counts as loaded and was not read", h.part.n)
				}
			}
		}}))
		for i := range int32(18) {
			all = append(all, s.Hold(notify.Push, 18, i))
		}
		st.whileScanning(func() { // of the first part of the store
			st.whileScanning(nil)
			for _, h := range all[1:] {
				h.Release()
			}
		})
		soon()
		own := of(names, 18, 0)
		if !said {
			t.Error("the log does not say that profiles were loaded")
		}
		if !all[0].Loaded() || s.HeldUsers() != len(own) {
			t.Errorf("loaded %v, %d users are held, want %d", all[0].Loaded(), s.HeldUsers(), len(own))
		}
		if st.scanned > 2*len(own) {
			t.Errorf("%d profiles were read for %d", st.scanned, len(own))
		}
		all[0].Release()
	})
}

// Without Shares all users are held, and a part is loaded as soon as it is asked for.
func TestAProcessAloneHoldsAllUsers(t *testing.T) {
	st := newStore()
	names := people(t, st, 20)
	s := loaded(t, st)
	h := s.Hold(notify.Push, 4, 1)
	for _, u := range names {
		if a := s.action(u, notify.Push); a != Send {
			t.Errorf("%s: %v", u, a)
		}
	}
	if !h.Loaded() || s.action("nobody", notify.Push) != Send {
		t.Error("something is unknown")
	}
	must(t, s.Fetch(t.Context(), notify.Push, [][]byte{[]byte("nobody")}))
	h.Release()
}

// What is stored while a part is read binds, although the rows that are read are of
// before: an opt-out, and an address that is taken away.
func TestAChangeWhileAPartIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		names := of(people(t, st, 200), 4, 2)
		s := sharing(t, st)
		ann, bob, cyd := names[0], names[1], names[2]
		st.whileScanning(func() { // the rows were read
			optOut(t, st, ann, "push")
			must(t, s.Follow(t.Context()))
			p := st.users[bob]
			p.Addresses = nil
			_, err := st.Put(t.Context(), p)
			must(t, err)
			must(t, s.Follow(t.Context()))
			_, err = s.Put(t.Context(), engine.Profile{User: cyd, OptOut: []string{"push"}}) // by this process
			must(t, err)
		})
		defer s.Hold(notify.Push, 4, 2).Release()
		soon()
		if s.action(ann, notify.Push) != OptedOut || s.action(cyd, notify.Push) != OptedOut {
			t.Error("an opt-out was overwritten by what was read before it")
		}
		if n := len(s.snap.Addresses(nil, []byte(bob), notify.Push)); n != 0 {
			t.Errorf("%d addresses of a user who has none any more", n)
		}
	})
}

// While a user's partition moves from one process to another, an opt-out binds within a
// second in both: the one that lets go does not know the user any more, or knows of it.
func TestOptOutBindsAcrossAMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		names := of(people(t, st, 400), 4, 3)
		a, b := sharing(t, st), sharing(t, st)
		from := a.Hold(notify.Push, 4, 3)
		soon()
		sends := func(s *Service, user string) bool {
			if s.action(user, notify.Push) == Unknown {
				must(t, s.Fetch(t.Context(), notify.Push, [][]byte{[]byte(user)}))
			}
			return s.action(user, notify.Push) == Send
		}
		next := 0
		step := func(what string, fn func()) {
			t.Helper()
			before, after := names[next], names[next+1]
			next += 2
			optOut(t, st, before, "push")
			fn()
			optOut(t, st, after, "push")
			time.Sleep(time.Second)
			synctest.Wait()
			for _, s := range []*Service{a, b} {
				if !s.Fresh(time.Now()) || sends(s, before) || sends(s, after) {
					t.Fatalf("%s: after a second an opt-out does not bind", what)
				}
			}
		}
		var to *Holding
		step("nothing moves", func() {})
		step("the owner lets go", from.Release)
		step("the next owner loads", func() {
			st.whileScanning(func() { optOut(t, st, names[20], "push") })
			to = b.Hold(notify.Push, 4, 3)
		})
		st.whileScanning(nil)
		step("it has loaded", func() {})
		if !to.Loaded() || sends(b, names[20]) || sends(a, names[20]) || !sends(a, names[21]) || !sends(b, names[21]) {
			t.Fatal("the move is not done")
		}
		step("it moves back", func() { to.Release(); from = a.Hold(notify.Push, 4, 3) })
		from.Release()
	})
}

// A user of another share is fetched by id, and followed from then on.
func TestStrangersAreFetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		names := people(t, st, 10)
		s := sharing(t, st)
		fetch := func(users ...string) error {
			var list [][]byte
			for _, u := range users {
				list = append(list, []byte(u))
			}
			return s.Fetch(t.Context(), notify.Push, list)
		}
		must(t, fetch(names[0], names[1], names[0], "nobody"))
		if s.action(names[0], notify.Push) != Send || s.action("nobody", notify.Push) != Send || s.action(names[2], notify.Push) != Unknown {
			t.Fatal("not those who were fetched are known")
		}
		optOut(t, st, names[0], "push")
		optOut(t, st, "nobody", "push")
		time.Sleep(time.Second)
		synctest.Wait()
		if s.action(names[0], notify.Push) != OptedOut || s.action("nobody", notify.Push) != OptedOut {
			t.Error("an opt-out of a user who was fetched does not bind")
		}
		// What is stored while a profile is read by id binds, too.
		st.fetching = func() {
			optOut(t, st, names[3], "push")
			must(t, s.Follow(t.Context()))
		}
		must(t, fetch(names[3]))
		if a := s.action(names[3], notify.Push); a != OptedOut {
			t.Errorf("%v: an opt-out was overwritten by what was read before it", a)
		}
		st.fetching = nil
		st.fail = func(op string) error {
			if op == "getmany" {
				return errors.New("away")
			}
			return nil
		}
		if fetch(names[4]) == nil || s.action(names[4], notify.Push) != Unknown {
			t.Error("a user is known who could not be read")
		}
		st.fail = nil
		must(t, fetch(names[4]))
		if a := s.action(names[4], notify.Push); a != Send {
			t.Errorf("%v", a)
		}
	})
}

// However many are fetched, some of them are held.
func TestStrangersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		names := people(t, st, 3*maxGuests)
		s := sharing(t, st)
		defer s.Hold(notify.Push, 100, 7).Release()
		soon()
		own := of(names, 100, 7)
		for list := range slices.Chunk(names, 500) {
			var users [][]byte
			for _, u := range list {
				users = append(users, []byte(u))
			}
			must(t, s.Fetch(t.Context(), notify.Push, users))
			for _, u := range list {
				if a := s.action(u, notify.Push); a != Send {
					t.Fatalf("%s was fetched and is %v", u, a)
				}
			}
		}
		if n := s.HeldUsers(); n > maxGuests+len(own) {
			t.Errorf("%d users are held", n)
		}
		for _, u := range own {
			if a := s.action(u, notify.Push); a != Send {
				t.Fatalf("%s of the own share is %v", u, a)
			}
		}
	})
}

// A profile that was fetched and had to go again before it was applied is not known.
func TestAStrangerThatHadToGoIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		ann := people(t, st, 1)[0]
		optOut(t, st, ann, "push")
		s := sharing(t, st)
		st.fetching = func() { // many others were fetched meanwhile
			s.applyMu.Lock()
			defer s.applyMu.Unlock()
			for i := range 2 * maxGuests {
				s.addGuest(fmt.Sprint("other-", i), true)
			}
		}
		must(t, s.Fetch(t.Context(), notify.Push, [][]byte{[]byte(ann)}))
		if a := s.action(ann, notify.Push); a != Unknown {
			t.Errorf("%v: sent to a user who opted out", a)
		}
	})
}

// While another part is read, a user of a part that was let go is not known: changes of
// that user are not kept any more.
func TestAPartThatIsLetGoIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		names := people(t, st, 200)
		ann := of(names, 4, 1)[0]
		s := sharing(t, st)
		gone := s.Hold(notify.Push, 4, 1)
		soon()
		read := false
		st.whileScanning(func() {
			read = true
			optOut(t, st, ann, "push")
			must(t, s.Follow(t.Context()))
			if a := s.action(ann, notify.Push); a == Send {
				t.Errorf("%v: sent to a user who opted out", a)
			}
		})
		gone.Release()
		defer s.Hold(notify.Push, 4, 2).Release()
		soon()
		if !read {
			t.Error("nothing was read")
		}
	})
}

// A store that lost changes is read anew, also what is held.
func TestAHeldPartIsReadAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		names := people(t, st, 100)
		s := sharing(t, st)
		h := s.Hold(notify.Push, 2, 0)
		soon()
		own := of(names, 2, 0)
		optOut(t, st, own[0], "push")
		time.Sleep(time.Second)
		synctest.Wait()
		lost := true
		st.fail = func(op string) error {
			switch {
			case op == "version":
				lost = false
			case op == "changes" && lost:
				return &notify.Error{Kind: notify.KindUnavailable, Code: engine.CodeRegressed}
			}
			return nil
		}
		st.mu.Lock()
		p := st.users[own[0]]
		p.OptOut = nil
		st.users[own[0]] = p // with the version it has, so no follower sees a change
		st.mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		if a := s.action(own[0], notify.Push); a != Send || !h.Loaded() || s.HeldUsers() != len(own) {
			t.Errorf("%v, loaded %v, %d users", a, h.Loaded(), s.HeldUsers())
		}
		h.Release()
	})
}

// Where users are shared, the list of dead addresses and what speaks against a user are
// asked of the store: a process may hold nothing.
func TestAProcessThatHoldsNothing(t *testing.T) {
	st := newStore()
	people(t, st, 30)
	s, err := New(st, Config{Shares: true})
	must(t, err)
	for _, u := range []string{"user-1", "user-2", "user-7"} {
		must(t, s.Suppress(t.Context(), u, notify.SMS, st.users[u].Addresses["sms"][0], "dead"))
	}
	optOut(t, st, "user-3", "sms")
	list, next, err := s.Suppressions(t.Context(), SuppressionQuery{Limit: 2})
	must(t, err)
	more, end, err := s.Suppressions(t.Context(), SuppressionQuery{Limit: 2, After: next})
	must(t, err)
	if list = append(list, more...); len(list) != 3 || list[0].User != "user-1" || list[2].User != "user-7" || end != nil {
		t.Errorf("%+v, then %q", list, end)
	}
	for user, want := range map[string]string{"user-1": "suppressed_address", "user-3": "opted_out", "user-4": "", "nobody": ""} {
		if got, err := s.Unreachable(t.Context(), user, notify.SMS, notify.Marketing); got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", user, got, err, want)
		}
	}
	lifted, still, err := s.LiftSuppression(t.Context(), "", st.users["user-2"].Addresses["sms"][0])
	if lifted != 1 || still || err != nil {
		t.Errorf("lifted %d, still %v, %v", lifted, still, err)
	}
	if n := s.HeldUsers(); n != 0 {
		t.Errorf("%d users are held", n)
	}
}

// Whatever is held, let go, fetched, changed and followed in whatever order: what is
// known of a user is what is stored, and the users of held parts are known.
func TestSharesAgainstAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		st := newStore()
		names := people(t, st, 60)
		s, err := New(st, Config{Shares: true})
		must(t, err)
		must(t, s.Load(t.Context()))
		var held []*Holding
		channel := func() notify.Channel {
			return rapid.SampledFrom([]notify.Channel{notify.Push, notify.SMS}).Draw(rt, "channel")
		}
		change := func() {
			u := rapid.SampledFrom(append(names, "nobody")).Draw(rt, "user")
			p := st.users[u]
			p.User, p.OptOut = u, nil
			if rapid.Bool().Draw(rt, "out") {
				p.OptOut = []string{"push", "sms"}
			}
			if rapid.Bool().Draw(rt, "moves") {
				p.Addresses = map[string][]string{"sms": {"+4915100"}, "push": {"fcm:zz"}}
			} else if rapid.Bool().Draw(rt, "goes") {
				p.Addresses = nil
			}
			if rapid.Bool().Draw(rt, "here") {
				p.Version = 0
				_, err := s.Put(t.Context(), p)
				must(t, err)
				return
			}
			_, err := st.Put(t.Context(), p)
			must(t, err)
		}
		meanwhile := func() {
			for range rapid.IntRange(0, 3).Draw(rt, "meanwhile") {
				change()
				if rapid.Bool().Draw(rt, "followed") {
					must(t, s.Follow(t.Context()))
				}
			}
		}
		st.fetching = meanwhile
		st.whileScanning(meanwhile)
		rt.Repeat(map[string]func(*rapid.T){
			"hold": func(*rapid.T) {
				n := rapid.SampledFrom([]int{1, 2, 3, 5}).Draw(rt, "partitions")
				held = append(held, s.Hold(channel(), n, int32(rapid.IntRange(0, n-1).Draw(rt, "n"))))
			},
			"release": func(rt *rapid.T) {
				if len(held) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(held)-1).Draw(rt, "which")
				held[i].Release()
				held = slices.Delete(held, i, i+1)
			},
			"load": func(*rapid.T) { must(t, s.loadWanted(t.Context())) },
			"fetch": func(*rapid.T) {
				must(t, s.Fetch(t.Context(), channel(), [][]byte{[]byte(rapid.SampledFrom(append(names, "nobody")).Draw(rt, "whom"))}))
			},
			"change": func(*rapid.T) { change() },
			"": func(rt *rapid.T) {
				must(t, s.Follow(t.Context()))
				for _, ch := range []notify.Channel{notify.Push, notify.SMS} {
					for _, u := range append(names, "nobody") {
						p, want := st.users[u], Send
						if len(p.OptOut) > 0 {
							want = OptedOut
						}
						got, n := s.action(u, ch), len(s.snap.Addresses(nil, []byte(u), ch))
						if got != Unknown && (got != want || n != len(p.Addresses[ch.String()])) {
							rt.Fatalf("%s on %v: %v with %d addresses, want %v with %v", u, ch, got, n, want, p.Addresses)
						}
						for _, h := range held {
							if got == Unknown && h.Loaded() && h.part.ch == ch && notify.Partition([]byte(u), h.part.partitions) == h.part.n {
								rt.Fatalf("%s on %v is unknown and of a part that is held", u, ch)
							}
						}
					}
				}
			},
		})
	})
}
