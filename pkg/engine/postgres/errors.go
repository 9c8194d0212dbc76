package postgres

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// retryAfter is the Retry-After of errors while no primary answers. A failover takes some
// seconds.
const retryAfter = 2 * time.Second

// profileChanged is the SQLSTATE that the SQL function put_profile raises if the stored
// version of the profile is not the expected version.
const profileChanged = "NTFY1"

func noRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// readOnly reports whether the server refused a write because it is a standby.
func readOnly(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "25006"
}

// translate turns any error of the driver, the server or a context into a *notify.Error.
// The server's text may quote a row. So translate puts the text only into Err, which is
// logged, and never into Msg, which callers of the API see.
func translate(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return notify.Unavailable("store", retryAfter, err)
	}
	switch e.Code {
	case profileChanged:
		return changedError("profile_changed", "profile")
	case "22021", "22P05": // a zero byte in text, or text that is not UTF-8
		return &notify.Error{Kind: notify.KindInvalid, Code: "bad_utf8", Msg: "stored text must be UTF-8 without zero bytes", Err: err}
	case "53100": // disk full
		return notify.Unavailable("store_full", retryAfter, err)
	case "42P01", "42883", "42703": // no such table, function, column
		return &notify.Error{Kind: notify.KindUnavailable, Code: "store_schema", Msg: schemaRepair, RetryAfter: retryAfter, Err: err}
	}
	switch e.Code[:2] {
	case "40": // serialization failure or deadlock: nothing was stored; a retry soon can succeed
		return notify.Unavailable("store", 100*time.Millisecond, err)
	case "28", "3D": // wrong password, role or database
		return &notify.Error{Kind: notify.KindUnavailable, Code: "store_refused", Msg: "PostgreSQL refuses this client: check postgres.dsn, password_file and pg_hba.conf", RetryAfter: retryAfter, Err: err}
	}
	return notify.Unavailable("store", retryAfter, err)
}

const schemaRepair = "PostgreSQL does not have the tables of this release: run notifyd migrate up"

// schemaError makes the error that Check returns if this build does not work with the schema.
func schemaError(code, msg string) error {
	return &notify.Error{Kind: notify.KindConflict, Code: code, Msg: msg}
}

// regressedError makes the error that Changes returns if the server has lost versions that
// Changes had returned. The parameter lowest is the version to which the server went back.
func regressedError(seen, lowest int64) error {
	return &notify.Error{
		Kind: notify.KindUnavailable, Code: engine.CodeRegressed, RetryAfter: retryAfter,
		Msg: fmt.Sprintf("PostgreSQL has lost changes that it had acknowledged (a process has read the profiles up to version %d, but PostgreSQL went back to version %d): a standby without these changes has become the primary", seen, lowest),
	}
}
