package notify

import "google.golang.org/protobuf/encoding/protowire"

// TraceID returns the trace id of a W3C traceparent, 32 hex digits, or "" if traceparent is empty.
// It does not check the form: intake has checked it.
func TraceID(traceparent string) string {
	const from, to = len("00-"), len("00-") + 32
	if len(traceparent) < to {
		return ""
	}
	return traceparent[from:to]
}

// PeekTrace returns the traceparent and tracestate of an encoded envelope without decoding the
// rest, or "" for each that is missing. They alias b.
func PeekTrace(b []byte) (parent, state string) {
	_ = eachField(b, func(num protowire.Number, _ uint64, s []byte) error { // at damage the values read so far are returned
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
