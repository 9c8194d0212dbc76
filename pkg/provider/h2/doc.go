// Package h2 posts very many small requests over few HTTP/2 connections (RFC 9113), working on
// the level of frames.
//
// The client of net/http takes a goroutine, a dozen allocations, an HPACK encoding and a flush
// for every request. Here a connection has two goroutines. The writer encodes what many callers
// have queued into one buffer and writes it at once; the reader reads the answers. Header fields
// that requests share are encoded once and then copied. A caller submits a batch of requests and
// receives a batch of answers, so no goroutine waits for a single request.
//
//	Pool    keeps connections open and holds the queue
//	Batch   receives the answers of one caller's requests
//	Request one POST; the pool owns it from Submit until it is in the batch again
//
// What may go wrong: a request may end without an answer. Then [Failure] says why, and
// [Request.Sent] says whether the server may have received all of it. The package sends a
// request again only if the server said that it did not process it, or cannot have received all
// of it. What a failure means is left to the caller.
//
// Start reading at Pool.Submit and Pool.Run; write.go and read.go are the two goroutines of a
// connection.
package h2
