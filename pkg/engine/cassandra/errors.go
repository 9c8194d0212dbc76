package cassandra

import (
	"errors"
	"fmt"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/notify"
)

// retryAfter is what callers are told while the cluster is away: a node is back
// within seconds of its start.
const retryAfter = 2 * time.Second

// translate turns any error of the driver, the cluster or a context into ours.
func translate(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e
	}
	r, ok := errors.AsType[gocql.RequestError](err)
	if !ok { // no node was reached, none answered in time, or the caller hung up
		return notify.Unavailable("cassandra", retryAfter, err)
	}
	switch r.Code() {
	case gocql.ErrCodeOverloaded:
		return &notify.Error{Kind: notify.KindThrottled, Code: "cassandra_overloaded", Msg: "cassandra is overloaded", RetryAfter: retryAfter, Err: err}
	case gocql.ErrCodeCredentials:
		return &notify.Error{Kind: notify.KindUnauthorized, Code: "cassandra_credentials", Msg: "cassandra refuses the user name or password", Err: err}
	case gocql.ErrCodeUnauthorized:
		return &notify.Error{Kind: notify.KindForbidden, Code: "cassandra_forbidden", Msg: "the role may not do this in the keyspace", Err: err}
	case gocql.ErrCodeInvalid, gocql.ErrCodeSyntax, gocql.ErrCodeConfig, gocql.ErrCodeAlreadyExists, gocql.ErrCodeProtocol:
		// The statements are ours. A table or keyspace that is missing is the one
		// case that people can mend.
		return &notify.Error{Kind: notify.KindInternal, Code: "cassandra_statement", Msg: "cassandra refuses a statement: is the keyspace migrated", Err: err}
	}
	return notify.Unavailable("cassandra", retryAfter, err)
}

// refused reports whether an error of a conditional write says that it was not
// begun. All others leave it open whether it was done.
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

// unsettled is the answer of a conditional write of which nobody can say whether
// it was done.
func unsettled(what string) error {
	return notify.Unavailable("cassandra", retryAfter, fmt.Errorf("%s: the outcome of the write is unknown", what))
}

// corrupt reports a value that this package did not write.
func corrupt(what string) error {
	return notify.Corrupt("cassandra", what)
}
