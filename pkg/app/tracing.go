package app

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/metrics"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
	"github.com/notifyd/notifyd/pkg/timer"
	"github.com/notifyd/notifyd/pkg/trace"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// newTracer returns the tracer, or nil if no collector is configured.
func newTracer(n *Node) (*trace.Tracer, error) {
	c := n.cfg.Tracing
	if c.Endpoint == "" {
		return nil, nil
	}
	var err error
	if c.Headers, err = collectorHeaders(c.HeadersFile); err != nil {
		return nil, err
	}
	m := n.metrics
	c.Version, c.MaxQueue, c.Every, c.Logger = n.cfg.Version, n.seams.traceQueue, n.seams.traceEvery, n.log
	c.Exported = func(k int) { m.SpansExported.Add(float64(k)) }
	c.Dropped = func(reason string, k int) { metrics.Add(m.SpansDropped, k, reason) }
	return trace.New(c)
}

// collectorHeaders reads a file of HTTP headers. Its errors do not contain the values, because the
// values may be secret.
func collectorHeaders(file string) (map[string]string, error) {
	if file == "" {
		return nil, nil
	}
	b, err := secrets.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("tracing.headers_file: %w", err)
	}
	headers := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for at := 1; lines.Scan(); at++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, notify.Invalid("bad_config", "tracing.headers_file", fmt.Sprintf("line %d does not have the form Name: value", at))
		}
		headers[name] = value
	}
	if lines.Err() != nil {
		return nil, notify.Invalid("bad_config", "tracing.headers_file", "has a line that is too long")
	}
	return headers, nil
}

// The wrappers below are used only if there is a tracer. Without a tracer the stages call each other
// directly.

// tracedLog makes one span for each append of a request.
type tracedLog struct {
	intake.Log
	tracer *trace.Tracer
}

func (l tracedLog) Append(ctx context.Context, recs []log.Record) error {
	s := l.tracer.Start("append", trace.FromContext(ctx))
	s.Int("notifyd.records", len(recs))
	err := l.Log.Append(ctx, recs)
	return endSpan(&s, err)
}

// tracedLater makes one span for each write of schedules by a request.
type tracedLater struct {
	intake.Later
	tracer *trace.Tracer
}

func (l tracedLater) Put(ctx context.Context, ss []engine.Schedule, ts []engine.Timer) error {
	s := l.tracer.Start("park", trace.FromContext(ctx))
	s.Int("notifyd.timers", len(ts))
	err := l.Later.Put(ctx, ss, ts)
	return endSpan(&s, err)
}

func traceLater(t *trace.Tracer, to intake.Later) intake.Later {
	if t == nil {
		return to
	}
	return tracedLater{to, t}
}

// tracedRows makes one span for each write of the timers (index rows) of triggers.
type tracedRows struct {
	trigger.Later
	tracer *trace.Tracer
}

func (l tracedRows) Put(ctx context.Context, ts []engine.Timer) error {
	s := l.tracer.Start("park", trace.FromContext(ctx))
	s.Int("notifyd.timers", len(ts))
	err := l.Later.Put(ctx, ts)
	return endSpan(&s, err)
}

func endSpan(s *trace.Span, err error) error {
	if err != nil {
		s.Fail(notify.KindOf(err).String())
	}
	s.End()
	return err
}

// maxReleased is the maximum number of spans for a batch of due timers.
const maxReleased = 64

// traceRelease wraps the function release. The wrapper makes a separate span for each stored
// envelope of a batch, because the envelopes belong to different requests. It makes no span for a
// trigger's timer, which has no trace context. The row of the trigger has the trace context, and
// the call of the trigger makes a span.
func traceRelease(t *trace.Tracer, release func(context.Context, []engine.Timer) error) func(context.Context, []engine.Timer) error {
	if t == nil {
		return release
	}
	return func(ctx context.Context, ts []engine.Timer) error {
		var spans []trace.Span
		for i := range ts {
			if ts[i].Kind != timer.KindEnvelope || len(spans) == maxReleased {
				continue
			}
			parent, state := notify.PeekTrace(ts[i].Payload)
			if s := t.Start("release", trace.Context{Parent: parent, State: state}); s.Recording() {
				s.Int("notifyd.due_ms", int(ts[i].FireAt))
				spans = append(spans, s)
			}
		}
		err := release(ctx, ts)
		for i := range spans {
			_ = endSpan(&spans[i], err)
		}
		return err
	}
}
