package main

import (
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
	all := mpb.New(mpb.WithOutput(p.err), mpb.WithWidth(48))
	name := mpb.PrependDecorators(decor.Name(what+" ", decor.WCSyncSpaceR))
	if total == 0 {
		return &progress{all, all.AddSpinner(0, name, mpb.AppendDecorators(decor.CurrentNoUnit("%d "), decor.AverageSpeed(0, "%.0f/s")))}
	}
	return &progress{all, all.AddBar(total, name, mpb.AppendDecorators(
		decor.CountersNoUnit("%d of %d ", decor.WCSyncSpace), decor.AverageSpeed(0, "%.0f/s "),
		decor.OnComplete(decor.AverageETA(decor.ET_STYLE_GO), ""),
	))}
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
