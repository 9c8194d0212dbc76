// Package h2 posts very many small requests over few HTTP/2 connections
// (RFC 9113) at the level of frames.
//
// The client of net/http takes a goroutine, a dozen allocations, a walk through
// HPACK and a flush for every request. Here a connection has two goroutines: one
// encodes what many callers have queued into one buffer and writes it at once, the
// other reads. Header fields that requests share are encoded once and copied from
// then on; whoever posts hands over a batch of requests and gets a batch of
// answers, so that no goroutine waits for a single one.
//
//	Pool    keeps connections open and holds the queue
//	Batch   is where the answers of one caller's requests arrive
//	Request one POST, owned by the caller but between Submit and its answer
//
// The package speaks of what became of a request ([Failure], [Request.Sent]), and
// leaves what that means to its caller: a request is posted again only where the
// server said that it did not look at it, or could not have had all of it.
package h2
