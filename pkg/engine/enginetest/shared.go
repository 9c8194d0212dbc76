package enginetest

import (
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Lease runs the suite of engine.Lease. The function pass waits until the time of the
// engine has advanced by at least d.
func Lease(t *testing.T, open Opener[engine.Lease], pass func(d time.Duration)) {
	LeaseFor(t, open, pass, 100*time.Millisecond)
}

// LeaseFor does what Lease does, with leases of the given ttl. If the function pass waits
// in real time, the suite tolerates delays of a slow machine of up to a third of ttl.
func LeaseFor(t *testing.T, open Opener[engine.Lease], pass func(d time.Duration), ttl time.Duration) {
	t.Run("Acquire takes the lease for ttl if it is free or owner already holds it", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			s, _ := open(t)
			same(t, "free", val(s.Acquire(bg, "l", "a", ttl))(t), true)
			same(t, "already owner's", val(s.Acquire(bg, "l", "a", ttl))(t), true)
			same(t, "another's", val(s.Acquire(bg, "l", "b", ttl))(t), false)
			same(t, "another lease", val(s.Acquire(bg, "m", "b", ttl))(t), true)
			pass(ttl)
			same(t, "after ttl", val(s.Acquire(bg, "l", "b", ttl))(t), true)
		})
	})
	t.Run("of many concurrent calls of Acquire for a free lease one gets it", func(t *testing.T) {
		s, _ := open(t)
		var won atomic.Int32
		together(16, func(i int) {
			ok, err := s.Acquire(bg, "l", string(rune('a'+i)), time.Hour)
			if err != nil {
				t.Error(err)
			}
			if ok {
				won.Add(1)
			}
		})
		same(t, "owners", won.Load(), int32(1))
	})
	t.Run("Renew prolongs the lease if owner still holds it", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			s, _ := open(t)
			same(t, "free", val(s.Renew(bg, "l", "a", ttl))(t), false)
			val(s.Acquire(bg, "l", "a", ttl))(t)
			pass(ttl * 6 / 10)
			same(t, "owner's", val(s.Renew(bg, "l", "a", ttl))(t), true)
			same(t, "another's", val(s.Renew(bg, "l", "b", ttl))(t), false)
			pass(ttl * 6 / 10)
			same(t, "prolonged", val(s.Acquire(bg, "l", "b", ttl))(t), false)
			pass(ttl)
			same(t, "run out", val(s.Renew(bg, "l", "a", ttl))(t), false)
		})
	})
	t.Run("Release frees the lease if owner still holds it", func(t *testing.T) {
		s, _ := open(t)
		val(s.Acquire(bg, "l", "a", time.Hour))(t)
		must(t, s.Release(bg, "l", "b"))
		same(t, "another's", val(s.Acquire(bg, "l", "b", ttl))(t), false)
		must(t, s.Release(bg, "l", "a"))
		must(t, s.Release(bg, "l", "a"))
		same(t, "freed", val(s.Acquire(bg, "l", "b", ttl))(t), true)
	})
}

// inBubble runs fn in a bubble of synctest. The clock of the bubble jumps forward when all
// goroutines of the bubble sleep.
func inBubble(t *testing.T, fn func(t *testing.T)) { synctest.Test(t, fn) }

// Limits runs the suite of limit.Limits. The function pass waits until the time of the
// engine has advanced by at least d.
func Limits[E limit.Limits](t *testing.T, open Opener[E], pass func(d time.Duration)) {
	take := func(t *testing.T, s E, bucket string, n int, rate float64, burst int) (int, time.Duration) {
		t.Helper()
		got, wait, err := s.Take(bg, bucket, n, rate, burst)
		must(t, err)
		return got, wait
	}
	t.Run("Take takes up to n tokens from a bucket that is refilled at rate per second up to burst", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			s, _ := open(t)
			got, wait := take(t, s, "b", 3, 10, 5)
			same(t, "first", got, 3)
			same(t, "no wait", wait, time.Duration(0))
			got, _ = take(t, s, "b", 10, 10, 5)
			same(t, "the rest", got, 2)
			pass(300 * time.Millisecond)
			got, _ = take(t, s, "b", 10, 10, 5)
			same(t, "refilled", got, 3)
			pass(time.Hour)
			got, _ = take(t, s, "b", 10, 10, 5)
			same(t, "up to burst", got, 5)
			got, _ = take(t, s, "other", 10, 10, 5)
			same(t, "another bucket", got, 5)
		})
	})
	t.Run("if Take gets fewer than n, wait is the time until the next token", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			s, _ := open(t)
			for _, rate := range []float64{0.7, 3, 10, 1e6} {
				name := string(rune('a' + int(math.Log(rate*100))))
				got, wait := take(t, s, name, 2, rate, 1)
				for range 20 {
					if got != 1 || wait <= 0 || wait > time.Duration(float64(time.Second)/rate)+time.Millisecond {
						t.Fatalf("with a rate of %v, Take removed %d tokens and returned a wait of %v", rate, got, wait)
					}
					pass(wait)
					got, wait = take(t, s, name, 2, rate, 1)
				}
			}
		})
	})
	t.Run("concurrent calls of Take get no more tokens than the bucket has", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			s, _ := open(t)
			var sum atomic.Int32
			together(16, func(int) {
				got, _, err := s.Take(bg, "b", 5, 1, 33)
				if err != nil {
					t.Error(err)
				}
				sum.Add(int32(got))
			})
			same(t, "tokens", sum.Load(), int32(33))
		})
	})
	t.Run("a bucket without room is notify.KindInvalid", func(t *testing.T) {
		s, _ := open(t)
		_, _, err := s.Take(bg, "b", 1, 1, 0)
		wantKind(t, err, notify.KindInvalid)
	})
	t.Run("Block marks an account as blocked until a time; an earlier time changes nothing", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			s, _ := open(t)
			until := time.Now().Add(time.Minute).Truncate(time.Millisecond)
			must(t, s.Block(bg, "a", until))
			must(t, s.Block(bg, "a", until.Add(-time.Second)))
			blocked := func() []time.Time { return val(s.Blocked(bg, []string{"b", "a"}))(t) }
			got := blocked()
			if !got[0].IsZero() || !got[1].Equal(until) {
				t.Fatalf("blocked until %v, want never and %v", got, until)
			}
			must(t, s.Block(bg, "a", until.Add(time.Second)))
			if got := blocked(); !got[1].Equal(until.Add(time.Second)) {
				t.Fatalf("blocked until %v, want the later time", got)
			}
			pass(2 * time.Minute)
			if got := blocked(); !got[1].IsZero() {
				t.Fatalf("still blocked until %v", got)
			}
		})
	})
}
