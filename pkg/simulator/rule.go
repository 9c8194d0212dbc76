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

// Action is what a rule does to a request that it picks.
type Action string

// The actions. Gateway, Reset and Hang take the request first, so its outcome is ambiguous for
// the caller. Drop does not take it. The caller cannot tell Reset, Hang and Drop apart.
const (
	Fail        Action = "error"        // answer Status and Code
	Outage      Action = "outage"       // Fail with 503
	Throttle    Action = "throttle"     // Fail with 429
	Deny        Action = "unauthorized" // Fail with 401, APNs 403
	Gateway     Action = "gateway"      // take it, then answer Status, default 502, like a gateway that lost the answer
	Reset       Action = "reset"        // take it, then reset the connection without an answer
	ResetStream Action = "reset_stream" // take it, then reset only its HTTP/2 stream
	Drop        Action = "drop"         // reset the connection without taking it
	Refuse      Action = "refuse"       // APNs: refuse its HTTP/2 stream without taking it
	GoAway      Action = "go_away"      // APNs: send GOAWAY; this request and those before it are answered, later ones are not
	CloseConn   Action = "close"        // APNs: take it, then close the connection orderly, without an answer or GOAWAY
	Hang        Action = "hang"         // take it and never answer
	Redirect    Action = "redirect"     // callback: answer 302 to Location
	Huge        Action = "huge"         // callback: take it, answer 200 with a body of 64 MiB
	Drip        Action = "drip"         // answer with the body spread over Latency
	Delay       Action = "latency"      // answer after Latency instead of the latency of the provider
	Receipt     Action = "receipt"      // take it; its receipt says Code
)

// Rule scripts a fault. It matches requests by Provider, Account, Pool, Template, Prefix and ID; an
// empty field matches all. It picks a share of Rate of the matches, at most Count of them, until
// Until. Newer rules come first. One rule decides the answer of a request, one its latency, and
// one its receipt.
type Rule struct {
	Number uint64 `json:"number"` // given by AddRule

	Provider Provider `json:"provider"` // empty: all
	Account  string   `json:"account"`  // Twilio account SID; empty: all
	Pool     string   `json:"pool"`     // SendGrid ip_pool_name; empty: all
	Prefix   string   `json:"prefix"`   // prefix of a token, phone number or e-mail address
	ID       string   `json:"id"`       // id of one notification
	Template string   `json:"template"` // SendGrid template_id; empty: all

	Rate  float64   `json:"rate"`  // share of the matches, 0 < Rate <= 1; 0 means 1
	Count uint64    `json:"count"` // most requests that it picks; 0: no limit
	For   Duration  `json:"for"`   // sets Until, counted from when the rule is added
	Until time.Time `json:"until"` // zero: no end

	Do         Action   `json:"do"`
	Status     int      `json:"status"`      // Fail, Gateway: HTTP status; 0: the status of Code
	Code       string   `json:"code"`        // Fail: the provider's reason or error code; Receipt: a Twilio error code, or bounce, blocked, dropped, deferred
	RetryAfter Duration `json:"retry_after"` // Fail: Retry-After, rounded up to seconds; with Throttle and Until, 0 means until then
	Latency    Latency  `json:"latency"`     // Drip, Delay
	Location   string   `json:"location"`    // Redirect

	Matched uint64 `json:"matched"` // requests that matched; read-only
	Picked  uint64 `json:"picked"`  // matched requests that it was applied to; read-only
}

func (r *Rule) normalise(now time.Time) error {
	switch r.Do {
	case Outage:
		r.Do, r.Status = Fail, intOr(r.Status, 503)
	case Throttle:
		r.Do, r.Status = Fail, intOr(r.Status, 429)
		if r.RetryAfter == 0 && r.For > 0 && r.Until.IsZero() {
			r.RetryAfter = untilEnd
		}
		if r.RetryAfter == 0 && !r.Until.IsZero() {
			r.RetryAfter = untilEnd
		}
	case Gateway:
		r.Status = intOr(r.Status, 502)
	case Deny:
		if r.Status == 0 && r.Provider == APNs {
			r.Status = 403
		}
		r.Do, r.Status = Fail, intOr(r.Status, 401)
	}
	if r.For > 0 && r.Until.IsZero() {
		r.Until = now.Add(time.Duration(r.For))
	}
	if r.Rate == 0 {
		r.Rate = 1
	}
	return r.validate()
}

