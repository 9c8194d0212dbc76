package trace

import (
	"context"
	"net/http"
	"strings"

	oteltrace "go.opentelemetry.io/otel/trace"
)

// Header names, in their canonical form.
const (
	HeaderParent = "Traceparent"
	HeaderState  = "Tracestate"
)

// maxState is the longest tracestate that is kept, in bytes. W3C Trace Context requires that a
// tracestate of this length is kept. The tracestate is stored in every record of a request.
const maxState = 512

// Context is a W3C trace context: the two texts that headers and records contain. The zero value
// means that there is no context.
type Context struct {
	Parent string // traceparent, of version 00
	State  string // tracestate; set only together with Parent
}

// None reports whether there is no context.
func (c Context) None() bool { return c.Parent == "" }

// Sampled reports whether the system that began the trace records it.
func (c Context) Sampled() bool {
	return len(c.Parent) == parentLen && unhex(c.Parent[parentLen-1])&1 != 0
}

// FromHeader reads the trace context of a request by W3C Trace Context, level 1. It returns the
// zero Context if traceparent is malformed or occurs twice. If only tracestate is malformed, it
// drops the tracestate and keeps the traceparent. The returned strings do not change when h
// changes.
func FromHeader(h http.Header) Context {
	ps := h[HeaderParent]
	if len(ps) != 1 {
		return Context{}
	}
	p, ok := parseParent(ps[0])
	if !ok {
		return Context{}
	}
	return Context{Parent: p, State: parseState(h[HeaderState])}
}

// parentLen is the length of a traceparent of version 00:
// "00-" 32 hex "-" 16 hex "-" 2 hex.
const parentLen = 55

// parseParent checks a traceparent. It returns a traceparent of version 00 unchanged. It converts a
// traceparent of a later version to version 00 and keeps the fields that version 00 has, as level 1
// requires.
func parseParent(s string) (string, bool) {
	const idAt, spanAt, flagsAt = 3, 36, 53
	if len(s) < parentLen || s[2] != '-' || s[spanAt-1] != '-' || s[flagsAt-1] != '-' ||
		!isHex(s[:2]) || !isID(s[idAt:spanAt-1]) || !isID(s[spanAt:flagsAt-1]) || !isHex(s[flagsAt:parentLen]) {
		return "", false
	}
	switch {
	case s[:2] == "ff":
		return "", false
	case s[:2] == "00":
		return s, len(s) == parentLen
	case len(s) > parentLen && s[parentLen] != '-':
		return "", false
	}
	flags := "00"
	if unhex(s[parentLen-1])&1 != 0 {
		flags = "01"
	}
	return "00" + s[2:flagsAt] + flags, true
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// isID reports whether s is hexadecimal and contains a digit other than 0.
func isID(s string) bool { return isHex(s) && strings.Trim(s, "0") != "" }

func unhex(c byte) byte {
	if c >= 'a' {
		return c - 'a' + 10
	}
	return c - '0'
}

// parseState joins the tracestate headers and checks them. It returns "" if they are malformed or
// too long.
func parseState(hs []string) string {
	if len(hs) == 0 {
		return ""
	}
	s := strings.Join(hs, ",")
	if s == "" || len(s) > maxState {
		return ""
	}
	state, err := oteltrace.ParseTraceState(s)
	if err != nil {
		return ""
	}
	return state.String()
}

type contextKey struct{}

// ContextWith returns a copy of ctx that contains c. Code that makes spans later gets c with
// FromContext.
func ContextWith(ctx context.Context, c Context) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// FromContext returns the Context that ContextWith put into ctx, or the zero Context if there is none.
func FromContext(ctx context.Context) Context {
	c, _ := ctx.Value(contextKey{}).(Context)
	return c
}
