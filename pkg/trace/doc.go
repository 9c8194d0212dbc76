// Package trace carries W3C trace contexts and exports spans by OpenTelemetry.
//
// The two are apart. A caller's traceparent travels with its notification or
// trigger whether or not anything is exported: FromHeader reads it, records and
// rows keep it as two strings (Context), and clients of providers and callbacks
// send it on. Spans are made by a Tracer, which there is only where a collector is
// configured; a nil *Tracer makes none, and costs a comparison. The least of 40 short
// runs on a busy machine, on which BenchmarkAppendEnvelope takes 120 to 130 ns:
//
//	BenchmarkOff/request   68 ns   0 allocs   a request with a traceparent to check
//	BenchmarkOff/none      10 ns   0 allocs   one without
//	BenchmarkOff/window     7 ns   0 allocs   a window of up to 1,000 receivers
//
// This package is the only one that imports OpenTelemetry. Spans are of requests,
// appends, windows of receivers, provider calls, waits and callbacks, never of a
// receiver.
package trace
