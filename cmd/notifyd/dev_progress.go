package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progressAfter is how long a start may take before notifyd dev prints the step it is in.
const progressAfter = time.Second

// progress prints the steps of a slow start: once progressAfter has passed, the current
// step and each later one. A quick start prints nothing. Its methods may be called by
// several goroutines; the timer's goroutine prints too.
type progress struct {
	out   io.Writer
	timer *time.Timer

	mu   sync.Mutex // guards the fields below, and writes to out
	step string
	slow bool // progressAfter has passed
	done bool // stop was called: nothing is printed any more
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

// say sets the step that begins, and prints it if the start is slow.
func (p *progress) say(step string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step = step
	if p.slow {
		p.print()
	}
}

// print prints the current step. The caller holds p.mu.
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
