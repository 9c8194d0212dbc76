package log

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A member counts as the owner of its partitions for 9/10 of the session. This time begins when the
// last heartbeat that was answered was sent. A caller that asks later waits for the next answered
// heartbeat, or for the end of the partition.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembership(10 * time.Second)
		ctx, end := context.WithCancel(context.WithValue(t.Context(), membershipKey{}, m))
		ask := func() chan error {
			answer := make(chan error, 1)
			go func() { answer <- AwaitOwnership(ctx) }()
			synctest.Wait()
			return answer
		}
		waits := ask()
		if len(waits) != 0 {
			t.Error("held before the group has said anything")
		}
		sent := time.Now()
		time.Sleep(2 * time.Second) // the answer takes that long
		m.confirm(sent)
		if err := <-waits; err != nil {
			t.Error(err)
		}
		time.Sleep(6999 * time.Millisecond)
		if answer := ask(); len(answer) != 1 {
			t.Error("not held within the session")
		}
		time.Sleep(time.Millisecond)
		waits = ask()
		if len(waits) != 0 {
			t.Error("held behind the session")
		}
		m.confirm(sent) // an answer that was under way while the process stood still
		synctest.Wait()
		if len(waits) != 0 {
			t.Error("an old answer was believed")
		}
		end()
		if <-waits == nil || AwaitOwnership(ctx) == nil {
			t.Error("held behind the end of the partition")
		}
		if err := AwaitOwnership(t.Context()); err != nil {
			t.Errorf("without a group: %v", err)
		}
	})
}

// The wall clock counts if the monotonic clock stood still, and the other way round.
func TestHeldByBothClocks(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		sent time.Time
		want bool
	}{
		"fresh":                   {now.Add(-time.Second), true},
		"a minute ago":            {now.Add(-time.Minute), false},
		"by the wall clock alone": {now.Round(0).Add(-time.Minute), false},
		"never":                   {time.Time{}, false},
	} {
		if got := (&confirmation{sent: c.sent}).provesOwnership(9*time.Second, now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
