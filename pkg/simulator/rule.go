package simulator

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Action is what a rule does to a request it picks.
type Action string

// The actions. Gateway, Reset and Hang take the request first, so the caller cannot
// know (ambiguous); Drop does not take it. Reset, Hang and Drop look the same from
// outside.
const (
	Fail        Action = "error"        // answer Status and Code
	Outage      Action = "outage"       // Fail with 503
	Throttle    Action = "throttle"     // Fail with 429
	Deny        Action = "unauthorized" // Fail with 401, APNs 403
	Gateway     Action = "gateway"      // take it, then answer Status, 502 unless given, as a gateway does that lost the answer
	Reset       Action = "reset"        // take it, then reset the connection without an answer
	ResetStream Action = "reset_stream" // the same for its HTTP/2 stream alone
	Drop        Action = "drop"         // reset the connection without taking it
	Refuse      Action = "refuse"       // APNs: refuse its HTTP/2 stream without taking it
	GoAway      Action = "go_away"      // APNs: tell the connection to go away (GOAWAY); it and all before it are answered, nothing after
	CloseConn   Action = "close"        // APNs: take it, then close the connection in order, without an answer or GOAWAY
	Hang        Action = "hang"         // take it, never answer
	Redirect    Action = "redirect"     // callback: answer 302 to Location
	Huge        Action = "huge"         // callback: take it, answer 200 with a body of 64 MiB
	Drip        Action = "drip"         // answer, the body spread over Latency
	Delay       Action = "latency"      // answer after Latency instead of the provider's own
	Receipt     Action = "receipt"      // take it; its receipt later says Code
)

// Rule scripts faults. It picks requests that match Provider, Account, Pool,
// Template and Prefix, all of them unless empty; of these a share of Rate; no more than Count;
// until Until. Newer rules come first; one rule decides the answer, one the
// latency, one the receipt.
type Rule struct {
	Number uint64 `json:"number"` // given by AddRule

	Provider Provider `json:"provider"` // empty: all
	Account  string   `json:"account"`  // Twilio account SID; empty: all
	Pool     string   `json:"pool"`     // SendGrid ip_pool_name; empty: all
	Prefix   string   `json:"prefix"`   // of a token, phone number or e-mail address
	ID       string   `json:"id"`       // of a notification, for a single one
	Template string   `json:"template"` // SendGrid template_id; empty: all

	Rate  float64   `json:"rate"`  // share of the matches, 0 < Rate <= 1; 0 means 1
	Count uint64    `json:"count"` // most requests it picks; 0: no limit
	For   Duration  `json:"for"`   // sets Until, from the moment the rule is added
	Until time.Time `json:"until"` // zero: no end

	Do         Action   `json:"do"`
	Status     int      `json:"status"`      // Fail, Gateway: HTTP status; 0: that of Code
	Code       string   `json:"code"`        // Fail: the provider's reason or error code; Receipt: a Twilio error code, or bounce, blocked, dropped, deferred
	RetryAfter Duration `json:"retry_after"` // Fail: sends Retry-After, rounded up to seconds; with Throttle and Until, 0 means until then
	Latency    Latency  `json:"latency"`     // Drip, Delay
	Location   string   `json:"location"`    // Redirect

	Matched uint64 `json:"matched"` // requests that matched; for reading
	Picked  uint64 `json:"picked"`  // of these, what it was applied to; for reading
}

func (r *Rule) normalise(now time.Time) error {
	switch r.Do {
	case Outage:
		r.Do, r.Status = Fail, orInt(r.Status, 503)
	case Throttle:
		r.Do, r.Status = Fail, orInt(r.Status, 429)
		if r.RetryAfter == 0 && r.For > 0 && r.Until.IsZero() {
			r.RetryAfter = untilEnd
		}
		if r.RetryAfter == 0 && !r.Until.IsZero() {
			r.RetryAfter = untilEnd
		}
	case Gateway:
		r.Status = orInt(r.Status, 502)
	case Deny:
		if r.Status == 0 && r.Provider == APNs {
			r.Status = 403
		}
		r.Do, r.Status = Fail, orInt(r.Status, 401)
	}
	if r.For > 0 && r.Until.IsZero() {
		r.Until = now.Add(time.Duration(r.For))
	}
	if r.Rate == 0 {
		r.Rate = 1
	}
	return r.validate()
}

// untilEnd stands for "whatever is left of the rule's time".
const untilEnd = Duration(-1)

func (r *Rule) validate() error {
	if r.Provider > allProviders {
		return notify.Invalid("bad_provider", "provider", "is not known")
	}
	if !(r.Rate > 0 && r.Rate <= 1) {
		return notify.Invalid("bad_rate", "rate", "is a share, above 0 and not above 1")
	}
	if err := r.Latency.validate("latency"); err != nil {
		return err
	}
	switch r.Do {
	case Reset, ResetStream, Drop, Hang:
		return nil
	case Refuse, GoAway, CloseConn:
		if r.Provider != APNs {
			return notify.Invalid("bad_action", "do", fmt.Sprintf("%q is for provider apns", r.Do))
		}
		return nil
	case Drip, Delay:
		if r.Latency.Median == 0 {
			return notify.Invalid("no_latency", "latency", "says how long a drip or latency rule takes")
		}
		return nil
	case Redirect, Huge:
		if r.Provider != Callback {
			return notify.Invalid("bad_action", "do", fmt.Sprintf("%q is for provider callback", r.Do))
		}
		if r.Do == Redirect && r.Location == "" {
			return notify.Invalid("no_location", "location", "says where a redirect leads")
		}
		return nil
	case Receipt:
		return validReceiptCode(r.Provider, r.Code)
	case Fail, Gateway:
		return r.validateFail()
	}
	return notify.Invalid("bad_action", "do", fmt.Sprintf("%q is not an action", r.Do))
}

