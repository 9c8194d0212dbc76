package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	cardGroup = "cards"
	cardBeat  = 5 * time.Second  // time between two cards of a process
	cardLate  = 3 * cardBeat     // a process whose card is older counts as missing
	cardTTL   = 10 * time.Minute // how long a dead process stays listed as missing
	cardReads = time.Second      // shortest time between two reads, for any number of operators
	cardCall  = 2 * time.Second  // time limit of a read or a beat

	maxCard         = 16 << 10 // largest size of an encoded card, in bytes
	maxCardCircuits = 64
)

// Card is what a process reports about itself to operators.
type Card struct {
	api.Process
	Owner    string        `json:"-"` // unique among processes; All sets it
	Rates    api.Rates     `json:"rates"`
	Circuits []api.Circuit `json:"circuits"`
	Accounts []api.Account `json:"accounts,omitempty"` // accounts at the providers that the process calls
	Groups   []GroupWork   `json:"groups"`
	// Findings are about this process only. A card that is sent to other processes omits findings
	// of level ok.
	Findings engine.Findings `json:"findings"`
}

// GroupWork is a process's share of the work of a consumer group on a topic.
type GroupWork struct {
	Group string `json:"group"`
	Topic string `json:"topic"`
	api.GroupMember
}

// Cards gives operators one view of all processes. Each process sends a heartbeat with its card
// every 5 s. A process reads the cards only when an operator asks. So without requests the cost
// grows with the number of processes, not with its square. A process that stops removes its card. A
// dead process stays listed as missing for 10 minutes, or until a process with the same name has
// started. The methods are safe for concurrent use.
type Cards struct {
	Beats engine.Heartbeats          // nil: there is only one process
	Owner string                     // unique name of this process
	Own   func(context.Context) Card // returns this process's card

	mu          sync.Mutex // guards the fields below
	readTriedAt time.Time  // when the last read began, successful or not
	readErr     error      // error of the last read
	readAt      time.Time  // when otherCards was read
	otherCards  []peerCard // replaced by each read; the elements never change
}

// peerCard is the card of another process.
type peerCard struct {
	Card
	owner string
	age   time.Duration // age of the card at Cards.readAt
}

// Run sends this process's card every cardBeat until ctx ends. Then it removes the card.
func (c *Cards) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		call, stop := context.WithTimeout(ctx, cardCall)
		own := c.Own(call)
		_, _ = c.Beats.Beat(call, cardGroup, c.Owner, string(own.encode()), cardTTL) // if it fails, the next beat tries again
		stop()
		notify.Sleep(ctx, cardBeat)
	}
	call, stop := context.WithTimeout(context.WithoutCancel(ctx), cardCall)
	defer stop()
	_ = c.Beats.Leave(call, cardGroup, c.Owner) // if this fails, the process is listed as missing
	return nil
}

// encode returns the card as JSON of at most maxCard bytes. If the card is too large, encode omits
// parts of it, and the card's note says which.
func (c *Card) encode() []byte {
	out, circuits, accounts := *c, len(c.Circuits), len(c.Accounts)
	out.Findings = slices.DeleteFunc(slices.Clone(c.Findings), func(f engine.Finding) bool { return f.Level == "ok" })
	findings := len(out.Findings)
	if circuits > maxCardCircuits { // keep the circuits that delay calls
		out.Circuits = slices.Clone(c.Circuits)
		slices.SortStableFunc(out.Circuits, func(a, b api.Circuit) int { return circuitRank(&a) - circuitRank(&b) })
		out.Circuits = out.Circuits[:maxCardCircuits]
	}
	for {
		var notes []string
		left := func(n int, what string) {
			if n > 0 {
				notes = append(notes, fmt.Sprintf("%d %s", n, what))
			}
		}
		left(circuits-len(out.Circuits), "circuits")
		left(accounts-len(out.Accounts), "accounts")
		left(len(c.Rates.Series)-len(out.Rates.Series), "steps of its rates")
		left(findings-len(out.Findings), "findings")
		if notes != nil {
			out.Note = strings.Join(notes, ", ") + " did not fit and are not shown"
		}
		b, err := json.Marshal(&out)
		switch {
		case err != nil: // Marshal fails only for a time after the year 9999
			return []byte("{}")
		case len(b) <= maxCard:
			return b
		case len(out.Rates.Series) > 0:
			out.Rates.Series = nil
		case len(out.Accounts) >= len(out.Circuits) && len(out.Accounts) >= len(out.Findings) && len(out.Accounts) > 0:
			out.Accounts = out.Accounts[:len(out.Accounts)/2]
		case len(out.Circuits) >= len(out.Findings) && len(out.Circuits) > 0:
			out.Circuits = out.Circuits[:len(out.Circuits)/2]
		case len(out.Findings) > 0:
			out.Findings = out.Findings[:len(out.Findings)/2]
		default: // only names in the configuration can be kilobytes long
			out.Process = api.Process{Name: clip(out.Name), State: clip(out.State), StartedAt: out.StartedAt}
		}
	}
}

