package pebble

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	pebbledb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"

	"github.com/notifyd/notifyd/pkg/notify"
)

// retryAfter is the Retry-After of errors of a failed store. Only a new process opens the
// store again, so a retry after a shorter time would fail.
const retryAfter = 5 * time.Second

var errClosed = errors.New("the store is closed")

// translate turns any error of Pebble, the disk or a context into a *notify.Error.
func translate(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e
	}
	code := "store"
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		code = "store_full"
	}
	return notify.Unavailable(code, retryAfter, err)
}

// contextError returns the error of a call whose context has ended.
func contextError(ctx context.Context) error { return translate(context.Cause(ctx)) }

// translateOpen does what translate does, for errors of opening the store. For a damaged
// store it returns KindInternal "store_corrupt", because a retry fails again and the
// operator must repair the store.
func translateOpen(dir string, err error) error {
	_, translated := errors.AsType[*notify.Error](err)
	missing := errors.Is(err, fs.ErrNotExist) // a file that another file of the store refers to
	if translated || !missing && !pebbledb.IsCorruptionError(err) && !errors.Is(err, record.ErrInvalidChunk) && !errors.Is(err, record.ErrZeroedChunk) {
		return translate(err)
	}
	return &notify.Error{
		Kind: notify.KindInternal, Code: "store_corrupt",
		Msg: "the store in " + dir + " is damaged: restore its folder and the folder of the log from one copy, or move both away to start empty", Err: err,
	}
}

func lockedError(dir string, err error) error {
	return &notify.Error{
		Kind: notify.KindUnavailable, Code: "store_locked",
		Msg: "the folder " + dir + " is in use by another process: stop that process, or set another store.dir", Err: err,
	}
}

func newerError(dir string, found, known int) error {
	return &notify.Error{
		Kind: notify.KindConflict, Code: "store_newer",
		Msg: fmt.Sprintf("the folder %s was written by a newer release (it has format %d, but this build reads formats up to %d): start that release or a newer one", dir, found, known),
	}
}

func foreignError(dir string) error {
	return &notify.Error{
		Kind: notify.KindConflict, Code: "store_foreign",
		Msg: "the folder " + dir + " contains a database that notifyd did not write: set store.dir to an empty folder",
	}
}
