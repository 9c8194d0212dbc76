package cassandra

import (
	"errors"
	"fmt"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/notify"
)

// retryAfter is the Retry-After of errors while the cluster is unavailable. A node answers
// some seconds after its start.
const retryAfter = 2 * time.Second

// translate turns any error of the driver, the cluster or a context into a *notify.Error.
func translate(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e
	}
	r, ok := errors.AsType[gocql.RequestError](err)
	if !ok { // no node was reached, no node answered in time, or ctx has ended
		return notify.Unavailable("cassandra", retryAfter, err)
	}
	switch r.Code() {
	case gocql.ErrCodeOverloaded:
		return &notify.Error{Kind: notify.KindThrottled, Code: "cassandra_overloaded", Msg: "cassandra is overloaded", RetryAfter: retryAfter, Err: err}
	case gocql.ErrCodeCredentials:
		return &notify.Error{Kind: notify.KindUnauthorized, Code: "cassandra_credentials", Msg: "cassandra refuses the user name or password", Err: err}
	case gocql.ErrCodeUnauthorized:
		return &notify.Error{Kind: notify.KindForbidden, Code: "cassandra_forbidden", Msg: "the cassandra role does not have the permission for a request in the keyspace", Err: err}
	case gocql.ErrCodeInvalid, gocql.ErrCodeSyntax, gocql.ErrCodeConfig, gocql.ErrCodeAlreadyExists, gocql.ErrCodeProtocol:
		// The text of a statement comes from this package and not from an operator. So the only
		// cause that an operator can repair is a missing table or keyspace.
		return &notify.Error{Kind: notify.KindInternal, Code: "cassandra_statement", Msg: "cassandra refuses a statement: run notifyd migrate up if the keyspace is not migrated", Err: err}
	}
	return notify.Unavailable("cassandra", retryAfter, err)
}

// refused reports whether an error says that a conditional write did not begin. After any
// other error the write may have been applied.
func refused(err error) bool {
	r, ok := errors.AsType[gocql.RequestError](err)
	if !ok {
		return false
	}
	switch r.Code() {
	case gocql.ErrCodeWriteTimeout, gocql.ErrCodeWriteFailure, gocql.ErrCodeReadTimeout, gocql.ErrCodeReadFailure,
		gocql.ErrCodeCASWriteUnknown, gocql.ErrCodeServer:
		return false
	}
	return true
}

// unknownOutcome returns the error of a conditional write that may or may not have been
// applied.
func unknownOutcome(what string) error {
	return notify.Unavailable("cassandra", retryAfter, fmt.Errorf("it is unknown whether this write was applied: %s", what))
}

// corrupt returns the error for a stored value that this package cannot read.
func corrupt(what string) error {
	return notify.Corrupt("cassandra", what)
}