func clip(s string) string { return s[:min(len(s), 100)] }

// circuitRank returns 0 for circuits that delay calls or that an operator holds, and 1 for all other
// circuits.
func circuitRank(c *api.Circuit) int {
	if c.State == "closed" && !c.Pinned {
		return 1
	}
	return 0
}

// All returns the cards of all processes, sorted by name. It makes a new card of this process. The
// card of a missing process contains no rates, circuits, accounts, findings and groups. If the
// cards cannot be read, All returns the cards of the last successful read and, after them, one
// additional card in state unknown.
func (c *Cards) All(ctx context.Context) []Card {
	own := c.Own(ctx)
	if c.Beats == nil {
		return []Card{own}
	}
	c.mu.Lock()
	if time.Since(c.readTriedAt) >= cardReads {
		c.readLocked(ctx)
	}
	since, failed := time.Since(c.readAt), c.readErr
	all := append([]peerCard{{own, c.Owner, -since}}, c.otherCards...)
	c.mu.Unlock()

	for i := range all {
		h := &all[i]
		h.age += since
		h.AgeSeconds = h.age.Seconds()
		if h.age > cardLate {
			h.State = api.ProcessMissing
			h.Rates, h.Circuits, h.Accounts, h.Findings, h.Groups = api.Rates{}, nil, nil, nil, nil
		}
	}
	var there []peerCard
	for i := range all {
		if !all[i].replaced(all) {
			there = append(there, all[i])
		}
	}
	out := make([]Card, 0, len(there)+1)
	for i := range there {
		one, owner := there[i].Card, there[i].owner
		one.Owner = owner
		if slices.ContainsFunc(there, func(o peerCard) bool { return o.Name == one.Name && o.owner != owner }) {
			one.Name += "-" + owner[max(0, len(owner)-4):]
		}
		one.Circuits, one.Accounts, one.Findings = slices.Clone(one.Circuits), slices.Clone(one.Accounts), slices.Clone(one.Findings)
		for k := range one.Circuits {
			one.Circuits[k].Process = one.Name
		}
		for k := range one.Accounts {
			one.Accounts[k].Process = one.Name
		}
		for k := range one.Findings {
			one.Findings[k].Process = one.Name
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Card) int { return strings.Compare(a.Name, b.Name) })
	if failed != nil {
		out = append(out, Card{Process: api.Process{Name: "other processes", State: api.ProcessUnknown, Note: failed.Error()}})
	}
	return out
}

// replaced reports whether a missing process has a successor among cards. A successor is a process
// that has the same name and that started after the missing process had sent its last card.
func (h *peerCard) replaced(cards []peerCard) bool {
	lastCard := time.Now().Add(-h.age)
	return h.State == api.ProcessMissing && slices.ContainsFunc(cards, func(o peerCard) bool {
		return o.State != api.ProcessMissing && o.Name == h.Name && o.StartedAt.After(lastCard)
	})
}

