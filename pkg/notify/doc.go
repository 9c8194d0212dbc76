// Package notify holds the domain: ids, channels, categories and lanes, envelopes and their
// receivers, calls and results of providers, outcome rows, states, and the error type of the
// repository. It depends on no other package.
//
// An envelope (envelope.go) is a record of the log: the content once, and the receivers of one
// chunk. codec.go encodes it and receivers.go its column of receivers. The worker makes Calls
// (call.go) from it and writes Rows (row.go). A state is never stored: Fold (row.go) computes
// it from the rows of a chunk, by the rules in state.go.
//
// Decoding returns ErrCorrupt for damage and ErrNewer (newer.go) for a value of a newer
// release; the two must never be confused. Start with Envelope, Row and Fold.
package notify
