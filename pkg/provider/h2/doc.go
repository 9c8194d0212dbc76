// Package h2 posts very many small requests over few HTTP/2 connections (RFC 9113). It works with
// HTTP/2 frames directly.
//
// The client of net/http needs a goroutine, a dozen allocations, an HPACK encoding and a flush for
// every request. Here a connection has two goroutines. The writer encodes the queued requests of
// many callers into one buffer and writes the buffer with one call. The reader reads the answers.
// Header fields that requests share are encoded once and then copied. A caller submits a batch of
// requests and receives a batch of answers, so no goroutine waits for a single request.
//
//	Pool    keeps connections open and contains the queue
//	Batch   receives the answers of one caller's requests
//	Request is one POST; the pool owns it from Submit until it is in the batch again
//
// A request may end without an answer. Then [Failure] says why, and [Request.Sent] says whether the
// server may have received the whole request. The package sends a request again in two cases only:
// the server said that it did not process the request, or the server cannot have received the whole
// request. The caller decides what a failure means.
//
// Start reading at Pool.Submit and Pool.Run; write.go and read.go are the two goroutines of a
// connection.
package h2
