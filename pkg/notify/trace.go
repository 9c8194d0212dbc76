package notify

import "google.golang.org/protobuf/encoding/protowire"

// TraceID is the trace id of a W3C traceparent: 32 hex digits, or "" where there
// is none. It trusts what was checked when it came in.
func TraceID(traceparent string) string {
	const from, to = len("00-"), len("00-") + 32
	if len(traceparent) < to {
		return ""
	}
	return traceparent[from:to]
}

// PeekTrace returns the traceparent and tracestate of an encoded envelope without
// decoding the rest; "" where there is none. They alias b.
func PeekTrace(b []byte) (parent, state string) {
	_ = eachField(b, func(num protowire.Number, _ uint64, s []byte) error { // what was read stands
		switch num {
		case fTrace:
			parent = alias(s)
		case fTraceState:
			state = alias(s)
		}
		return nil
	})
	return parent, state
}