func (r *Rule) validateFail() error {
	if r.Code != "" {
		if r.Provider == 0 {
			return notify.Invalid("code_without_provider", "code", "belongs to one provider; name it, or give only a status")
		}
		status, ok := codeStatus(r.Provider, r.Code)
		if !ok && r.Status == 0 {
			return notify.Invalid("bad_code", "code", fmt.Sprintf("%q is not a known code of %s; give a status with it", r.Code, r.Provider))
		}
		r.Status = orInt(r.Status, status)
	}
	if r.Status < 400 || r.Status > 599 {
		return notify.Invalid("bad_status", "status", "of an error is from 400 to 599")
	}
	return nil
}

// retryAfter is how long the answer asks the caller to wait; 0: it does not say.
func (r *Rule) retryAfter(now time.Time) time.Duration {
	if r.RetryAfter == untilEnd {
		return max(0, r.Until.Sub(now))
	}
	return time.Duration(r.RetryAfter)
}

// rules is the list in force. Requests read it without a lock.
type rules struct {
	seed uint64
	now  func() time.Time

	mu   sync.Mutex // held by those who change the list
	next uint64
	list atomic.Pointer[[]*activeRule] // newest first
}

type activeRule struct {
	Rule
	matched, picked atomic.Uint64
}

// plan is what the rules have decided for one request.
type plan struct {
	fault   *Rule // nil: none. Never Delay or Receipt
	latency *Rule
	receipt *Rule
}

func newRules(seed uint64, now func() time.Time) *rules {
	r := &rules{seed: seed, now: now}
	r.list.Store(&[]*activeRule{})
	return r
}

func (rs *rules) add(r Rule) (Rule, error) {
	if err := r.normalise(rs.now()); err != nil {
		return Rule{}, err
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.next++
	r.Number, r.Matched, r.Picked = rs.next, 0, 0
	list := slices.DeleteFunc(slices.Clone(*rs.list.Load()), func(a *activeRule) bool { return a.over(rs.now()) })
	list = slices.Insert(list, 0, &activeRule{Rule: r})
	rs.list.Store(&list)
	return r, nil
}

func (rs *rules) remove(number uint64) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	old := *rs.list.Load()
	list := slices.DeleteFunc(slices.Clone(old), func(a *activeRule) bool { return a.Number == number })
	rs.list.Store(&list)
	return len(list) < len(old)
}

func (rs *rules) clear() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.list.Store(&[]*activeRule{})
}

func (rs *rules) all() []Rule {
	out := []Rule{}
	for _, a := range *rs.list.Load() {
		r := a.Rule
		r.Matched = a.matched.Load()
		r.Picked = a.picked.Load()
		if r.Count > 0 {
			r.Picked = min(r.Picked, r.Count)
		}
		if r.RetryAfter == untilEnd {
			r.RetryAfter = Duration(r.retryAfter(rs.now()))
		}
		out = append(out, r)
	}
	return out
}

// decide asks every rule about one request.
func (rs *rules) decide(c *call) plan {
	var p plan
	list := *rs.list.Load()
	if len(list) == 0 {
		return p
	}
	now := rs.now()
	for _, a := range list {
		slotOf := &p.fault
		switch a.Do {
		case Delay:
			slotOf = &p.latency
		case Receipt:
			slotOf = &p.receipt
		}
		if *slotOf == nil && !a.over(now) && a.matches(c) && a.pick(rs.seed) {
			*slotOf = &a.Rule
		}
	}
	return p
}

func (a *activeRule) over(now time.Time) bool {
	return (!a.Until.IsZero() && !now.Before(a.Until)) || (a.Count > 0 && a.picked.Load() >= a.Count)
}

func (a *activeRule) matches(c *call) bool {
	if a.Provider != 0 && a.Provider != c.provider ||
		a.Account != "" && a.Account != c.account ||
		a.Pool != "" && a.Pool != c.pool || a.Template != "" && a.Template != c.content.template {
		return false
	}
	if a.Prefix == "" && a.ID == "" {
		return true
	}
	return slices.ContainsFunc(c.receivers, a.matchesReceiver)
}

func (r *Rule) matchesReceiver(v receiver) bool {
	return strings.HasPrefix(v.address, r.Prefix) && (r.ID == "" || r.ID == v.id)
}

// pick draws for the nth match: with the same seed and rules, the same n are
// picked in every run.
func (a *activeRule) pick(seed uint64) bool {
	n := a.matched.Add(1)
	if a.Rate < 1 && unit(mix(seed^a.Number<<32, n)) >= a.Rate {
		return false
	}
	return a.picked.Add(1) <= a.Count || a.Count == 0
}

func orInt(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}
