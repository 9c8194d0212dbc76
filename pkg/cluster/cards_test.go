package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
)

// killable are the heartbeats of a process that may be killed: it says nothing from then on.
type killable struct {
	engine.Heartbeats
	dead atomic.Bool
}

var errDead = errors.New("this process is dead")

func (k *killable) Beat(ctx context.Context, group, owner, value string, ttl time.Duration) (int64, error) {
	if k.dead.Load() {
		return 0, errDead
	}
	return k.Heartbeats.Beat(ctx, group, owner, value, ttl)
}

func (k *killable) Alive(ctx context.Context, group string, known int64) ([]engine.Heartbeat, int64, error) {
	if k.dead.Load() {
		return nil, 0, errDead
	}
	return k.Heartbeats.Alive(ctx, group, known)
}

func (k *killable) Leave(ctx context.Context, group, owner string) error {
	if k.dead.Load() {
		return errDead
	}
	return k.Heartbeats.Leave(ctx, group, owner)
}

// teller is a process that tells of itself.
type teller struct {
	*Cards
	beats *killable
	stop  func()
}

func tell(t *testing.T, beats engine.Heartbeats, name, owner string) *teller {
	t.Helper()
	started := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	p := &teller{beats: &killable{Heartbeats: beats}, stop: func() { cancel(); <-done }}
	p.Cards = &Cards{Beats: p.beats, Owner: owner, Own: func(context.Context) Card {
		c := Card{
			Process:  api.Process{Name: name, State: api.ProcessReady, Roles: []string{RoleWorker}, StartedAt: started},
			Rates:    api.Rates{OverSeconds: 60, Rates: []api.Rate{{What: "push", Reached: 10, Other: 1, CallSeconds: .5}}, Settings: []api.ProcessSettings{{TimerShards: 64}}, Late: []api.Lateness{{What: "timer", N: 2, P99: .1}}},
			Circuits: []api.Circuit{{Name: "provider:apns", State: "closed"}},
		}
		c.Findings.Add("clock", true, "fail", "set it", "off")
		return c
	}}
	go func() { defer close(done); _ = p.Run(ctx) }()
	return p
}

// states returns name and state of each card, in their order.
func states(cards []Card) (out string) {
	for i := range cards {
		out += fmt.Sprintf("%s %s, ", cards[i].Name, cards[i].State)
	}
	return strings.TrimSuffix(out, ", ")
}

// TestCards: each of three processes sees all of them. One that dies is missing, with how long
// it has not answered, until it is started again or has been gone for ten minutes. One that
// ends is not listed any more.
func TestCards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		beats := memory.NewHeartbeats()
		a, b, c := tell(t, beats, "a", "a-1"), tell(t, beats, "b", "b-1"), tell(t, beats, "c", "c-1")
		sees := func(p *teller, want string) []Card {
			t.Helper()
			all := p.All(t.Context())
			if got := states(all); got != want {
				t.Fatalf("%s sees %q, want %q", p.Owner, got, want)
			}
			return all
		}
		time.Sleep(time.Second)
		for _, p := range []*teller{a, b, c} {
			all := sees(p, "a ready, b ready, c ready")
			if r := SumRates(all); len(r.Rates) != 1 || r.Rates[0].Reached != 30 || r.Rates[0].Other != 3 || r.Late[0].N != 6 || r.Late[0].P99 != .1 || len(r.Processes) != 3 {
				t.Errorf("together they do %+v", r)
			} else if s := r.Settings; len(s) != 3 || s[1].Process != "b" || s[1].TimerShards != 64 || len(s[1].Roles) != 1 || r.Rates[0].CallSeconds != .5 {
				t.Errorf("they are set to %+v, %+v", s, r.Rates)
			}
			for i := range all {
				if c := &all[i]; c.Circuits[0].Process != c.Name || c.Findings[0].Process != c.Name {
					t.Errorf("%+v", c)
				}
			}
		}

		b.beats.dead.Store(true)
		time.Sleep(cardLate + cardBeat)
		all := sees(a, "a ready, b missing, c ready")
		if m := Missing(all); len(m) != 1 || m[0].AgeSeconds < cardLate.Seconds() || all[1].Circuits != nil || len(all[1].Rates.Rates) != 0 || len(all[1].Findings) != 0 {
			t.Errorf("of the dead one: %+v", all[1])
		} else if text := m[0].Absence(); !strings.HasPrefix(text, "b did not answer for ") {
			t.Error(text)
		}
		again := tell(t, beats, "b", "b-2")
		time.Sleep(cardBeat)
		sees(a, "a ready, b ready, c ready")
		same := tell(t, beats, "c", "c-two") // an instance named alike beside the first one
		time.Sleep(cardBeat)
		sees(a, "a ready, b ready, c--two ready, c-c-1 ready")

		c.stop()
		same.beats.dead.Store(true)
		time.Sleep(cardTTL - 2*cardBeat)
		sees(a, "a ready, b ready, c missing")
		time.Sleep(4 * cardBeat)
		sees(a, "a ready, b ready")

		// While Redis is away, what was read last counts, and the gap is told.
		a.beats.dead.Store(true)
		time.Sleep(2 * time.Second)
		if got := sees(a, "a ready, b ready, other processes unknown"); got[2].Note != errDead.Error() || !strings.Contains(got[2].Absence(), errDead.Error()) {
			t.Errorf("%+v", got[2])
		}
		for _, p := range []*teller{a, again, same} {
			p.stop()
		}
	})
}

