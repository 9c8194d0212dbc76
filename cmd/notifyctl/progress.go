package main

import (
	"fmt"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress is a bar on standard error, where that is a terminal; elsewhere it
// is nil, and says nothing.
type progress struct {
	all *mpb.Progress
	bar *mpb.Bar
}

// progress begins a bar for so many things; 0: it is not known how many.
func (p *program) progress(what string, total int64) *progress {
	if !p.errTerminal || p.global.quiet || p.getenv("TERM") == "dumb" {
		return nil
	}
	all, began := mpb.New(mpb.WithOutput(p.err), mpb.WithWidth(48)), p.now()
	// The carriage return is for the echo of a ^C: it leaves the cursor behind column
	// 0, from where mpb draws the next frame ("chchecking").
	name := mpb.PrependDecorators(decor.Name(fmt.Sprintf("\r%-10s ", what)))
	tail := mpb.AppendDecorators(decor.Any(func(st decor.Statistics) string {
		return howFar(st.Current, total, p.now().Sub(began))
	}))
	if total == 0 {
		return &progress{all, all.AddSpinner(0, name, tail)}
	}
	return &progress{all, all.AddBar(total, name, tail)}
}

// howFar says how much of total is done, how fast, and how long the rest takes at
// that; a total of 0 is not known. Before the first is done nobody knows either.
func howFar(done, total int64, took time.Duration) string {
	s := count(done)
	if total > 0 {
		s += " of " + count(total)
	}
	if done == 0 || took <= 0 {
		return s
	}
	rate := float64(done) / took.Seconds()
	s += fmt.Sprintf("  %s/s", count(int64(rate)))
	if left := total - done; left > 0 {
		s += "  " + span(time.Duration(float64(left)/rate*float64(time.Second))) + " left"
	}
	return s
}

func (g *progress) add(n int) {
	if g != nil {
		g.bar.IncrBy(n)
	}
}

func (g *progress) set(n int64) {
	if g != nil {
		g.bar.SetCurrent(n)
	}
}

// end leaves the bar as it is and goes on below it.
func (g *progress) end() {
	if g == nil {
		return
	}
	if !g.bar.Completed() {
		g.bar.Abort(false)
	}
	g.all.Wait()
}
