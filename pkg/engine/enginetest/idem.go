package enginetest

import (
	"maps"
	"math"
	"strconv"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

func reservation(key string) engine.Reservation {
	return engine.Reservation{
		Key:         engine.IdemKey{Caller: "shop", Route: "POST /v1/notifications", Key: key},
		Fingerprint: [32]byte{1, 2, 31: 3}, Base: base(1000, 1), Accepted: 1000, Fire: 5000,
		Partitions: 18, BlockSize: 50_000, Version: 2,
		Owner: "intake-1", LeaseUntil: 31_000, Expires: 90_000,
	}
}

// readReservation returns the stored reservation of a key and true, or false if the key has
// no reservation. It does not change a stored reservation.
func readReservation(t T, s request.Idem, key engine.IdemKey) (engine.Reservation, bool) {
	t.Helper()
	probe := engine.Reservation{Key: key, Owner: "probe", Expires: 1 << 60}
	r, won, err := s.Reserve(bg, probe, -1<<60)
	must(t, err)
	if won {
		must(t, s.Release(bg, probe))
	}
	return r, !won
}

// Idem runs the suite of request.Idem.
func Idem[E request.Idem](t *testing.T, open Opener[E]) {
	t.Run("Reserve stores r if its key is free, and returns r and true", func(t *testing.T) {
		s, reopen := open(t)
		r := reservation("k")
		got, won, err := s.Reserve(bg, r, 1000)
		must(t, err)
		same(t, "reservation", got, r)
		same(t, "won", won, true)
		if reopen != nil {
			s = reopen()
		}
		got, ok := readReservation(t, s, r.Key)
		same(t, "stored", ok, true)
		same(t, "stored reservation", got, r)
	})
	t.Run("Reserve returns the stored reservation and false if its key is taken", func(t *testing.T) {
		s, _ := open(t)
		r, other := reservation("k"), reservation("k")
		other.Base, other.Owner = base(2000, 2), "intake-2"
		_, _, err := s.Reserve(bg, r, 1000)
		must(t, err)
		got, won, err := s.Reserve(bg, other, r.Expires-1)
		must(t, err)
		same(t, "won", won, false)
		same(t, "reservation", got, r)
	})
	t.Run("Reserve stores r if its key has expired (Expires <= now)", func(t *testing.T) {
		s, reopen := open(t)
		r, other := reservation("k"), reservation("k")
		other.Base, other.Expires = base(2000, 2), 200_000
		_, _, err := s.Reserve(bg, r, 1000)
		must(t, err)
		must(t, s.Finish(bg, r.Key, 201, []byte("old"), r.Expires))
		_, won, err := s.Reserve(bg, other, r.Expires)
		must(t, err)
		same(t, "won", won, true)
		if reopen != nil {
			s = reopen()
		}
		n := val(s.Purge(bg, r.Expires))(t)
		same(t, "purged", n, 0) // Purge must not use the expiry of the replaced reservation
		got, _ := readReservation(t, s, r.Key)
		same(t, "reservation", got, other)
	})
	t.Run("keys differ by caller, route and key", func(t *testing.T) {
		s, _ := open(t)
		for _, k := range []engine.IdemKey{{Caller: "ab", Route: "c", Key: "d"}, {Caller: "a", Route: "bc", Key: "d"}, {Caller: "a", Route: "b", Key: "cd"}, {}} {
			r := reservation("")
			r.Key = k
			_, won, err := s.Reserve(bg, r, 0)
			must(t, err)
			same(t, "won", won, true)
		}
	})
	t.Run("of many concurrent reservations of one key one wins, and the others return it", func(t *testing.T) {
		s, reopen := open(t)
		var won atomic.Int32
		var winner atomic.Value
		seen := make([]string, 32)
		together(len(seen), func(i int) {
			r := reservation("k")
			r.Owner = strconv.Itoa(i)
			got, ok, err := s.Reserve(bg, r, 1000)
			if err != nil {
				t.Error(err)
			}
			if ok {
				won.Add(1)
				winner.Store(r.Owner)
			}
			seen[i] = got.Owner
		})
		same(t, "winners", won.Load(), int32(1))
		if reopen != nil { // the owner that Reserve has returned must survive a loss of power
			got, _ := readReservation(t, reopen(), reservation("k").Key)
			same(t, "owner after a restart", got.Owner, winner.Load())
		}
		for _, owner := range seen {
			same(t, "owner", owner, winner.Load())
		}
	})
	t.Run("TakeOver makes owner the owner until leaseUntil", func(t *testing.T) {
		s, reopen := open(t)
		r := reservation("k")
		_, _, err := s.Reserve(bg, r, 1000)
		must(t, err)
		same(t, "taken", val(s.TakeOver(bg, r, "intake-2", 61_000))(t), true)
		if reopen != nil {
			s = reopen()
		}
		want := r
		want.Owner, want.LeaseUntil = "intake-2", 61_000
		got, _ := readReservation(t, s, r.Key)
		same(t, "reservation", got, want)
	})
	t.Run("TakeOver returns false if another process was faster, if the reservation is done, or if there is none", func(t *testing.T) {
		s, _ := open(t)
		r := reservation("k")
		same(t, "none", val(s.TakeOver(bg, r, "intake-2", 61_000))(t), false)
		_, _, err := s.Reserve(bg, r, 1000)
		must(t, err)
		var won atomic.Int32
		together(16, func(i int) {
			ok, err := s.TakeOver(bg, r, "intake-"+strconv.Itoa(i+10), 61_000)
			if err != nil {
				t.Error(err)
			}
			if ok {
				won.Add(1)
			}
		})
		same(t, "winners", won.Load(), int32(1))
		must(t, s.Finish(bg, r.Key, 201, nil, 90_000))
		now, _ := readReservation(t, s, r.Key)
		same(t, "done", val(s.TakeOver(bg, now, "late", 99_000))(t), false)
	})
	t.Run("Freeze stores the layout of a reservation that owner holds", func(t *testing.T) {
		s, reopen := open(t)
		r := reservation("k")
		r.Fire, r.Partitions, r.BlockSize, r.Version = 0, 0, 0, 0
		_, _, err := s.Reserve(bg, r, 1000)
		must(t, err)
		r.Fire, r.Partitions, r.BlockSize, r.Version = 7000, 6, 1000, 3
		changed := r
		changed.Expires, changed.Base = 1, base(9, 9) // Freeze stores only the layout
		must(t, s.Freeze(bg, changed))
		if reopen != nil {
			s = reopen()
		}
		got, _ := readReservation(t, s, r.Key)
		same(t, "reservation", got, r)
	})
	t.Run("Freeze returns notify.KindConflict if the owner does not hold the reservation any more", func(t *testing.T) {
		s, _ := open(t)
		r := reservation("k")
		wantKind(t, s.Freeze(bg, r), notify.KindConflict)
		_, _, err := s.Reserve(bg, r, 1000)
		must(t, err)
		val(s.TakeOver(bg, r, "intake-2", 61_000))(t)
		r.Partitions = 99
		wantKind(t, s.Freeze(bg, r), notify.KindConflict)
		got, _ := readReservation(t, s, r.Key)
		same(t, "partitions", got.Partitions, uint16(18))
	})
	t.Run("Finish stores the answer of a reservation", func(t *testing.T) {
		s, reopen := open(t)
		r := reservation("k")
		_, _, err := s.Reserve(bg, r, 1000)
		must(t, err)
		body := []byte(`{"notification_id":"ntf_1"}`)
		must(t, s.Finish(bg, r.Key, 201, body, 500_000))
		must(t, s.Finish(bg, r.Key, 201, body, 500_000)) // as after a lost answer
		want := r
		want.Done, want.Status, want.Body, want.Expires = true, 201, []byte(`{"notification_id":"ntf_1"}`), 500_000
		body[0] = 'x'
		if reopen != nil {
			s = reopen()
		}
		got, _ := readReservation(t, s, r.Key)
		same(t, "reservation", got, want)
		same(t, "purged", val(s.Purge(bg, 90_000))(t), 0) // the row is kept until the expiry that Finish set
		same(t, "purged later", val(s.Purge(bg, 500_000))(t), 1)
		wantKind(t, s.Finish(bg, r.Key, 201, nil, 1), notify.KindNotFound)
	})
	t.Run("Release removes a reservation, so that its key can be used again", func(t *testing.T) {
		s, reopen := open(t)
		r := reservation("k")
		_, _, err := s.Reserve(bg, r, 1000)
		must(t, err)
		must(t, s.Release(bg, r))
		must(t, s.Release(bg, r))
		if reopen != nil {
			s = reopen()
		}
		same(t, "purged", val(s.Purge(bg, 1<<60))(t), 0)
		_, won, err := s.Reserve(bg, r, 1000)
		must(t, err)
		same(t, "won", won, true)
		must(t, s.Finish(bg, r.Key, 201, nil, 90_000))
		wantKind(t, s.Release(bg, r), notify.KindConflict) // the request was answered
	})
	t.Run("Release returns notify.KindConflict and removes nothing if owner or lease differ", func(t *testing.T) {
		s, reopen := open(t)
		r := reservation("k")
		_, _, err := s.Reserve(bg, r, 1000)
		must(t, err)
		same(t, "taken", val(s.TakeOver(bg, r, "intake-2", 61_000))(t), true)
		taken := r
		taken.Owner, taken.LeaseUntil = "intake-2", 61_000
		for _, held := range []engine.Reservation{r, {Key: r.Key, Owner: r.Owner, LeaseUntil: 61_000}, {Key: r.Key, Owner: "intake-2", LeaseUntil: r.LeaseUntil}} {
			wantKind(t, s.Release(bg, held), notify.KindConflict)
		}
		if reopen != nil {
			s = reopen()
		}
		got, ok := readReservation(t, s, r.Key)
		same(t, "stored", ok, true)
		same(t, "reservation", got, taken)
		must(t, s.Release(bg, taken))
		_, ok = readReservation(t, s, r.Key)
		same(t, "released", ok, false)
	})
	t.Run("Purge removes keys with Expires <= now, all at the end of time, and returns how many", func(t *testing.T) {
		s, reopen := open(t)
		for i := range 2100 {
			r := reservation(strconv.Itoa(i))
			r.Expires = int64(i)
			_, _, err := s.Reserve(bg, r, -1)
			must(t, err)
			if i%100 == 99 && testing.Short() {
				break
			}
		}
		n := val(s.Purge(bg, 49))(t)
		same(t, "purged", n, 50)
		rest := val(s.Purge(bg, math.MaxInt64))(t)
		if rest < 50 {
			t.Fatalf("Purge removed %d keys, want at least 50", rest)
		}
		if reopen != nil {
			s = reopen()
		}
		same(t, "purged again", val(s.Purge(bg, 1<<60))(t), 0)
	})
	t.Run("model", func(t *testing.T) { idemModel(t, open) })
}

// idemModel compares an engine with a model: a map.
func idemModel[E request.Idem](t *testing.T, open Opener[E]) {
	runModel(t, func(rt *rapid.T) map[string]func(*rapid.T) {
		s, reopen := open(rt)
		stored := map[engine.IdemKey]engine.Reservation{}
		// held reports whether the reservation that is stored under r.Key is not done and
		// has the owner r.Owner.
		held := func(r *engine.Reservation) bool {
			old, ok := stored[r.Key]
			return ok && !old.Done && old.Owner == r.Owner
		}
		ms := rapid.Int64Range(0, 8)
		gen := func(rt *rapid.T) engine.Reservation {
			r := reservation(rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "key"))
			r.Owner = rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "owner")
			r.Expires, r.LeaseUntil = ms.Draw(rt, "expires"), ms.Draw(rt, "lease")
			r.Partitions, r.Fire = rapid.Uint16().Draw(rt, "partitions"), rapid.Int64().Draw(rt, "fire")
			return r
		}
		actions := map[string]func(*rapid.T){
			"reserve": func(rt *rapid.T) {
				r, now := gen(rt), ms.Draw(rt, "now")
				got, won, err := s.Reserve(bg, r, now)
				must(rt, err)
				old, ok := stored[r.Key]
				free := !ok || old.Expires <= now
				if free {
					stored[r.Key], old = r, r
				}
				same(rt, "won", won, free)
				same(rt, "Reserve", got, old)
			},
			"takeover": func(rt *rapid.T) {
				r, until := gen(rt), ms.Draw(rt, "until")
				old := stored[r.Key]
				want := held(&r) && old.LeaseUntil == r.LeaseUntil
				same(rt, "TakeOver", val(s.TakeOver(bg, r, "z", until))(rt), want)
				if want {
					old.Owner, old.LeaseUntil = "z", until
					stored[r.Key] = old
				}
			},
			"freeze": func(rt *rapid.T) {
				r := gen(rt)
				err := s.Freeze(bg, r)
				if !held(&r) {
					wantKind(rt, err, notify.KindConflict)
					return
				}
				must(rt, err)
				old := stored[r.Key]
				old.Fire, old.Partitions, old.BlockSize, old.Version = r.Fire, r.Partitions, r.BlockSize, r.Version
				stored[r.Key] = old
			},
			"finish": func(rt *rapid.T) {
				r, body := gen(rt), []byte(rapid.String().Draw(rt, "body"))
				if len(body) == 0 {
					body = nil
				}
				err := s.Finish(bg, r.Key, 201, body, r.Expires)
				old, ok := stored[r.Key]
				if !ok {
					wantKind(rt, err, notify.KindNotFound)
					return
				}
				must(rt, err)
				old.Done, old.Status, old.Body, old.Expires = true, 201, body, r.Expires
				stored[r.Key] = old
			},
			"release": func(rt *rapid.T) {
				r := gen(rt)
				err := s.Release(bg, r)
				if old, ok := stored[r.Key]; ok && (!held(&r) || old.LeaseUntil != r.LeaseUntil) {
					wantKind(rt, err, notify.KindConflict)
					return
				}
				must(rt, err)
				delete(stored, r.Key)
			},
			"purge": func(rt *rapid.T) {
				now, before := ms.Draw(rt, "now"), len(stored)
				maps.DeleteFunc(stored, func(_ engine.IdemKey, r engine.Reservation) bool { return r.Expires <= now })
				same(rt, "Purge", val(s.Purge(bg, now))(rt), before-len(stored))
			},
		}
		if reopen != nil {
			actions["restart"] = func(rt *rapid.T) { sometimes(rt, func() { s = reopen() }) }
		}
		return actions
	})
}
