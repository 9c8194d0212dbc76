package worker

import (
	"bytes"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trace"
)

// traceOf is the trace an envelope came with.
func traceOf(e *notify.Envelope) trace.Context {
	return trace.Context{Parent: e.Trace, State: e.TraceState}
}

// begin begins the span of a round, below the request of its first envelope that
// is recorded; mails of other requests that go with it are linked.
func (r *round) begin() {
	t := r.w.cfg.Tracer
	first := 0
	if t != nil {
		for first < len(r.parts)-1 && !traceOf(&r.parts[first].job.env).Sampled() {
			first++
		}
	}
	e := &r.parts[first].job.env
	if r.span = t.Start("deliver", traceOf(e)); !r.span.On() {
		return
	}
	r.span.Str("notifyd.lane", r.w.cfg.Lane.String())
	r.span.Str("notifyd.request", e.Chunk.Base.String())
	r.span.Int("notifyd.attempt", int(e.Attempt))
	r.span.Int("notifyd.epoch", int(e.Epoch))
	r.span.Int("notifyd.deferrals", int(e.Deferrals))
	linked := 0
	for i, p := range r.parts {
		if c := traceOf(&p.job.env); i != first && c.Sampled() && linked < maxLinks {
			r.span.Link(c)
			linked++
		}
	}
}

// maxLinks is how many traces of other requests a round names.
const maxLinks = 64

// end ends it, with how many receivers came to which state.
func (r *round) end() {
	if !r.span.On() {
		return
	}
	var states [notify.Unknown + 1]int
	n := 0
	for i, p := range r.parts {
		n += int(p.hi - p.lo)
		states[r.def.State] += bytes.Count(r.plain[i], []byte{1})
		for k := range r.ex[i] {
			states[r.ex[i][k].State]++
		}
	}
	r.span.Int("notifyd.receivers", n)
	for s, n := range states {
		if n > 0 {
			r.span.Int("notifyd.state."+notify.State(s).String(), n)
		}
	}
	r.span.End()
}

// calling begins the span of one provider call, whose context the call carries:
// the caller's own where nothing is recorded.
func (r *round) calling() trace.Span {
	s := r.w.cfg.Tracer.Call("provider call", r.span.Context())
	c := s.Context()
	r.call.Trace, r.call.TraceState = c.Parent, c.State
	if s.On() {
		s.Str("notifyd.lane", r.w.cfg.Lane.String())
		s.Int("notifyd.items", len(r.call.Items))
	}
	return s
}

// called ends it; before is how many exceptions there were of each part.
func (r *round) called(s *trace.Span, before []int) {
	if !s.On() {
		return
	}
	not, code := len(r.again), ""
	r.mu.Lock()
	for i := range r.ex {
		for k := before[i]; k < len(r.ex[i]); k++ {
			if x := &r.ex[i][k]; x.State != notify.Sent && x.State != notify.Delivered {
				not, code = not+1, x.Code
			}
		}
	}
	r.mu.Unlock()
	s.Int("notifyd.not_accepted", not)
	if not > 0 {
		s.Fail(code)
	}
	s.End()
}

// before counts the exceptions of each part.
func (r *round) before(s *trace.Span) (n []int) {
	if s.On() {
		for i := range r.ex {
			n = append(n, len(r.ex[i]))
		}
	}
	return n
}
