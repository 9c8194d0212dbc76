package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progressAfter is how long a start may take before notifyd dev prints its present step.
const progressAfter = time.Second

// progress prints the steps of a slow start. When progressAfter has passed, it prints the present step,
// and then each later step. It prints nothing if the start takes less than progressAfter. Several
// goroutines may call its methods. The goroutine of the timer prints too.
type progress struct {
	out   io.Writer
	timer *time.Timer

	mu   sync.Mutex // guards the fields below, and the writes to out
	step string
	slow bool // true: progressAfter has passed
	done bool // true: stop was called, so nothing more is printed
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out}
	p.timer = time.AfterFunc(progressAfter, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.slow = true
		p.print()
	})
	return p
}

// setStep sets the present step. If the start is slow, it prints the step.
func (p *progress) setStep(step string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step = step
	if p.slow {
		p.print()
	}
}

// print prints the present step. The caller holds p.mu.
func (p *progress) print() {
	if !p.done && p.step != "" {
		fmt.Fprintf(p.out, "notifyd dev is starting: %s ...\n", p.step)
	}
}

// stop ends the printing. It may be called more than once.
func (p *progress) stop() {
	p.timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = true
}
