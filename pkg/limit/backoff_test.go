package limit

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBackoffDelay(t *testing.T) {
	t.Parallel()
	f := func(b Backoff, attempt int, retryAfter time.Duration, random float64, want time.Duration) {
		t.Helper()
		if got := b.Delay(attempt, retryAfter, func() float64 { return random }); got != want {
			t.Errorf("Delay(%d, %v) with %v = %v, want %v", attempt, retryAfter, random, got, want)
		}
	}
	def := Backoff{}
	f(def, 0, 0, 0, time.Second)
	f(def, 1, 0, 0, 2*time.Second)
	f(def, 2, 0, 0, 4*time.Second)
	f(def, 2, 0, 0.5, 4400*time.Millisecond)
	f(def, 5, 0, 0, 32*time.Second)
	f(def, 6, 0, 0, time.Minute)
	f(def, 1_000_000_000, 0, 0, time.Minute)
	f(def, -1, 0, 0, time.Second)
	f(def, 0, 30*time.Second, 0.5, 30*time.Second+100*time.Millisecond)
	f(def, 3, 2*time.Second, 0, 8*time.Second)
	f(def, 0, -time.Hour, 0, time.Second)
	f(def, 0, 1000*time.Hour, 0, time.Hour)
	f(Backoff{Base: time.Minute, Max: time.Second}, 0, 0, 0, time.Second)
	f(Backoff{Base: 3 * time.Second, Max: 10 * time.Second, MaxRetryAfter: 20 * time.Second, Jitter: 1}, 2, time.Minute, 0.5, 25*time.Second)
}

func TestBackoffStaysInRange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := Backoff{
			Base: time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "base")),
			Max:  time.Duration(rapid.Int64Range(1, int64(24*time.Hour)).Draw(t, "max")),
		}
		after := time.Duration(rapid.Int64().Draw(t, "retry after"))
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		got := b.Delay(rapid.IntRange(0, 200).Draw(t, "attempt"), after, rng.Float64)
		least := max(min(b.Base, b.Max), min(after, time.Hour))
		if most := max(b.Max, min(after, time.Hour)) + b.Max/5; got < least || got > most {
			t.Fatalf("%v, want %v to %v", got, least, most)
		}
	})
}
