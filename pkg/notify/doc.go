// Package notify holds the domain: ids, channels, categories and lanes, envelopes and their
// receivers, calls and results of providers, outcome rows, states, and the error type of the
// repository. It imports no other package of the repository.
//
// An envelope (envelope.go) is a record of the log. It holds the content once, and the receivers of
// one chunk. codec.go encodes the envelope, and receivers.go encodes the receivers in it. The
// worker makes Calls (call.go) from an envelope and writes Rows (row.go). A state is never stored:
// Fold (row.go) computes the state from the rows of a chunk, by the rules in state.go.
//
// Decoding returns ErrCorrupt for damage and ErrNewer (newer.go) for a value that a newer release
// wrote. Callers must never confuse the two errors. Start with Envelope, Row and Fold.
package notify
