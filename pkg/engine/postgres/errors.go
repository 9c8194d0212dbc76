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

// retryAfter is what callers are told when no primary answers: a failover takes
// seconds.
const retryAfter = 2 * time.Second

// profileChanged is the SQLSTATE that put_profile raises.
const profileChanged = "NTFY1"

func noRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// readOnly reports whether a server said that it takes no writes.
func readOnly(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "25006"
}

// translate turns any error of the driver, the server or a context into ours.
// What a server says may quote a row: it goes to logs, as Err, and never into Msg.
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
		return changed("profile_changed", "profile")
	case "22021", "22P05": // a zero byte in text, or what is not UTF-8
		return &notify.Error{Kind: notify.KindInvalid, Code: "bad_utf8", Msg: "text that is stored is UTF-8 without zero bytes", Err: err}
	case "53100": // disk full
		return notify.Unavailable("store_full", retryAfter, err)
	case "42P01", "42883", "42703": // no such table, function, column
		return &notify.Error{Kind: notify.KindUnavailable, Code: "store_schema", Msg: schemaRepair, RetryAfter: retryAfter, Err: err}
	}
	switch e.Code[:2] {
	case "40": // serialization, deadlock: nothing is stored, and at once again it works
		return notify.Unavailable("store", 100*time.Millisecond, err)
	case "28", "3D": // the password, the role, the database
		return &notify.Error{Kind: notify.KindUnavailable, Code: "store_refused", Msg: "PostgreSQL refuses this client: check postgres.dsn, password_file and pg_hba.conf", RetryAfter: retryAfter, Err: err}
	}
	return notify.Unavailable("store", retryAfter, err)
}

const schemaRepair = "the tables in PostgreSQL are not those of this release: run notifyd migrate up"

// misfit is the answer of Check.
func misfit(code, msg string) error {
	return &notify.Error{Kind: notify.KindConflict, Code: code, Msg: msg}
}

// regressed is the answer of Changes when versions it has shown are gone.
func regressed(seen, now int64) error {
	return &notify.Error{
		Kind: notify.KindUnavailable, Code: engine.CodeRegressed, RetryAfter: retryAfter,
		Msg: fmt.Sprintf("PostgreSQL lost changes that it had acknowledged (version %d was seen, it is at %d): a standby that lacked them took over", seen, now),
	}
}
