// Package faulty wraps engine contracts and makes their calls fail as a plan
// says: refused, lost on the way back, slow, or hanging until released. Tests
// of workers and intake use it to see what they do when a store misbehaves. Methods
// that no test lets fail pass every call on.
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

// ErrDown is what an engine that cannot be reached answers.
var ErrDown error = notify.Unavailable("store", 0, errors.New("injected"))

// Rule makes some calls of a method misbehave. Its parts happen in the order
// of its fields.
type Rule struct {
	// Method is "Contract.Method", e.g. "Idem.Reserve"; "Contract.*" and "*"
	// match more.
	Method string
	// Skip lets that many matching calls pass first.
	Skip int
	// Times is how many calls it applies to after that; 0: all.
	Times int
	// Chance applies it to a share of calls by the plan's seed, 0 to 1; 0: to all.
	Chance float64

	// Hook runs before the call, with its context: it may block to be slow, or
	// tell the test that the call is there.
	Hook func(ctx context.Context, method string)
	// Hold keeps the call until it is closed or the call's context ends.
	Hold <-chan struct{}
	// Err is answered. Nil passes the call on.
	Err error
	// Lost makes the call before Err is answered: the acknowledgement got lost.
	Lost Loss
}

// Loss says whether a call that is answered with an error was applied.
type Loss uint8

const (
	// NotApplied: the engine never saw the call.
	NotApplied Loss = iota
	// Applied: the engine did what was asked; only the answer is an error.
	Applied
)

// Plan decides about calls. It may be changed while calls run.
type Plan struct {
	mu    sync.Mutex
	rng   *rand.Rand
	rules []*rule
	calls map[string]int
}

type rule struct {
	Rule
	seen, used int
}

// NewPlan returns a plan without rules: every call passes. The same seed and
// order of calls give the same faults.
func NewPlan(seed uint64) *Plan {
	return &Plan{rng: rand.New(rand.NewPCG(seed, 0)), calls: map[string]int{}}
}

// Add adds a rule behind those there are; the first that applies to a call
// decides. The returned function removes it.
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

// Calls returns how often a method was called, faults included.
func (p *Plan) Calls(method string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[method]
}

// pick counts the call and returns the rule that applies to it.
func (p *Plan) pick(method string) (Rule, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[method]++
	contract, _, _ := strings.Cut(method, ".")
	for _, r := range p.rules {
		if r.Method != method && r.Method != contract+".*" && r.Method != "*" {
			continue
		}
		if r.seen++; r.seen <= r.Skip || (r.Times > 0 && r.used >= r.Times) {
			continue
		}
		if r.Chance > 0 && p.rng.Float64() >= r.Chance {
			continue
		}
		r.used++
		return r.Rule, true
	}
	return Rule{}, false
}

// Do runs call as the plan says. A wrapper of a contract calls it for each method.
func (p *Plan) Do(ctx context.Context, method string, call func() error) error {
	r, ok := p.pick(method)
	if !ok {
		return call()
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
		return call()
	}
	if r.Lost == Applied {
		_ = call() // whatever came of it, the caller hears Err
	}
	return r.Err
}

// Get is Plan.Do for calls with a result, which an error takes away.
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

// two is a result of two values.
type two[A, B any] struct {
	a A
	b B
}

// Get2 is Get for calls with two results.
func Get2[A, B any](ctx context.Context, p *Plan, method string, call func() (A, B, error)) (A, B, error) {
	r, err := Get(ctx, p, method, func() (r two[A, B], err error) {
		r.a, r.b, err = call()
		return r, err
	})
	return r.a, r.b, err
}
