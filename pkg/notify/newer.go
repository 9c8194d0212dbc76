package notify

import (
	"errors"
	"fmt"
	"time"
)

// ErrNewer means that a newer release wrote a record or a row. The record or row is not damaged
// (that would be ErrCorrupt), but this release cannot read it. This happens during a rolling
// upgrade. A process of the newer release will process the record or row later. So a process that
// gets ErrNewer must leave it as it is: not delete it, not rewrite it, not move it to the poison
// topic. Nor may it commit an offset after that of the record.
var ErrNewer = errors.New("written by a newer release")

// newerRetry is the RetryAfter of the error that Newer returns. A repeated request may reach a process
// of the newer release, which can read the value.
const newerRetry = 5 * time.Second

// Newer returns an error with the code "store_newer" (KindUnavailable) that wraps ErrNewer. The
// parameter what names the record or row, found is its version, and known is the highest version
// that this release reads.
func Newer(what string, found, known int) error {
	return &Error{
		Kind: KindUnavailable, Code: "store_newer", RetryAfter: newerRetry, Err: ErrNewer,
		Msg: fmt.Sprintf("%s has version %d, but this release reads only versions up to %d; a process of the newer release handles it", what, found, known),
	}
}

// Corrupt returns the KindUnavailable error for a damaged value in a store. It wraps ErrCorrupt.
// The parameter what names the value.
func Corrupt(store, what string) error {
	return Unavailable(store, 0, fmt.Errorf("%w: %s", ErrCorrupt, what))
}

// Unread returns the error for a stored value that this release cannot decode. The first byte of
// the value is its version. If this version is higher than the parameter known, Unread returns the
// error of Newer, otherwise the error of Corrupt.
func Unread(store, what string, value []byte, known byte) error {
	if len(value) > 0 && value[0] > known {
		return Newer(what, int(value[0]), int(known))
	}
	return Corrupt(store, what)
}
