package notify

import (
	"errors"
	"fmt"
	"time"
)

// ErrNewer reports a record or a row that a newer release wrote. It is not damaged, but this
// release cannot read it. During a rolling upgrade the process that finds it must leave it
// unchanged: it must not delete it, rewrite it, put it aside or commit past it, because a
// process of the newer release will handle it. ErrNewer is never ErrCorrupt.
var ErrNewer = errors.New("written by a newer release")

// newerRetry is the RetryAfter of ErrNewer: a repeated request may reach a process of the newer
// release.
const newerRetry = 5 * time.Second

// Newer returns ErrNewer as the error "store_newer" (KindUnavailable): what names the
// record or row, found is its version, and known is the highest version this release
// reads.
func Newer(what string, found, known int) error {
	return &Error{
		Kind: KindUnavailable, Code: "store_newer", RetryAfter: newerRetry, Err: ErrNewer,
		Msg: fmt.Sprintf("%s has version %d and this release reads up to %d; a process of the newer release handles it", what, found, known),
	}
}

// Corrupt returns ErrCorrupt as an error of a store (KindUnavailable). what names the damaged
// value.
func Corrupt(store, what string) error {
	return Unavailable(store, 0, fmt.Errorf("%w: %s", ErrCorrupt, what))
}

// Unread returns the error for a stored value that cannot be unpacked. The value's first byte is
// its version: Unread returns Newer if the version is above known, else Corrupt.
func Unread(store, what string, value []byte, known byte) error {
	if len(value) > 0 && value[0] > known {
		return Newer(what, int(value[0]), int(known))
	}
	return Corrupt(store, what)
}
