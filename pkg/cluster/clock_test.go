package cluster

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// set makes a clock's last reading say that it is that far ahead.
func (c *Clock) set(off time.Duration) {
	r := newReading(off)
	c.medianReading.Store(&r)
}

// The reference is the median of the servers that answer: one that is wrong stops no
// process, and a clock that most of them find wrong is wrong.
func TestClockIsComparedWithTheMedian(t *testing.T) {
	t.Parallel()
	const away = time.Duration(1 << 62)
	for name, c := range map[string]struct {
		ahead []time.Duration // of the servers
		want  time.Duration   // how far ours is ahead
	}{
		"all agree":                        {[]time.Duration{0, 0, 0}, 0},
		"one is 10 s ahead":                {[]time.Duration{10 * time.Second, 0, 0}, 0},
		"one is 10 s behind":               {[]time.Duration{0, -10 * time.Second, 0}, 0},
		"one is wrong, one away":           {[]time.Duration{10 * time.Second, away, 0}, 0},
		"ours is 2 s ahead":                {[]time.Duration{-2 * time.Second, -2 * time.Second, -2 * time.Second}, 2 * time.Second},
		"ours is, and one agrees by error": {[]time.Duration{-2 * time.Second, 0, -2 * time.Second}, 2 * time.Second},
		"ours is, and one alone answers":   {[]time.Duration{away, -2 * time.Second, away}, 2 * time.Second},
		"none answers: what was known":     {[]time.Duration{away, away, away}, 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var k Clock
			k.set(7 * time.Second)
			var servers []AskClock
			for _, ahead := range c.ahead {
				servers = append(servers, func(context.Context) (time.Duration, time.Duration, error) {
					if ahead == away {
						return 0, 0, errors.New("away")
					}
					return ahead, 0, nil
				})
			}
			k.Servers = servers
			k.Ask(t.Context())
			if got := k.Offset().Round(time.Millisecond); got != c.want {
				t.Errorf("off by %s, want %s", got, c.want)
			}
			e, refused := errors.AsType[*notify.Error](k.Err())
			if refused != (c.want > MaxClockOffset) || refused && (e.Kind != notify.KindUnavailable || e.Code != "clock" || e.RetryAfter <= 0) {
				t.Errorf("refuses with %v", k.Err())
			}
		})
	}
}

// A server that answers too slowly, or not at all, counts with its last answer: a wrong
// one that alone is quick does not decide.
func TestClockRemembersServers(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	right := func(context.Context) (time.Duration, time.Duration, error) {
		if slow.Load() {
			return 0, clockSlow + 1, nil
		}
		return 0, 0, nil
	}
	wrong := func(context.Context) (time.Duration, time.Duration, error) { return 10 * time.Second, 0, nil }
	k := Clock{Servers: []AskClock{right, wrong, right}}
	for range 2 {
		k.Ask(t.Context())
		if err := k.Err(); err != nil {
			t.Errorf("the others are slow: %t: %v", slow.Load(), err)
		}
		slow.Store(true)
	}
}

// A clock that is set is known to be off at once, and not when servers are asked again.
func TestClockThatIsSet(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		var k Clock
		k.set(0)
		k.medianReading.Load().wall = k.medianReading.Load().wall.Add(-by)
		if off := k.Offset().Round(time.Minute); off != by || k.Err() == nil {
			t.Errorf("set by %s: %s off, %v", by, off, k.Err())
		}
	}
}
