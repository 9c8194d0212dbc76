package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// quietFor is how long a start may take before it says what it does.
const quietFor = time.Second

// progress says what a start is at: nothing where it is quick, else the step it
// is in, and each one that follows.
type progress struct {
	out   io.Writer
	timer *time.Timer

	mu   sync.Mutex
	step string
	slow bool // quietFor is over
	done bool
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out}
	p.timer = time.AfterFunc(quietFor, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.slow = true
		p.print()
	})
	return p
}

// say names the step that begins.
func (p *progress) say(step string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step = step
	if p.slow {
		p.print()
	}
}

func (p *progress) print() {
	if !p.done && p.step != "" {
		fmt.Fprintf(p.out, "notifyd dev is starting: %s ...\n", p.step)
	}
}

// stop ends it; nothing is said any more.
func (p *progress) stop() {
	p.timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = true
}