// readLocked reads the cards of the other processes. The caller holds c.mu. After an error the
// cards of the previous read are kept. The read continues even if ctx ends, because other requests
// wait for its result.
func (c *Cards) readLocked(ctx context.Context) {
	call, stop := context.WithTimeout(context.WithoutCancel(ctx), cardCall)
	defer stop()
	beats, _, err := c.Beats.Alive(call, cardGroup, 0)
	c.readTriedAt, c.readErr = time.Now(), err
	if err != nil {
		return
	}
	c.readAt, c.otherCards = c.readTriedAt, nil
	for _, b := range beats {
		h := peerCard{owner: b.Owner, age: b.Age}
		if b.Owner != c.Owner && json.Unmarshal([]byte(b.Value), &h.Card) == nil {
			h.Name = cmp.Or(h.Name, b.Owner)
			c.otherCards = append(c.otherCards, h)
		}
	}
}

// Missing returns the missing processes among cards.
func Missing(cards []Card) (out []api.Process) {
	for i := range cards {
		if p := &cards[i].Process; p.Missing() {
			out = append(out, *p)
		}
	}
	return out
}

// SumRates returns the sum of the rates of all cards. For lateness it takes the worst quantiles of
// all processes. For the series see sumSeries.
func SumRates(cards []Card) api.Rates {
	out := api.Rates{Rates: []api.Rate{}, Late: []api.Lateness{}, Series: []api.RatePoint{}, Settings: []api.ProcessSettings{}}
	for i := range cards {
		r := &cards[i].Rates
		out.OverSeconds = max(out.OverSeconds, r.OverSeconds)
		for _, one := range r.Rates {
			k := slices.IndexFunc(out.Rates, func(o api.Rate) bool { return o.What == one.What })
			if k < 0 {
				out.Rates = append(out.Rates, one)
				continue
			}
			sum := &out.Rates[k]
			if mine, theirs := one.Reached+one.Failed, sum.Reached+sum.Failed; mine+theirs > 0 { // the mean, weighted by each process's number of calls
				sum.CallSeconds = (one.CallSeconds*mine + sum.CallSeconds*theirs) / (mine + theirs)
			}
			sum.Accepted, sum.Reached, sum.Failed, sum.Other = sum.Accepted+one.Accepted, sum.Reached+one.Reached, sum.Failed+one.Failed, sum.Other+one.Other
		}
		for _, one := range r.Late {
			k := slices.IndexFunc(out.Late, func(o api.Lateness) bool { return o.What == one.What })
			if k < 0 {
				out.Late = append(out.Late, one)
				continue
			}
			worst := &out.Late[k]
			worst.N, worst.P50, worst.P99 = worst.N+one.N, max(worst.P50, one.P50), max(worst.P99, one.P99)
		}
		for _, one := range r.Settings {
			one.Process, one.Roles = cards[i].Name, cards[i].Roles
			out.Settings = append(out.Settings, one)
		}
		out.Processes = append(out.Processes, api.ProcessRates{Process: cards[i].Process, Rates: append([]api.Rate{}, r.Rates...), Late: append([]api.Lateness{}, r.Late...)})
	}
	slices.SortFunc(out.Rates, func(a, b api.Rate) int { return strings.Compare(a.What, b.What) })
	out.Series = sumSeries(cards)
	return out
}

// sumSeries returns the sum of the series of all processes. Each point of a series covers one
// period, and the periods of different processes end at different times. The result has a point for
// each time of the longest series. This point is the sum of one point of each process: the first
// that ends at that time or later. The result ends before the first time for which a process has no
// such point yet.
func sumSeries(cards []Card) []api.RatePoint {
	out := []api.RatePoint{}
	var long []api.RatePoint
	for i := range cards {
		if s := cards[i].Rates.Series; len(s) > len(long) {
			long = s
		}
	}
	for _, at := range long {
		sum := api.RatePoint{At: at.At}
		for i := range cards {
			s := cards[i].Rates.Series
			if len(s) == 0 {
				continue
			}
			k := slices.IndexFunc(s, func(p api.RatePoint) bool { return !p.At.Before(at.At) })
			switch {
			case k < 0: // the last card of this process has no point at that time or later
				return out
			case s[k].At.Sub(at.At) < 2*cardBeat: // otherwise the process had not started at that time
				sum.Accepted, sum.Ended = sum.Accepted+s[k].Accepted, sum.Ended+s[k].Ended
			}
		}
		out = append(out, sum)
	}
	return out
}
