package provider

import (
	"net/http"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider/h2"
)

// traceHeader is the W3C trace context of a call. All requests of the call carry it. It is made
// once per call. If the call has no trace context, traceHeader costs only one comparison for each
// request.
type traceHeader struct{ parent, state []string }

func traceOf(call *notify.Call) (t traceHeader) {
	if call.Trace != "" {
		t.parent = []string{call.Trace}
		if call.TraceState != "" {
			t.state = []string{call.TraceState}
		}
	}
	return t
}

func (t *traceHeader) put(h http.Header) {
	if t.parent == nil {
		return
	}
	h["Traceparent"] = t.parent
	if t.state != nil {
		h["Tracestate"] = t.state
	}
}

// append appends the fields of the trace context, if there is one.
func (t *traceHeader) append(b []byte) []byte {
	if t.parent != nil {
		b = h2.AppendField(b, "traceparent", t.parent[0])
	}
	if t.state != nil {
		b = h2.AppendField(b, "tracestate", t.state[0])
	}
	return b
}
