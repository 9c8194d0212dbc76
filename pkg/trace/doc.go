// Package trace carries W3C trace contexts and exports spans with OpenTelemetry.
//
// These two parts are independent. A caller's traceparent stays with its notification or trigger
// even if no span is exported: FromHeader reads it, records and rows store it as two strings
// (Context), and the clients of providers and callbacks send it. A Tracer makes spans. It exists
// only if a collector is configured; a nil *Tracer makes no spans and costs one comparison.
//
// These are the costs without a Tracer. Each figure is the lowest of 40 short runs on a busy
// machine, where BenchmarkAppendEnvelope takes 120 to 130 ns:
//
//	BenchmarkOff/request   68 ns   0 allocs   a request with a traceparent to check
//	BenchmarkOff/none      10 ns   0 allocs   a request without a traceparent
//	BenchmarkOff/window     7 ns   0 allocs   a window of up to 1,000 receivers
//
// If the collector fails or is slow, spans are dropped and counted. Delivery never waits for the
// collector.
//
// Only this package imports OpenTelemetry. Spans describe requests, appends, windows of receivers,
// provider calls, waits and callbacks. No span describes a single receiver. Start reading at Tracer
// in tracer.go.
package trace
