// Package faulty wraps contracts of pkg/engine and makes their calls fail as a plan says. A
// call may be refused, lose its answer, be slow, or hang until the test releases it. Tests use
// the package to check what a worker or the intake does while a store fails. A wrapper
// changes only the methods that some test makes fail. Calls of all other methods go straight
// to the wrapped engine.
//
//	plan := faulty.NewPlan(seed)
//	plan.Add(faulty.Rule{Method: "Status.Put", Times: 3, Err: faulty.ErrDown})
//	status := faulty.NewStatus(store.Status(), plan)
package faulty

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/notifyd/notifyd/pkg/notify"
)

// ErrDown is the error of an engine that cannot be reached.
var ErrDown error = notify.Unavailable("store", 0, errors.New("injected"))

// Rule makes some calls of a method fail, hang or run slowly. A call first runs Hook, then
// waits for Hold, then returns Err.
type Rule struct {
	// Method is "Contract.Method", e.g. "Idem.Reserve". "Contract.*" matches all methods of
	// a contract, and "*" matches all methods.
	Method string
	// Skip is how many matching calls run normally before the rule applies.
	Skip int
	// Times is how many of the following calls the rule applies to; 0: all.
	Times int
	// Chance is the share of calls that the rule applies to, from 0 to 1; 0: all. The plan
	// selects these calls at random, with its seed.
	Chance float64

	// Hook runs before the call, with the context of the call. It may block to make the
	// call slow, or signal to the test that the call has begun.
	Hook func(ctx context.Context, method string)
	// The call waits until Hold is closed or the context of the call ends.
	Hold <-chan struct{}
	// Err is the error that the call returns. If Err is nil, the call runs in the wrapped
	// engine.
	Err error
	// Lost says whether the call runs in the wrapped engine before it returns Err.
	Lost Loss
}

// Loss says whether the engine applies a call that returns Rule.Err.
type Loss uint8

const (
	// NotApplied means that the engine does not get the call.
	NotApplied Loss = iota
	// Applied means that the engine applies the call and only its answer is lost.
	Applied
)

// Plan decides to which calls its rules apply. Rules may be added and removed while calls
// run.
type Plan struct {
	mu    sync.Mutex // guards the fields below and the fields matched and applied of each rule
	rng   *rand.Rand
	rules []*rule
	calls map[string]int // by method
}

type rule struct {
	Rule
	matched, applied int // how many calls the rule matched, and to how many it was applied
}

// NewPlan returns a plan without rules: every call runs normally. The same seed and the
// same order of calls give the same faults.
func NewPlan(seed uint64) *Plan {
	return &Plan{rng: rand.New(rand.NewPCG(seed, 0)), calls: map[string]int{}}
}

// Add adds a rule after the existing rules. If several rules match a call, the first rule
// that applies is used. The returned function removes the rule.
func (p *Plan) Add(r Rule) (remove func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	added := &rule{Rule: r}
	p.rules = append(p.rules, added)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i, r := range p.rules {
			if r == added {
				p.rules = append(p.rules[:i:i], p.rules[i+1:]...)
				return
			}
		}
	}
}

// Calls returns how often a method was called, including calls that failed.
func (p *Plan) Calls(method string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[method]
}

// pickRule counts the call and returns the rule that applies to it. It returns false if no
// rule applies.
func (p *Plan) pickRule(method string) (Rule, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[method]++
	contract, _, _ := strings.Cut(method, ".")
	for _, r := range p.rules {
		if r.Method != method && r.Method != contract+".*" && r.Method != "*" {
			continue
		}
		if r.matched++; r.matched <= r.Skip || (r.Times > 0 && r.applied >= r.Times) {
			continue
		}
		if r.Chance > 0 && p.rng.Float64() >= r.Chance {
			continue
		}
		r.applied++
		return r.Rule, true
	}
	return Rule{}, false
}

// Do runs fn as the plan says. It returns the error of fn, or the Err of the rule that
// applies, or notify.KindUnavailable if ctx ends while the call waits for the Hold of the
// rule. Each method of a wrapper calls Do.
func (p *Plan) Do(ctx context.Context, method string, fn func() error) error {
	r, ok := p.pickRule(method)
	if !ok {
		return fn()
	}
	if r.Hook != nil {
		r.Hook(ctx, method)
	}
	if r.Hold != nil {
		select {
		case <-r.Hold:
		case <-ctx.Done():
			return notify.Unavailable("store", 0, context.Cause(ctx))
		}
	}
	if r.Err == nil {
		return fn()
	}
	if r.Lost == Applied {
		_ = fn() // the caller gets Err even if the engine returned nil
	}
	return r.Err
}

// Get does what Plan.Do does, for calls with a result. If it returns an error, the result
// is the zero value.
func Get[V any](ctx context.Context, p *Plan, method string, call func() (V, error)) (V, error) {
	var v V
	err := p.Do(ctx, method, func() (err error) {
		v, err = call()
		return err
	})
	if err != nil {
		var zero V
		return zero, err
	}
	return v, nil
}

// pair is a result of two values.
type pair[A, B any] struct {
	a A
	b B
}

// Get2 does what Get does, for calls with two results.
func Get2[A, B any](ctx context.Context, p *Plan, method string, call func() (A, B, error)) (A, B, error) {
	r, err := Get(ctx, p, method, func() (r pair[A, B], err error) {
		r.a, r.b, err = call()
		return r, err
	})
	return r.a, r.b, err
}