// untilEnd as RetryAfter means the time that is left until the end of the rule.
const untilEnd = Duration(-1)

func (r *Rule) validate() error {
	if r.Provider > allProviders {
		return notify.Invalid("bad_provider", "provider", "is not known")
	}
	if !(r.Rate > 0 && r.Rate <= 1) {
		return notify.Invalid("bad_rate", "rate", "must be a share above 0 and not above 1")
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
			return notify.Invalid("no_latency", "latency", "is required for drip and latency: how long the answer takes")
		}
		return nil
	case Redirect, Huge:
		if r.Provider != Callback {
			return notify.Invalid("bad_action", "do", fmt.Sprintf("%q is for provider callback", r.Do))
		}
		if r.Do == Redirect && r.Location == "" {
			return notify.Invalid("no_location", "location", "is required for redirect: the URL to redirect to")
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
			return notify.Invalid("code_without_provider", "code", "belongs to one provider: name the provider, or give only a status")
		}
		status, ok := codeStatus(r.Provider, r.Code)
		if !ok && r.Status == 0 {
			return notify.Invalid("bad_code", "code", fmt.Sprintf("%q is not a known code of %s; give a status with it", r.Code, r.Provider))
		}
		r.Status = intOr(r.Status, status)
	}
	if r.Status < 400 || r.Status > 599 {
		return notify.Invalid("bad_status", "status", "of an error must be from 400 to 599")
	}
	return nil
}

// retryAfter returns the Retry-After of the answer; 0: no header.
func (r *Rule) retryAfter(now time.Time) time.Duration {
	if r.RetryAfter == untilEnd {
		return max(0, r.Until.Sub(now))
	}
	return time.Duration(r.RetryAfter)
}

// ruleList holds the rules in force. Requests read the list without a lock.
type ruleList struct {
	seed uint64
	now  func() time.Time

	mu   sync.Mutex // held while the list is replaced
	next uint64
	list atomic.Pointer[[]*activeRule] // newest first
}

type activeRule struct {
	Rule
	matched, picked atomic.Uint64
}

// faultPlan holds the rules that apply to one request.
type faultPlan struct {
	fault   *Rule // nil: no fault; never a Delay or Receipt rule
	latency *Rule
	receipt *Rule
}

func newRules(seed uint64, now func() time.Time) *ruleList {
	r := &ruleList{seed: seed, now: now}
	r.list.Store(&[]*activeRule{})
	return r
}

func (rs *ruleList) add(r Rule) (Rule, error) {
	if err := r.normalise(rs.now()); err != nil {
		return Rule{}, err
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.next++
	r.Number, r.Matched, r.Picked = rs.next, 0, 0
	list := slices.DeleteFunc(slices.Clone(*rs.list.Load()), func(a *activeRule) bool { return a.isOver(rs.now()) })
	list = slices.Insert(list, 0, &activeRule{Rule: r})
	rs.list.Store(&list)
	return r, nil
}

func (rs *ruleList) remove(number uint64) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	old := *rs.list.Load()
	list := slices.DeleteFunc(slices.Clone(old), func(a *activeRule) bool { return a.Number == number })
	rs.list.Store(&list)
	return len(list) < len(old)
}

func (rs *ruleList) clear() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.list.Store(&[]*activeRule{})
}

func (rs *ruleList) all() []Rule {
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

// decide returns the rules that apply to one request.
func (rs *ruleList) decide(c *providerCall) faultPlan {
	var p faultPlan
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
		if *slotOf == nil && !a.isOver(now) && a.matches(c) && a.pickNext(rs.seed) {
			*slotOf = &a.Rule
		}
	}
	return p
}

func (a *activeRule) isOver(now time.Time) bool {
	return (!a.Until.IsZero() && !now.Before(a.Until)) || (a.Count > 0 && a.picked.Load() >= a.Count)
}

func (a *activeRule) matches(c *providerCall) bool {
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

// pickNext decides about the next match. With the same seed and rules it picks the same matches
// in every run.
func (a *activeRule) pickNext(seed uint64) bool {
	n := a.matched.Add(1)
	if a.Rate < 1 && unitInterval(mixHash(seed^a.Number<<32, n)) >= a.Rate {
		return false
	}
	return a.picked.Add(1) <= a.Count || a.Count == 0
}

func intOr(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}
