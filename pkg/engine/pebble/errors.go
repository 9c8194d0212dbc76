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

// retryAfter is what callers are told when the store is away: it comes back
// with a new process, not by itself.
const retryAfter = 5 * time.Second

var errClosed = errors.New("the store is closed")

// translate turns any error of Pebble, the disk or a context into ours.
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

// ended is the error of a call whose context has ended.
func ended(ctx context.Context) error { return translate(context.Cause(ctx)) }

// opening is translate for a store that cannot be opened: damage does not go
// away by waiting, and whoever runs the server has to hear what it is.
func opening(dir string, err error) error {
	_, ours := errors.AsType[*notify.Error](err)
	gone := errors.Is(err, fs.ErrNotExist) // a file that another one names
	if ours || !gone && !pebbledb.IsCorruptionError(err) && !errors.Is(err, record.ErrInvalidChunk) && !errors.Is(err, record.ErrZeroedChunk) {
		return translate(err)
	}
	return &notify.Error{
		Kind: notify.KindInternal, Code: "store_corrupt",
		Msg: "the store in " + dir + " is damaged: restore its folder and the log's from one copy, or move both away to begin anew", Err: err,
	}
}

func locked(dir string, err error) error {
	return &notify.Error{
		Kind: notify.KindUnavailable, Code: "store_locked",
		Msg: "the folder " + dir + " is in use by another process", Err: err,
	}
}

func newer(dir string, found, known int) error {
	return &notify.Error{
		Kind: notify.KindConflict, Code: "store_newer",
		Msg: fmt.Sprintf("the folder %s was written by a newer release (format %d, this build reads up to %d)", dir, found, known),
	}
}

func foreign(dir string) error {
	return &notify.Error{
		Kind: notify.KindConflict, Code: "store_foreign",
		Msg: "the folder " + dir + " holds a database that is not ours",
	}
}
