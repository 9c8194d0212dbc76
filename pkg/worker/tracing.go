package worker

import (
	"bytes"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trace"
)

// traceOf returns the trace context of an envelope.
func traceOf(e *notify.Envelope) trace.Context {
	return trace.Context{Parent: e.Trace, State: e.TraceState}
}

// startSpan starts the span of a round as a child of its first sampled envelope. If the round also
// has mails of other requests, it links the traces of these requests.
func (r *round) startSpan() {
	t := r.w.cfg.Tracer
	first := 0
	if t != nil {
		for first < len(r.parts)-1 && !traceOf(&r.parts[first].job.env).Sampled() {
			first++
		}
	}
	e := &r.parts[first].job.env
	if r.span = t.Start("deliver", traceOf(e)); !r.span.Recording() {
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

// maxLinks is the largest number of traces of other requests that a round links.
const maxLinks = 64

// endSpan ends the span of a round, with the number of receivers in each state.
func (r *round) endSpan() {
	if !r.span.Recording() {
		return
	}
	var states [notify.Unknown + 1]int
	n := 0
	for i, p := range r.parts {
		n += int(p.hi - p.lo)
		states[r.defaultOutcome.State] += bytes.Count(r.hasDefault[i], []byte{1})
		for k := range r.exceptions[i] {
			states[r.exceptions[i][k].State]++
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

// startCallSpan starts the span of one provider call. The call carries the context of this span, or
// the caller's context if the span is not recorded.
func (r *round) startCallSpan() trace.Span {
	s := r.w.cfg.Tracer.Call("provider call", r.span.Context())
	c := s.Context()
	r.call.Trace, r.call.TraceState = c.Parent, c.State
	if s.Recording() {
		s.Str("notifyd.lane", r.w.cfg.Lane.String())
		s.Int("notifyd.items", len(r.call.Items))
	}
	return s
}

// endCallSpan ends the span of a call. The slice counts is the result of countExceptions before the
// call.
func (r *round) endCallSpan(s *trace.Span, counts []int) {
	if !s.Recording() {
		return
	}
	not, code := len(r.notTaken), ""
	r.mu.Lock()
	for i := range r.exceptions {
		for k := counts[i]; k < len(r.exceptions[i]); k++ {
			if x := &r.exceptions[i][k]; x.State != notify.Sent && x.State != notify.Delivered {
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

// countExceptions returns how many exceptions each part has so far, or nil if the span is not
// recorded.
func (r *round) countExceptions(s *trace.Span) (n []int) {
	if s.Recording() {
		for i := range r.exceptions {
			n = append(n, len(r.exceptions[i]))
		}
	}
	return n
}
