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

// Action says what a rule does with a request that it selects.
type Action string

// The actions. If a provider acts on a request, its message counts as delivered. With Gateway,
// Reset, ResetStream, CloseConn and Hang the provider acts on the request, but the caller cannot
// know that. So the outcome is ambiguous. With Drop and Refuse the provider does not act on the
// request. The caller cannot tell Reset from Drop.
const (
	// Fail answers with Status and Code.
	Fail     Action = "error"
	Outage   Action = "outage"       // Fail with 503
	Throttle Action = "throttle"     // Fail with 429
	Deny     Action = "unauthorized" // Fail with 401; for APNs with 403
	// Gateway acts on the request, then answers Status, by default 502. It simulates a gateway that
	// has lost the answer of the provider.
	Gateway     Action = "gateway"
	Reset       Action = "reset"        // act on the request, then reset the connection without an answer
	ResetStream Action = "reset_stream" // act on the request, then reset only its HTTP/2 stream
	Drop        Action = "drop"         // reset the connection without acting on the request
	Refuse      Action = "refuse"       // APNs: refuse its HTTP/2 stream without acting on the request
	// GoAway is for APNs. It sends GOAWAY on the connection. This request and earlier requests
	// still get an answer. Later requests on the connection get no answer.
	GoAway Action = "go_away"
	// CloseConn is for APNs. It acts on the request, then closes the connection normally, without
	// an answer and without GOAWAY.
	CloseConn Action = "close"
	Hang      Action = "hang"     // act on the request and never answer
	Redirect  Action = "redirect" // callback: answer 302 to Location
	Huge      Action = "huge"     // callback: act on the request, answer 200 with a body of 64 MiB
	Drip      Action = "drip"     // answer with a body that is sent slowly over Latency
	Delay     Action = "latency"  // answer after Latency, which replaces the latency of the provider
	Receipt   Action = "receipt"  // act on the request; its receipt reports Code
)

// Rule describes a fault. A request matches a rule if it has the rule's Provider, Account, Pool,
// Template, Prefix and ID; an empty field matches every request. The rule selects a share (Rate) of
// the matching requests, but at most Count of them, and only until the time Until.
//
// If several rules select a request, the newest rule applies. But there are three kinds of rules:
// for the latency (Delay), for the receipt (Receipt), and for the answer (all others). One rule of
// each kind can apply to the same request.
type Rule struct {
	Number uint64 `json:"number"` // set by AddRule

	Provider Provider `json:"provider"` // empty: all providers
	Account  string   `json:"account"`  // Twilio account SID; empty: all accounts
	Pool     string   `json:"pool"`     // SendGrid ip_pool_name; empty: all pools
	Prefix   string   `json:"prefix"`   // prefix of a token, phone number or e-mail address
	ID       string   `json:"id"`       // id of one notification
	Template string   `json:"template"` // SendGrid template_id; empty: all templates

	Rate  float64   `json:"rate"`  // share of the requests that match, above 0 and at most 1; 0 means 1
	Count uint64    `json:"count"` // most requests that the rule selects; 0: no limit
	For   Duration  `json:"for"`   // sets Until: the rule ends this long after it was added
	Until time.Time `json:"until"` // when the rule ends; zero: it does not end

	Do     Action `json:"do"`
	Status int    `json:"status"` // Fail, Gateway: HTTP status of the answer; 0: the status that belongs to Code
	// Code is the provider's reason or error code for Fail. For Receipt it is a Twilio error code,
	// or bounce, async_bounce, blocked, dropped, deferred, spamreport or unsubscribe.
	Code string `json:"code"`
	// RetryAfter is the Retry-After of the answer for Fail, rounded up to seconds. If it is 0 in a
	// Throttle rule with an end, the answer has the time until this end.
	RetryAfter Duration `json:"retry_after"`
	Latency    Latency  `json:"latency"`  // Drip, Delay
	Location   string   `json:"location"` // Redirect

	Matched uint64 `json:"matched"` // number of requests that matched, without those that a newer rule of this kind had selected; read-only
	Picked  uint64 `json:"picked"`  // number of requests that the rule selected; read-only
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

// untilEnd is a value of RetryAfter that means the time until the end of the rule.
const untilEnd = Duration(-1)

func (r *Rule) validate() error {
	if r.Provider > allProviders {
		return notify.Invalid("bad_provider", "provider", "is not a known provider")
	}
	if !(r.Rate > 0 && r.Rate <= 1) {
		return notify.Invalid("bad_rate", "rate", "must be a share above 0 and at most 1")
	}
	if err := r.Latency.validate("latency"); err != nil {
		return err
	}
	switch r.Do {
	case Reset, ResetStream, Drop, Hang:
		return nil
	case Refuse, GoAway, CloseConn:
		if r.Provider != APNs {
			return notify.Invalid("bad_action", "do", fmt.Sprintf("%q works only with the provider apns: set provider to apns", r.Do))
		}
		return nil
	case Drip, Delay:
		if r.Latency.Median == 0 {
			return notify.Invalid("no_latency", "latency", "is required if do is \"drip\" or \"latency\": it says how long the answer takes")
		}
		return nil
	case Redirect, Huge:
		if r.Provider != Callback {
			return notify.Invalid("bad_action", "do", fmt.Sprintf("%q works only with the provider callback: set provider to callback", r.Do))
		}
		if r.Do == Redirect && r.Location == "" {
			return notify.Invalid("no_location", "location", "is required if do is \"redirect\": it is the URL to which the answer redirects")
		}
		return nil
	case Receipt:
		return validReceiptCode(r.Provider, r.Code)
	case Fail, Gateway:
		return r.validateFail()
	}
	return notify.Invalid("bad_action", "do", fmt.Sprintf("%q is not an action; notifyctl sim rule add --help explains the actions", r.Do))
}

func (r *Rule) validateFail() error {
	if r.Code != "" {
		if r.Provider == 0 {
			return notify.Invalid("code_without_provider", "code", "a code belongs to one provider: set provider too, or set status instead of code")
		}
		status, ok := codeStatus(r.Provider, r.Code)
		if !ok && r.Status == 0 {
			return notify.Invalid("bad_code", "code", fmt.Sprintf("%q is not a known code of %s: set status too", r.Code, r.Provider))
		}
		r.Status = intOr(r.Status, status)
	}
	if r.Status < 400 || r.Status > 599 {
		return notify.Invalid("bad_status", "status", fmt.Sprintf("the status of an error must be from 400 to 599, not %d", r.Status))
	}
	return nil
}

// retryAfter returns the time for the header Retry-After. 0 means no header.
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

	mu   sync.Mutex // held while the list is replaced by another list
	next uint64
	list atomic.Pointer[[]*activeRule] // the newest rule first
}

type activeRule struct {
	Rule
	matched, picked atomic.Uint64
}

// faultPlan holds the rules that apply to one request. A field is nil if no rule of its kind
// applies.
type faultPlan struct {
	fault   *Rule // never a Delay or Receipt rule
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

// decide returns the rules that apply to one request. It also counts the request in Matched of each
// rule in force that the request matches, unless a newer rule of the same kind has selected the
// request.
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

// pickNext decides whether the rule selects the next request that matches. With the same seed and
// the same rules, every run selects the same of the matching requests.
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
