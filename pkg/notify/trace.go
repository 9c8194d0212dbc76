package notify

import "google.golang.org/protobuf/encoding/protowire"

// TraceID returns the trace id of a W3C traceparent: 32 hex digits. It returns "" if traceparent is too
// short or empty. It does not check the form, because intake has checked it.
func TraceID(traceparent string) string {
	const from, to = len("00-"), len("00-") + 32
	if len(traceparent) < to {
		return ""
	}
	return traceparent[from:to]
}

// PeekTrace returns the traceparent and the tracestate of an encoded envelope, and does not decode the
// other fields. It returns "" for a missing value. The two strings alias b.
func PeekTrace(b []byte) (parent, state string) {
	_ = eachField(b, func(num protowire.Number, _ uint64, s []byte) error { // if the envelope is damaged, PeekTrace returns the values read before the damage
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