// TestCardsAreReadOnlyWhenAsked: processes at rest read no card, and however many operators
// ask, a process reads them once a second at most.
func TestCardsAreReadOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		beats := &counted{Heartbeats: memory.NewHeartbeats()}
		a, b := tell(t, beats, "a", "a"), tell(t, beats, "b", "b")
		time.Sleep(10*cardBeat + time.Second)
		if told, read := beats.beats.Load(), beats.reads.Load(); read != 0 || told != 22 {
			t.Errorf("at rest two processes beat %d times in 51 s and read %d times, want 22 and 0", told, read)
		}
		for range 100 {
			a.All(t.Context())
		}
		if read := beats.reads.Load(); read != 1 {
			t.Errorf("100 questions read %d times, want once", read)
		}
		a.stop()
		b.stop()
	})
}

type counted struct {
	engine.Heartbeats
	beats, reads atomic.Int64
}

func (c *counted) Beat(ctx context.Context, group, owner, value string, ttl time.Duration) (int64, error) {
	c.beats.Add(1)
	return c.Heartbeats.Beat(ctx, group, owner, value, ttl)
}

func (c *counted) Alive(ctx context.Context, group string, known int64) ([]engine.Heartbeat, int64, error) {
	c.reads.Add(1)
	return c.Heartbeats.Alive(ctx, group, known)
}

// TestCardIsBounded: whatever a process has, its card stays below 16 KB, holds first what is
// not well, and says what it leaves out.
func TestCardIsBounded(t *testing.T) {
	t.Parallel()
	big := Card{Process: api.Process{Name: "a", State: api.ProcessReady}}
	for i := range 5000 {
		big.Circuits = append(big.Circuits, api.Circuit{Name: fmt.Sprintf("caller:%04d", i), State: "closed"})
	}
	big.Circuits[4999].State = "open"
	for range 61 {
		big.Rates.Series = append(big.Rates.Series, api.RatePoint{At: time.Unix(1e9, 0).UTC(), Accepted: 1234.56, Ended: 1234.56})
	}
	long := big
	for range 200 {
		long.Findings = append(long.Findings, engine.Finding{Check: strings.Repeat("x", 200), Level: "fail"})
	}
	vast := Card{Process: api.Process{Name: strings.Repeat("n", 20_000), State: api.ProcessReady}}
	for what, x := range map[string]struct {
		card Card
		note string
	}{
		"5,000 circuits":           {big, "4936 circuits did not fit and are not shown"},
		"and 200 findings":         {long, "circuits, 61 steps of its rates, "},
		"a name of 20,000 letters": {vast, ""},
	} {
		b := x.card.encode()
		var got Card
		if err := json.Unmarshal(b, &got); err != nil || len(b) > maxCard || got.Name == "" || !strings.Contains(got.Note, x.note) {
			t.Errorf("%s: %d bytes, %v, note %q", what, len(b), err, got.Note)
		}
		if open := func(c api.Circuit) bool { return c.State == "open" }; slices.ContainsFunc(x.card.Circuits, open) && !slices.ContainsFunc(got.Circuits, open) {
			t.Errorf("%s: the open circuit is left out", what)
		}
	}
}

// TestSeriesAddUp: processes take their steps at times of their own. Each step counts once,
// and the sum ends where a process has not told more yet.
func TestSeriesAddUp(t *testing.T) {
	t.Parallel()
	at := func(second float64) time.Time { return time.Unix(1e9, 0).Add(time.Duration(second * 1e9)) }
	series := func(v float64, seconds ...float64) (c Card) {
		for _, s := range seconds {
			c.Rates.Series = append(c.Rates.Series, api.RatePoint{At: at(s), Accepted: v, Ended: 2 * v})
		}
		return c
	}
	got := sumSeries([]Card{series(1, 0, 5, 10, 15, 20), series(10, 2, 7, 12), series(100, 11, 16), {}})
	want := []api.RatePoint{{At: at(0), Accepted: 11, Ended: 22}, {At: at(5), Accepted: 111, Ended: 222}, {At: at(10), Accepted: 111, Ended: 222}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
