package console

import (
	"errors"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/notifyd/notifyd/pkg/notify"
)

// clock is a page whose time the test sets.
type clock struct {
	*page
	now time.Time
}

func clocked(t *testing.T, f *fake) *clock {
	c := &clock{now: noon}
	c.page = open(t, f, 80, 24, func(o *Options) { o.Now = func() time.Time { return c.now } })
	return c
}

// pass lets time go by as the page sees it: in ticks.
func (c *clock) pass(d time.Duration) {
	c.t.Helper()
	for range d / (250 * time.Millisecond) {
		c.now = c.now.Add(250 * time.Millisecond)
		c.model.now = c.now
		c.run(c.poll())
	}
}

// TestAtMostOnceASecond: no panel asks more often, and those not to be seen do
// not ask at all, or seldom.
func TestAtMostOnceASecond(t *testing.T) {
	t.Parallel()
	f := newFake()
	c := clocked(t, f)
	count := func(seconds int) map[string]int {
		before := map[string]int{}
		for k, n := range f.asked {
			before[k] = n
		}
		c.pass(time.Duration(seconds) * time.Second)
		for k, n := range f.asked {
			before[k] = n - before[k]
		}
		return before
	}
	got := count(60)
	for k, most := range map[string]int{"rates": 60, "lag": 60, "circuits": 60, "jobs": 60, "doctor": 12, "top": 12, "forecast": 6, "letters": 0, "schedules": 0} {
		if got[k] > most || got[k] < most-2 {
			t.Errorf("overview: %s asked %d times in a minute, want %d", k, got[k], most)
		}
	}
	c.press("4")
	got = count(60)
	for k, most := range map[string]int{"rates": 0, "lag": 0, "circuits": 60, "jobs": 6, "top": 4} {
		if got[k] > most+1 || got[k] < most-1 {
			t.Errorf("circuits: %s asked %d times in a minute, want %d", k, got[k], most)
		}
	}
	c.press("p")
	for k, n := range count(60) {
		if n > 0 {
			t.Errorf("stopped: %s asked %d times", k, n)
		}
	}
	c.shows("paused: the page shows old data; p continues")
	if n := f.times("circuits"); true {
		c.press("r")
		if f.times("circuits") != n+1 {
			t.Error("r asks nothing while stopped")
		}
	}
	c.press("p")
	c.hides("stopped")
}

// TestAway: a server that is away is asked by one request, ever more seldom, and
// the page says so; when it is back everything is current at once.
func TestAway(t *testing.T) {
	t.Parallel()
	f := newFake()
	c := clocked(t, f)
	f.fail(away)
	c.pass(1250 * time.Millisecond)
	c.shows("✗ no answer from the server for", "next try in", "connection refused", "✗ no answer", "12,004") // what was known stays
	if c.link.failures != 1 {
		t.Errorf("answers that failed together count %d times", c.link.failures)
	}
	total := func() (n int) {
		for _, k := range f.asked {
			n += k
		}
		return n
	}
	before := total()
	c.pass(10 * time.Minute)
	if n := total() - before; n < 19 || n > 27 { // 1, 2, 4, 8, 16, 30, 30 ... s
		t.Errorf("asked %d times in 10 minutes", n)
	}
	c.shows("no answer from the server for 10m", "old: 10m")
	before = total()
	c.press("r")
	if n := total() - before; n != 1 {
		t.Errorf("r asked a server that is away %d times", n)
	}
	f.fail(nil)
	c.press("r")
	c.pass(250 * time.Millisecond)
	c.shows("✓ answers")
	c.hides("no answer", "old: ")
}

// TestRefused: a server that says no is there; what it refuses is asked seldom.
func TestRefused(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.fail(&notify.Error{Kind: notify.KindForbidden, Code: "scope_missing", Msg: "the token lacks the scope observe"})
	c := clocked(t, f)
	c.shows("the token lacks the scope observe (scope_missing)", "✓ answers")
	c.pass(time.Minute)
	if n := f.times("rates"); n > 3 {
		t.Errorf("asked %d times in a minute what is refused", n)
	}
	f.fail(nil)
	c.pass(31 * time.Second)
	c.hides("scope_missing")
}

// TestSlowServer: a console takes a tenth of a slow server's time at most.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	var s feedState
	var l serverLink
	recordAnswer(&s, &l, feedRates, tabOverview, nil, 2*time.Second, noon)
	if s.due != noon.Add(18*time.Second) {
		t.Errorf("due %v", s.due.Sub(noon))
	}
	recordAnswer(&s, &l, feedRates, tabOverview, &notify.Error{Kind: notify.KindThrottled, Code: "rate", RetryAfter: 40 * time.Second}, 0, noon)
	if s.due != noon.Add(40*time.Second) || !l.awaySince.IsZero() {
		t.Errorf("due %v", s.due.Sub(noon))
	}
	recordAnswer(&s, &l, feedRates, tabOverview, &notify.Error{Kind: notify.KindUnavailable, Code: "jobs_unavailable"}, 0, noon)
	if !l.awaySince.IsZero() {
		t.Error("a server that lacks a part is taken for away")
	}
	recordAnswer(&s, &l, feedRates, tabOverview, errors.New("not JSON"), 0, noon)
	if !l.awaySince.IsZero() || s.refused == nil {
		t.Error("a bad answer is taken for none")
	}
}

// TestLateAnswer: the answer to a filter that was changed since is dropped.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	f := newFake()
	p := open(t, f, 80, 24, nil)
	_, cmd := p.Update(tea.KeyPressMsg{Code: '2', Text: "2"})
	late := cmd
	f.letters = nil
	p.press("/", "ctrl+u", "code:other", "enter")
	p.shows("no dead letter matches")
	f.letters = newFake().letters
	p.run(late)
	p.shows("no dead letter matches")
}
