package notify

import (
	"errors"
	"fmt"
	"time"
)

// ErrNewer reports a record or a row that a newer release wrote. The record or row is not damaged, but
// this release cannot read it. ErrNewer can occur during a rolling upgrade. The process that gets
// ErrNewer must not delete, rewrite or put aside the record or row, and must not commit an offset after
// it, because a process of the newer release will handle it. ErrNewer is never ErrCorrupt.
var ErrNewer = errors.New("written by a newer release")

// newerRetry is the RetryAfter of ErrNewer. A repeated request may reach a process of the newer
// release, which can read the value.
const newerRetry = 5 * time.Second

// Newer returns ErrNewer as the error "store_newer" (KindUnavailable). The parameter what names the
// record or row. found is the version of the record or row. known is the highest version that this
// release reads.
func Newer(what string, found, known int) error {
	return &Error{
		Kind: KindUnavailable, Code: "store_newer", RetryAfter: newerRetry, Err: ErrNewer,
		Msg: fmt.Sprintf("%s has version %d, but this release reads only versions up to %d; a process of the newer release handles it", what, found, known),
	}
}

// Corrupt returns ErrCorrupt as an error of a store (KindUnavailable). The parameter what names the
// damaged value.
func Corrupt(store, what string) error {
	return Unavailable(store, 0, fmt.Errorf("%w: %s", ErrCorrupt, what))
}

// Unread returns the error for a stored value that cannot be unpacked. The first byte of the value is
// its version. Unread returns Newer if the version is above known, and Corrupt otherwise.
func Unread(store, what string, value []byte, known byte) error {
	if len(value) > 0 && value[0] > known {
		return Newer(what, int(value[0]), int(known))
	}
	return Corrupt(store, what)
}
